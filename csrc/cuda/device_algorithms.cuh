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

#if defined(FS_EMULATED)

inline cudaError_t sort_keys_scratch(const KeySort&, size_t* out_bytes) {
  *out_bytes = 0;
  return cudaSuccess;
}

inline cudaError_t sort_keys(const KeySort& sort, const uint64_t* keys, uint64_t* out, void*, size_t, cudaStream_t) {
  const int unused_bits = 64 - sort.end_bit;
  const auto field = [=](uint64_t key) { return key << unused_bits >> unused_bits >> sort.begin_bit; };
  std::copy(keys, keys + sort.count, out);
  std::stable_sort(out, out + sort.count, [=](uint64_t a, uint64_t b) { return field(a) < field(b); });
  return cudaSuccess;
}

#else

// Bytes of device memory that sort_keys works in.
inline cudaError_t sort_keys_scratch(const KeySort& sort, size_t* out_bytes) {
  return cub::DeviceRadixSort::SortKeys(nullptr, *out_bytes, static_cast<const uint64_t*>(nullptr),
                                        static_cast<uint64_t*>(nullptr), sort.count, sort.begin_bit, sort.end_bit);
}

// out [count] from keys [count], elsewhere in memory.
inline cudaError_t sort_keys(const KeySort& sort, const uint64_t* keys, uint64_t* out, void* scratch, size_t bytes,
                             cudaStream_t stream) {
  return cub::DeviceRadixSort::SortKeys(scratch, bytes, keys, out, sort.count, sort.begin_bit, sort.end_bit, stream);
}

#endif

// sort_keys_scratch, refused under the operation's name.
inline FsStatus measure_sort(const char* operation, const KeySort& sort, size_t* out_bytes) {
  const cudaError_t error = sort_keys_scratch(sort, out_bytes);
  if (error == cudaSuccess) return FS_OK;
  return fail(FS_DEVICE_ERROR, "%s: sorting cannot start: %s", operation, cudaGetErrorString(error));
}

}  // namespace fs

#endif  // FS_CUDA_DEVICE_ALGORITHMS_CUH_
