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

/* out[i] = rows[ids[i]]: rows [num_rows, row_bytes], ids [num_ids] id_type, out [num_ids, row_bytes]. An id outside
 * 0 .. num_rows - 1 leaves its row unwritten and sets out_bad_id (int64 [2], device memory, zeroed by the caller) to
 * {1, the id}; of several bad ids any one is reported. */
FS_API FsStatus fs_cuda_gather_rows(const void* rows, int64_t num_rows, int64_t row_bytes, int32_t id_type,
                                    const void* ids, int64_t num_ids, void* out, int64_t* out_bad_id, void* stream);

#ifdef __cplusplus
}
#endif
#endif /* FASTSAMPLE_CUDA_H_ */
