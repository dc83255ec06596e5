// Algorithms of the whole device that come with the CUDA toolkit. The emulated library has the standard library's.
#ifndef FS_CUDA_DEVICE_ALGORITHMS_CUH_
#define FS_CUDA_DEVICE_ALGORITHMS_CUH_

#include "device.cuh"

#if defined(FS_EMULATED)
#include <algorithm>
#else
#include <cub/device/device_radix_sort.cuh>
#endif

namespace fs {

// Sorting 64-bit keys by their bits begin_bit .. end_bit - 1; keys that are equal there keep their order.
struct KeySort {
  int64_t count;
  int begin_bit, end_bit;
};

// keys, and elsewhere in memory the sorted ones [count]; scratch of as many bytes as measure_sort says.
struct SortArrays {
  const uint64_t* keys;
  uint64_t* sorted;
  void* scratch;
  size_t scratch_bytes;
};

#if defined(FS_EMULATED)

inline cudaError_t sort_scratch(const KeySort&, size_t* out_bytes) {
  *out_bytes = 0;
  return cudaSuccess;
}

inline cudaError_t enqueue_sort(const KeySort& sort, const SortArrays& arrays, cudaStream_t) {
  emulated::fails();
  const cudaError_t error = cudaGetLastError();  // as CUB's sort returns, and clears, what launches before it left
  if (error != cudaSuccess) return error;
  const int unused_bits = 64 - sort.end_bit;
  const auto field = [=](uint64_t key) { return key << unused_bits >> unused_bits >> sort.begin_bit; };
  std::copy(arrays.keys, arrays.keys + sort.count, arrays.sorted);
  std::stable_sort(arrays.sorted, arrays.sorted + sort.count,
                   [=](uint64_t a, uint64_t b) { return field(a) < field(b); });
  return cudaSuccess;
}

#else

inline cudaError_t sort_scratch(const KeySort& sort, size_t* out_bytes) {
  return cub::DeviceRadixSort::SortKeys(nullptr, *out_bytes, static_cast<const uint64_t*>(nullptr),
                                        static_cast<uint64_t*>(nullptr), sort.count, sort.begin_bit, sort.end_bit);
}

inline cudaError_t enqueue_sort(const KeySort& sort, const SortArrays& arrays, cudaStream_t stream) {
  size_t bytes = arrays.scratch_bytes;
  return cub::DeviceRadixSort::SortKeys(arrays.scratch, bytes, arrays.keys, arrays.sorted, sort.count, sort.begin_bit,
                                        sort.end_bit, stream);
}

#endif

// Bytes of device memory that sort_keys works in.
inline FsStatus measure_sort(const char* operation, const KeySort& sort, size_t* out_bytes) {
  return status_of(operation, sort_scratch(sort, out_bytes));
}

// Enqueues a sort. What it returns must not be ignored: CUB also takes the errors of launches before it, so that
// launch_status does not find them any more.
[[nodiscard]] inline FsStatus sort_keys(const char* operation, const KeySort& sort, const SortArrays& arrays,
                                        cudaStream_t stream) {
  return status_of(operation, enqueue_sort(sort, arrays, stream));
}

}  // namespace fs

#endif  // FS_CUDA_DEVICE_ALGORITHMS_CUH_
