/* fastsample_cuda: the operators that run on NVIDIA GPUs. Same conventions as fastsample.h; pointers are device
 * pointers and `stream` is a cudaStream_t. A call enqueues work and returns; it never synchronises. */
#ifndef FASTSAMPLE_CUDA_H_
#define FASTSAMPLE_CUDA_H_

#include "fastsample.h"

#ifdef __cplusplus
extern "C" {
#endif

FS_API int32_t fs_cuda_abi_version(void);
FS_API const char* fs_cuda_last_error(void);

/* ---- sampling ---- */
#define FS_CUDA_MAX_HOPS 16

/* Bounds of a mini-batch, by which its arrays are allocated: nothing is read back before all hops are done. */
typedef struct {
  int64_t max_nodes;  /* distinct nodes of the batch */
  int64_t max_degree; /* of the graph */
  int64_t max_rows[FS_CUDA_MAX_HOPS];
  int64_t max_edges[FS_CUDA_MAX_HOPS];
  int64_t max_tasks;       /* of the persistent kernel's queue; 0 of the other kernels */
  int64_t state_words;     /* of 8 bytes, at the start of the workspace */
  int64_t workspace_bytes; /* scratch of one call */
} FsCudaSampleSizes;

typedef struct {
  const void* ids; /* [count] unique row ids, id_type; for sample_neighbors rows that may repeat */
  int64_t count;
  const uint64_t* step; /* device memory that holds the step, or NULL: spec->step. For captured launches */
} FsCudaSeeds;

/* Where a mini-batch goes; everything is device memory. When the enqueued work is done the workspace starts with
 * state_words words of 64 bits, ~0 where nothing is wrong:
 *   [0] position of the first seed that is no row, [1] of the first seed that stands twice, [2] number of seeds, and
 *   for hop h from [3 + 5 h] on: num_edges; the first row that does not exist; the first edge whose source does not
 *   exist; the first row with such a source among all its neighbours (FS_LABOR); num_src (not of sample_neighbors). */
typedef struct {
  void* nodes;                         /* [max_nodes] id_type */
  int64_t* indptr[FS_CUDA_MAX_HOPS];   /* [max_rows + 1] each */
  void* indices[FS_CUDA_MAX_HOPS];     /* [max_edges] each, id_type */
  int64_t* edge_ids[FS_CUDA_MAX_HOPS]; /* [max_edges] each, or NULL */
  void* workspace;                     /* [workspace_bytes] aligned to 256 bytes */
} FsCudaBatch;

/* The graph's arrays must be readable by the device: its own memory, or pinned host memory. indptr must not decrease,
 * and max_degree is its largest step. relabels: 1 for fs_cuda_sample_mfg, 0 for fs_cuda_sample_neighbors. Host
 * arithmetic only. */
FS_API FsStatus fs_cuda_sample_sizes(const FsGraph* graph, const FsSampleSpec* spec, int64_t num_seeds,
                                     int64_t max_degree, int32_t relabels, FsCudaSampleSizes* out);
/* Enqueue all hops of one mini-batch (as fs_sample_mfg). Weights and alias tables are device memory like the graph. */
FS_API FsStatus fs_cuda_sample_mfg(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* seeds,
                                   const FsCudaSampleSizes* sizes, const FsCudaBatch* batch, void* stream);
/* Enqueue one hop without relabelling (as fs_sample_neighbors): indices are source ids. */
FS_API FsStatus fs_cuda_sample_neighbors(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* rows,
                                         const FsCudaSampleSizes* sizes, const FsCudaBatch* batch, void* stream);

/* ---- features ---- */
/* out[i] = rows[ids[i]]: rows [num_rows, row_bytes], ids [num_ids] id_type, out [num_ids, row_bytes]. An id outside
 * 0 .. num_rows - 1 leaves its row unwritten and sets out_bad_id (int64 [2], device memory, zeroed by the caller) to
 * {1, the id}; of several bad ids any one is reported. */
FS_API FsStatus fs_cuda_gather_rows(const void* rows, int64_t num_rows, int64_t row_bytes, int32_t id_type,
                                    const void* ids, int64_t num_ids, void* out, int64_t* out_bad_id, void* stream);

/* ---- the persistent kernel ---- */
/* Why it ended; ~0: it has not run, because there was no seed or no hop. */
typedef enum {
  FS_CUDA_QUEUE_DONE = 0,  /* every task is done */
  FS_CUDA_QUEUE_STUCK = 1, /* the watchdog: for patience_ns no task was begun, put in or finished */
  FS_CUDA_QUEUE_FULL = 2   /* no room for a task or for its picks */
} FsCudaQueueEnd;
#define FS_CUDA_QUEUE_WORDS 80

/* A warp takes least_fetch .. most_fetch tasks from the queue at once, at least 1. Results never depend on it. */
typedef struct {
  int64_t least_fetch, most_fetch;
  uint64_t patience_ns;
} FsCudaQueueOptions;

/* Bounds of a mini-batch whose neighbours are drawn by one launch for all hops (PGSampler). The state's last
 * FS_CUDA_QUEUE_WORDS words are those of the task queue: [64] why it ended and, unless it is done, [65] block, [66]
 * warp in the block, [67] task that it waited for or had no room for, [68] tickets handed out, [69] tasks, [70] of them
 * finished. Uniform draws only. */
FS_API FsStatus fs_cuda_persistent_sizes(const FsGraph* graph, const FsSampleSpec* spec, int64_t num_seeds,
                                         int64_t max_degree, FsCudaSampleSizes* out);
/* As fs_cuda_sample_mfg, with sizes of fs_cuda_persistent_sizes: the same mini-batch. */
FS_API FsStatus fs_cuda_persistent_mfg(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* seeds,
                                       const FsCudaSampleSizes* sizes, const FsCudaBatch* batch,
                                       const FsCudaQueueOptions* options, void* stream);

#ifdef __cplusplus
}
#endif
#endif /* FASTSAMPLE_CUDA_H_ */
