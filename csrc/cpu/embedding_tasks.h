// What the vector kernels of embedding training get: a request with its numbers grouped by row.
#ifndef FS_CPU_EMBEDDING_TASKS_H_
#define FS_CPU_EMBEDDING_TASKS_H_

#include <stdint.h>

#include "fastsample_embedding.h"

namespace fs {

struct SkipGramTask {
  const FsSkipGram& pairs;
  const int64_t* center_offsets;  // [num_rows + 1]
  const int32_t* center_pairs;    // [num_pairs] pairs by centre row
  const int64_t* context_offsets;
  const int32_t* context_terms;  // [num_pairs * contexts_per_pair] terms by context row; term = pair * contexts + k
  void* factors;                 // [num_pairs * contexts_per_pair] d loss / d x, scaled; of `type`
  void* grads;
  double* losses;  // [num_rows] of the pairs with this centre
};

struct RowUpdateTask {
  const FsRowUpdate& update;
  const int64_t* offsets;    // [num_updated + 1]
  const int32_t* gradients;  // [num_grads] by updated row
};

}  // namespace fs

#endif  // FS_CPU_EMBEDDING_TASKS_H_
