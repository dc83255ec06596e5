/* fastsample: transit-parallel sampling with user-defined applications (Jangda et al., "Accelerating Graph Sampling for
 * Graph Machine Learning using GPUs", EuroSys'21). Part of the C ABI; conventions as in fastsample.h.
 *
 * A sample starts from roots and grows step by step. In a step its transits are looked at, and `next` is asked for
 * every pick: individual applications make sample_size picks from each transit's neighbours, collective ones
 * sample_size picks from the neighbours of all transits together. Vertices are int64 node ids here, whatever the
 * graph's id type; FS_NULL_NODE means none. Pick number n of a sample at step k draws from the stream
 *   NodeStream(stage_key(rng_seed, kTransit, k, step), sample_id, n << 32)                       (core/transit_draw.h)
 * and from nothing else, so threads, blocks, schedule, device and ranks change nothing.
 */
#ifndef FASTSAMPLE_TRANSIT_H_
#define FASTSAMPLE_TRANSIT_H_

#include "fastsample.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FS_NULL_NODE (-1)
#define FS_ALL_NEIGHBORS (-1) /* as a sample size: one pick per neighbour of the transit */

typedef enum { FS_INDIVIDUAL = 0, FS_COLLECTIVE = 1 } FsSamplingType;

/* Who makes the picks of a step. Params are words of FsTransitApp.params. */
typedef enum {
  FS_NEXT_CALLBACK = 0, /* FsTransitApp.next */
  FS_NEXT_UNIFORM = 1,  /* edges[below(degree)] */
  FS_NEXT_WEIGHTED = 2, /* alias draw: slot = below(degree), word() < threshold ? own : other (core/walk_slot.h) */
  FS_NEXT_NODE2VEC = 3, /* by rejection (core/node2vec.h), by weight where there are walk slots; params: thresholds of
                           2^32 for going back, to a common neighbour, elsewhere. Pick n of a sample comes from place n
                           of the step before the last, where there is one */
  /* As FS_NEXT_WEIGHTED where tables->walk_slots is given, else as FS_NEXT_UNIFORM; FS_NULL_NODE from step state[0] on.
   * `initial` is built in: state[0] = 1 + number of entries above word64() >> 1. params: address and length of the
   * entries, int64, descending: entry j is floor((1 - stop)^(j + 1) * 2^63). state_words is 1. */
  FS_NEXT_PPR = 4,
  /* Uniform; the pick takes the place of the chosen root. State: num_roots roots, then the number of the chosen one.
   * `initial` (copies the roots) and step_transits are built in: root below(num_roots) where params[0] is 0, else that
   * in whose share of the sum of degrees below(sum) falls, FS_NULL_NODE where the sum is 0. One transit per step. */
  FS_NEXT_MULTI_RW = 5,
  FS_NEXT_LAYER = 6,  /* uniform in the combined neighbourhood until the sample has params[0] vertices */
  FS_NEXT_ALL = 7,    /* edges[n]; of sample size FS_ALL_NEIGHBORS */
  FS_NEXT_GLOBAL = 8, /* alias draw from a table over all nodes, in params (FastGCN) */
  FS_NEXT_RANKED = 9  /* the n-th of the exponential race over the combined neighbourhood (LADIES) */
} FsNextKind;

/* In which order the picks of a step are made. All give the same samples. */
typedef enum {
  FS_SCHEDULE_AUTO = 0,        /* by sample, or by transit where a transit has 64 built-in picks or more */
  FS_SCHEDULE_SAMPLE = 1,      /* sample by sample */
  FS_SCHEDULE_TRANSIT = 2,     /* grouped by transit, rows of many picks read once */
  FS_SCHEDULE_TRANSIT_FLAT = 3 /* grouped by transit, all groups treated alike */
} FsSchedule;

/* What a step of an application reads besides the graph; what is not needed may be NULL. */
typedef struct {
  const void* walk_slots;        /* of fs_walk_slots, of all edges of the graph; weighted picks */
  const double* total_weights;   /* [num_rows] sum of the row's weights, left to right */
  const double* max_weights;     /* [num_rows] */
  const void* hashed_nodes;      /* [num_rows] records of fs_hashed_rows (core/hashed_rows.h); membership */
  const void* hashed_buckets;    /* its buckets of 64 bytes */
  const int64_t* const* columns; /* [num_columns] addresses of per-node columns of the application */
} FsTransitTables;

/* One step of a block of samples, as a step kernel sees it. A slot is one pick: slot = sample * picks + n, where sample
 * counts inside the block and picks = slots of a sample in this step (num_transits * sample_size, or sample_size of a
 * collective application).
 *
 * What next, step_transits and initial see differs in this:
 *   next           slots of FS_NULL_NODE transits are never asked for (individual applications); out is the picks
 *   step_transits  slot = sample * num_transits + index, picks = num_transits, sample_size = 1; out is `transits`
 *   initial        slot = sample, picks = 1; nothing is written but state
 * With sample size FS_ALL_NEIGHBORS next is called for one transit at a time: num_transits is 1, sample_size and picks
 * are its degree, and first_pick the neighbours of the sample's transits before it. */
typedef struct {
  const FsGraph* graph;           /* graph->weights: weights by position, where the application reads them */
  const FsTransitTables* tables;  /* never NULL */
  const int64_t* params;          /* words of the application: int64, double bits, or address and length of an array */
  const int64_t* sample_ids;      /* [num_samples] */
  const int64_t* const* vertices; /* vertices[0]: the roots, vertices[k + 1]: the picks of step k, each [num_samples,
                                     strides[.]]; those of steps < step_index can be read */
  const int64_t* strides;         /* words from one sample to the next in vertices[.] */
  const int64_t* widths;          /* vertices of a sample in vertices[.] */
  const int64_t* transits;        /* [num_samples, transit_stride]; FS_NULL_NODE: none. Collective: the distinct ones
                                     first */
  const int64_t* num_distinct;    /* collective: [num_samples] distinct transits */
  const int64_t* combined;        /* collective: [num_samples, num_transits + 1] sums of the transits' degrees */
  const int64_t* ranked;          /* rows that rank: [num_samples, ranked_stride] vertices by the race, FS_NULL_NODE
                                     behind the last */
  int64_t* state;                 /* [num_samples, state_words]; zeros before `initial` */
  const int64_t* slots;           /* slots to fill, in this order; NULL: begin .. end themselves */
  int64_t* out;                   /* [num_samples, out_stride]: pick n of sample s goes to out[s * out_stride + n] */
  int64_t* failed_slot;           /* where a callback says which slot raised */
  uint64_t rng_seed;
  uint64_t step;      /* of training, part of the key */
  int64_t step_index; /* k */
  int64_t num_samples, num_transits, sample_size, picks, num_roots;
  int64_t transit_stride, ranked_stride, out_stride, state_words;
  int64_t attempt;     /* 0, or the round of top-ups */
  int64_t first_pick;  /* 0; of FS_ALL_NEIGHBORS see above. Pick number: first_pick + attempt * picks + n */
  uint32_t key0, key1; /* stage key of this kernel's domain at this step */
} FsStepTask;

/* Fills slots begin .. end - 1 of the list (or the slots themselves), in order. Returns 0, or 1 when the application
 * raised, with *task->failed_slot set to the slot (not the place in the list); slots before it are filled. Called by
 * several threads for disjoint blocks. */
typedef int32_t (*FsStepKernel)(const FsStepTask* task, int64_t begin, int64_t end);

typedef struct {
  const int64_t*
      sample_sizes; /* [num_steps] picks per transit or per sample; FS_ALL_NEIGHBORS in the last step alone */
  const int64_t* num_transits; /* [num_steps] transits of a sample */
  const uint8_t* unique;       /* [num_steps], or NULL: no step */
  const int64_t* params;
  FsStepKernel next;          /* FS_NEXT_CALLBACK */
  FsStepKernel step_transits; /* NULL: the picks of the step before (the roots at step 0). Slots are (sample, index) */
  FsStepKernel initial;       /* NULL: none. Called once per sample before step 0; slots are samples */
  int64_t num_steps;          /* with until_done: the limit */
  int64_t num_roots, state_words, max_attempts;
  int32_t next_kind;     /* FsNextKind */
  int32_t sampling_type; /* FsSamplingType */
  int32_t until_done;    /* not 0: a sample ends when it has no transit left; still running after num_steps: refused */
} FsTransitApp;

/* Samples to make. */
typedef struct {
  const int64_t* roots;      /* [num_samples, app->num_roots], FS_NULL_NODE: none */
  const int64_t* sample_ids; /* [num_samples] >= 0, or NULL: the position */
  int64_t num_samples;
  int64_t block_samples; /* samples advanced together, at most; 0: chosen by what they take. Changes no sample */
  uint64_t rng_seed, step;
  int32_t num_threads;
  int32_t schedule; /* FsSchedule */
} FsTransitRequest;

/* Why an application failed; of several failures that of the first step, and there of the first sample. */
typedef enum {
  FS_APP_FINE = 0,
  FS_APP_RAISED = 1,    /* a callback returned 1 */
  FS_APP_BAD_NODE = 2,  /* a callback returned `node`, which is neither a node nor FS_NULL_NODE */
  FS_APP_NEVER_ENDS = 3 /* until_done: transits are left after num_steps steps */
} FsAppFault;
typedef enum { FS_IN_NEXT = 0, FS_IN_STEP_TRANSITS = 1, FS_IN_INITIAL = 2 } FsAppFunction;
typedef struct {
  int64_t sample; /* position in the call */
  int64_t sample_id;
  int64_t step;     /* k */
  int64_t node;     /* FS_APP_BAD_NODE */
  int32_t fault;    /* FsAppFault */
  int32_t function; /* FsAppFunction */
} FsTransitFailure;

/* Samples; owned by the library until fs_transit_free. */
typedef struct {
  int64_t num_samples;
  int64_t num_steps;    /* until_done: the most that a sample took; else all of the application's */
  int64_t width;        /* vertices of a sample, or -1: they differ (until_done, FS_ALL_NEIGHBORS) */
  int64_t num_vertices; /* of all samples together */
  int64_t* offsets;     /* [num_samples + 1] where the vertices of a sample begin; NULL unless width is -1 */
  int64_t* vertices;    /* [num_vertices] of a sample its roots and then its picks, step after step, FS_NULL_NODEs
                           included. until_done: steps up to the sample's last one that has a pick */
} FsTransitResult;

/* Of an edge's slot of int32 ids: the word with the ids, and with what a pick compares. */
#define FS_SLOT_WORD_BYTES 8

/* Slots for drawing neighbours by weight without reading `indices`, by the same picks as fs_alias_tables' tables
 * (core/walk_slot.h). indices [num_edges] id_type, of which each is a row. out_slots, at a multiple of 8: 12 bytes per
 * edge of int32 ids (num_edges words of FS_SLOT_WORD_BYTES, then num_edges uint32 thresholds, of which a pick seldom
 * reads any) or 24 of int64 (uint32 threshold, 4 bytes unused, int64 own, int64 other).
 * out_totals, out_maxima [num_rows] or NULL: sum, left to right, and maximum of a row's weights; 0 of an empty row.
 * Scratch and refusals as of fs_alias_tables; refuses besides, with slots, a source that is no row. out_slots may be
 * NULL: only the sums. */
FS_API FsStatus fs_walk_slots(const FsEdgeWeights* edges, const void* indices, int32_t id_type, void* out_slots,
                              double* out_totals, double* out_maxima);

/* Samples of an individual application. On success *out holds them. FS_APP_ERROR: *failure says what the application
 * did; the graph's rows are trusted, what is in them and what callbacks return is checked. */
FS_API FsStatus fs_transit_sample(const FsGraph* graph, const FsTransitTables* tables, const FsTransitApp* app,
                                  const FsTransitRequest* request, FsTransitFailure* failure, FsTransitResult** out);
FS_API void fs_transit_free(FsTransitResult* result);

/* ---- collective applications ---- */
/* Which edges of the graph a sample records. Source nodes are local ids: of FS_RECORD_TO_NEW and FS_RECORD_TO_UNION the
 * hops of a sample are those of a mini-batch: hop k holds the edges of step k, its destinations are the
 * distinct transits of step k, its sources these and then the new nodes in order of first appearance, and these are the
 * transits of step k + 1. */
typedef enum {
  FS_RECORD_NONE = 0,
  FS_RECORD_TO_NEW = 1,   /* into the transits, from the picks of the step */
  FS_RECORD_TO_UNION = 2, /* into the transits, from the picks and the transits */
  FS_RECORD_WITHIN = 3    /* among the sample's vertices, once, after the last step: one hop */
} FsRecord;

/* What becomes a recorded edge's weight; value: the stored weight, 1 without weights and of a self edge. */
typedef enum {
  FS_EDGES_UNWEIGHTED = 0,
  FS_EDGES_BY_COLUMN = 1, /* value / column weight, as a share of the row's sum (LADIES) */
  FS_EDGES_SCALED = 2,    /* value * row_scale[destination] * column_scale[source] * max(1, times picked) / sample size;
                             times: picks of the step that are the source */
  FS_EDGES_COLUMNS = 3    /* the column weight of the source */
} FsEdgeScale;

typedef struct {
  const double* row_scale;    /* [num_rows] FS_EDGES_SCALED */
  const double* column_scale; /* [num_rows] FS_EDGES_SCALED */
  int32_t record;             /* FsRecord */
  int32_t self_edges; /* not 0: the graph is A + I: where a destination is among the sources to record, its row begins
                         with an edge from itself, whose edge id is -1 */
  int32_t edge_scale; /* FsEdgeScale; by column weights only with `ranked` */
  int32_t ranked;     /* not 0: steps see the combined neighbourhood ranked by the race (core/exponential_race.h), its
                         first sample_size vertices; column weights are the squared columns of the transits' rows of
                         A + I, normalised by row */
} FsCollectiveSpec;

/* One hop of a sample's recorded edges. */
typedef struct {
  int64_t num_dst, num_src, num_edges;
} FsRecordedHop;

/* Edges of one sample, hop after hop: every array holds what belongs to hop 0, then to hop 1, ... The arrays are in one
 * block of memory, in this order, `indices` directly behind `nodes`. All NULL where nothing is recorded. */
typedef struct {
  int64_t num_hops, num_nodes, num_edges, num_weights;
  FsRecordedHop* hops; /* [num_hops] */
  void* nodes;       /* per hop [num_src] id_type: its sources, the first num_dst of them its destinations; num_nodes of
                        all hops */
  void* indices;     /* per hop [num_edges] local source ids, id_type */
  int64_t* offsets;  /* per hop [num_dst + 1] */
  int64_t* edge_ids; /* per hop [num_edges] positions in the graph's indices */
  void* edge_weights; /* per hop [num_edges] float32, of FS_EDGES_COLUMNS float64; num_weights is 0 where the edges are
                         unweighted */
} FsRecordedEdges;

/* Owned by the library until fs_collective_free. */
typedef struct {
  FsTransitResult samples;
  FsRecordedEdges* edges; /* [samples.num_samples] */
} FsCollectiveResult;

/* Samples of a collective application: next kinds FS_NEXT_CALLBACK, FS_NEXT_LAYER, FS_NEXT_GLOBAL, FS_NEXT_RANKED. One
 * sample is made by one thread. Params of FS_NEXT_GLOBAL: addresses and lengths of three arrays over all nodes, ordered
 * by original id: int64 node, uint32 threshold, int64 other; a pick is node[slot] if word() < threshold[slot], else
 * other[slot], slot = below(length). Roots are checked; failures as of fs_transit_sample. Scratch of a thread: 8 to 40
 * bytes per vertex of the largest combined neighbourhood, more with `ranked`. */
FS_API FsStatus fs_collective_sample(const FsGraph* graph, const FsTransitTables* tables, const FsTransitApp* app,
                                     const FsCollectiveSpec* spec, const FsTransitRequest* request,
                                     FsTransitFailure* failure, FsCollectiveResult** out);
FS_API void fs_collective_free(FsCollectiveResult* result);
/* ---- PinSAGE's neighbourhoods ---- */
/* The neighbours of a node are the nodes that random walks from it visit most often (Ying et al., "Graph convolutional
 * neural networks for web-scale recommender systems", KDD'18, section 3.1). Walk w of node v at hop h is the sample of
 * id orig_id(v) + num_rows * (w + num_walks * h) of an application of FS_NEXT_PPR, cut after walk_length steps: uniform
 * picks, the length drawn from its `initial`. A node is visited whenever a step arrives there; v itself does not count.
 * Neighbours are the num_neighbors most visited nodes, of equally many visits the smaller original id first, in this
 * order; an edge's weight is its visits / those of all edges of the row. Rows without visits have no edges. */
#define FS_MOST_VISITS 16777216 /* num_walks * walk_length at most: counts that float32 holds exactly */

typedef struct {
  const int64_t* survival; /* [walk_length - 1] as FS_NEXT_PPR's entries, of which a walk draws its length; NULL: every
                              walk has walk_length steps */
  int64_t num_walks, walk_length, num_neighbors; /* 1 or more each */
  int32_t num_hops;
  int32_t first_hop; /* number of the first hop, part of the sample ids */
  int32_t num_threads;
  uint64_t rng_seed;
  uint64_t step;
} FsPinsageSpec;

/* Refuses, as `operation`, what fs_sample_pinsage refuses without a graph. */
FS_API FsStatus fs_check_pinsage_spec(const char* operation, const FsPinsageSpec* spec);

/* Mini-batches as of fs_sample_many: batch b is that of seeds[b] at step spec->step + b, and its hops have
 * edge_weights. One batch is made by all threads, of many each by one. The graph has a row for every source. Scratch of
 * a thread besides that of fs_sample_mfg: the size of an id per step of num_walks walks or of 1024, whichever is more,
 * and 40 bytes per walk. Refuses as fs_sample_many, but trusts the graph's offsets; walks too many for their ids or for
 * FS_MOST_VISITS. */
FS_API FsStatus fs_sample_pinsage(const FsGraph* graph, const FsPinsageSpec* spec, const void* const* seeds,
                                  const int64_t* num_seeds, int64_t num_batches, FsMiniBatch** out);

/* ---- membership ---- */
/* Membership queries: whether a vertex is in a row, exactly, by reading about one cache line (core/hashed_rows.h).
 * Rows of more than 16 neighbours have buckets of 64 bytes, ids_per_bucket of their ids to each on average; shorter
 * rows are scanned in the graph's indices. */
typedef struct {
  uint64_t* nodes;        /* [num_rows, 2] records */
  void* buckets;          /* [num_buckets, 64 bytes] at a multiple of 64; int32 or int64 ids, by the graph's id_type */
  int64_t num_buckets;    /* of fs_hashed_rows_size */
  int32_t ids_per_bucket; /* 1 to 16 (int32 ids) or 8 (int64): the fewer, the more memory and the shorter the probes */
  int32_t num_threads;
} FsHashedRows;

/* Pairs to ask for. */
typedef struct {
  const int64_t* rows;     /* [count] rows of the graph, or FS_NULL_NODE: nothing is in it */
  const int64_t* vertices; /* [count] any values */
  uint8_t* answers;        /* [count] 1: the vertex is in the row; 0: it is not */
  int64_t count;
} FsEdgeQueries;

/* Buckets of a graph's rows. Refused: decreasing offsets, rows of more than 2147483640 edges, more than 2^32 buckets,
 * 2^36 edges or more. */
FS_API FsStatus fs_hashed_rows_size(const FsGraph* graph, int32_t ids_per_bucket, int64_t* out_num_buckets);

/* Fills tables->nodes and tables->buckets, the same for any number of threads. An id is stored once, however many
 * parallel edges there are. Scratch: a byte per bucket of the longest row and thread. Refused besides: a negative id,
 * num_buckets of another graph. */
FS_API FsStatus fs_hashed_rows(const FsGraph* graph, const FsHashedRows* tables);

/* Answers queries; tables as fs_hashed_rows made them of this graph. Refused: a row outside the graph. */
FS_API FsStatus fs_has_edges(const FsGraph* graph, const FsHashedRows* tables, const FsEdgeQueries* queries);

#ifdef __cplusplus
}
#endif
#endif /* FASTSAMPLE_TRANSIT_H_ */
