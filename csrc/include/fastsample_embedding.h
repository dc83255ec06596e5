/* fastsample: training of node embeddings on walks: skip-gram with negative sampling (Mikolov et al., "Distributed
 * representations of words and phrases and their compositionality", NIPS 2013). Part of the C ABI; conventions as in
 * fastsample.h. */
#ifndef FASTSAMPLE_EMBEDDING_H_
#define FASTSAMPLE_EMBEDDING_H_

#include "fastsample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Draws from one alias table. Pair i makes its draws one after the other from the stream
 * NodeStream(stage_key(rng_seed, kNegatives, 0, step), ids[i], numbers[i] << 32). */
typedef struct {
  const uint32_t* alias_table; /* [num_slots, 2], one row of fs_alias_tables with a positive total */
  const int64_t* ids;          /* [num_pairs] */
  const int64_t* numbers;      /* [num_pairs] 0 .. 2^32 - 1 */
  int64_t num_slots;           /* 1 .. 2^31 - 1 */
  int64_t num_pairs;
  int64_t draws_per_pair;
  uint64_t rng_seed, step;
  int32_t num_threads;
} FsAliasDraws;

/* out [num_pairs, draws_per_pair] positions in the table. */
FS_API FsStatus fs_alias_draws(const FsAliasDraws* request, int64_t* out);

/* Rows of uniform numbers, row i a function of (rng_seed, ids[i]) alone: word w of its stream in the domain kEmbedding
 * gives column w as ((w >> 8) / 2^24 - 1/2) * 2 * bound, in double, rounded once. */
typedef struct {
  const int64_t* ids; /* [num_rows] original node ids */
  int64_t num_rows, width;
  uint64_t rng_seed;
  double bound; /* values are in [-bound, bound) */
  int32_t type; /* FS_FLOAT32 or FS_FLOAT64 */
  int32_t num_threads;
} FsRandomRows;

FS_API FsStatus fs_random_rows(const FsRandomRows* request, void* out); /* [num_rows, width] */

/* Pair p has a centre row and contexts_per_pair context rows: the first was seen beside the centre, the others are
 * negatives. With x = <rows[centre], rows[context]> its loss is softplus(-x) for the first, softplus(x) for the others.
 * A row may be centre and context. */
typedef struct {
  const void* rows;        /* [num_rows, width], type */
  const int32_t* centers;  /* [num_pairs] */
  const int32_t* contexts; /* [num_pairs, contexts_per_pair] */
  int64_t num_rows, width, num_pairs, contexts_per_pair;
  double scale; /* of the gradients */
  int32_t type; /* FS_FLOAT32 or FS_FLOAT64 */
  int32_t num_threads;
} FsSkipGram;

/* grads [num_rows, width]: scale times the gradient of the summed loss, 0 for a row that no pair has. A row's terms are
 * added one by one in this order: those in which it is the centre by (pair, context), then those in which it is a
 * context by (pair, context). x is the sum of 32 partial sums, the l-th over columns l, l + 32, ..., added pairwise (l
 * and l + 16, then l and l + 8, ...). *loss: the sum of the losses, not scaled. */
FS_API FsStatus fs_skipgram_gradients(const FsSkipGram* pairs, void* grads, double* loss);

/* Gradients of rows of a table, several for one row, and how the table moves by their sums. */
typedef struct {
  void* table;           /* [num_rows, width], type; changed in place */
  void* first_moments;   /* as the table, or NULL: row -= step_size * sum */
  void* second_moments;  /* as the table, or NULL with first_moments */
  const int64_t* rows;   /* [num_updated] rows that move, each once */
  const int32_t* slots;  /* [num_grads] which of `rows` each gradient is of */
  const int64_t* places; /* [num_grads] >= 0: row of own, else row -1 - place of received */
  const void* own;       /* [num_own, width] */
  const void* received;  /* [num_received, width] */
  int64_t num_rows, width, num_updated, num_grads, num_own, num_received;
  double step_size, first_rate, second_rate, epsilon; /* rates: 1 - beta1 and 1 - beta2 */
  int32_t type;                                       /* FS_FLOAT32 or FS_FLOAT64 */
  int32_t num_threads;
} FsRowUpdate;

/* A row's gradients are added one by one in the order of `slots`, from the first one on. With moments, in the type of
 * the table: m += (g - m) * first_rate; v += (g * g - v) * second_rate; row -= step_size * m / (sqrt(v) + epsilon). */
FS_API FsStatus fs_update_rows(const FsRowUpdate* update);

#ifdef __cplusplus
}
#endif
#endif /* FASTSAMPLE_EMBEDDING_H_ */
