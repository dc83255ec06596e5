// What a GPU's memory can give, for the benchmark: random reads of 32-byte sectors, and reading an array in order.
//
// A sector is what a read of device memory moves at least. Read i goes to the sector that a mix of the counter seed + i
// gives, so no array of positions is read along with them; every thread has kInFlight independent reads under way. The
// array must be far larger than the caches, or they answer. Read in order, sixteen bytes per thread, an array in pinned
// host memory gives the rate at which kernels read over the bus. Sums are returned so that nothing is left out.
#include "device.cuh"
#include "fastsample_bench.h"
#include "mix.h"
#include "philox.h"

namespace fs {
namespace {

constexpr int64_t kSectorBytes = 32, kVectorBytes = 16;
constexpr int kInFlight = 8;

// Adds up over the warp, then once per warp in memory.
FS_DEVICE void add_sum(uint64_t sum, uint64_t* total) {
  for (unsigned delta = kWarp / 2; delta > 0; delta /= 2) sum += __shfl_down_sync(kAllLanes, sum, delta);
  if (lane_number() == 0) atomic_add(total, sum);
}

FS_KERNEL void random_sectors_kernel(const uint64_t* array, uint64_t num_sectors, int64_t num_reads, uint64_t seed,
                                     uint64_t* total) {
  constexpr int64_t kWordsPerSector = kSectorBytes / 8;
  const int64_t threads = num_threads();
  uint64_t sum = 0;
  int64_t i = thread_number();
  for (; i + (kInFlight - 1) * threads < num_reads; i += kInFlight * threads) {
    uint64_t words[kInFlight];
    for (int k = 0; k < kInFlight; ++k) {
      const uint64_t counter = seed + static_cast<uint64_t>(i + k * threads);
      words[k] = array[multiply_high(mix(counter), num_sectors) * kWordsPerSector];
    }
    for (int k = 0; k < kInFlight; ++k) sum += words[k];
  }
  for (; i < num_reads; i += threads) {
    sum += array[multiply_high(mix(seed + static_cast<uint64_t>(i)), num_sectors) * kWordsPerSector];
  }
  add_sum(sum, total);
}

FS_DEVICE uint64_t sum_of(const int4& vector) {
  return static_cast<uint64_t>(static_cast<uint32_t>(vector.x)) + static_cast<uint32_t>(vector.y) +
         static_cast<uint32_t>(vector.z) + static_cast<uint32_t>(vector.w);
}

FS_KERNEL void read_in_order_kernel(const int4* array, int64_t num_vectors, uint64_t* total) {
  const int64_t threads = num_threads();
  uint64_t sum = 0;
  int64_t i = thread_number();
  for (; i + (kInFlight - 1) * threads < num_vectors; i += kInFlight * threads) {
    int4 vectors[kInFlight];
    for (int k = 0; k < kInFlight; ++k) vectors[k] = array[i + k * threads];
    for (int k = 0; k < kInFlight; ++k) sum += sum_of(vectors[k]);
  }
  for (; i < num_vectors; i += threads) sum += sum_of(array[i]);
  add_sum(sum, total);
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_bench_random_sectors(const void* array, int64_t num_sectors, int64_t num_reads, uint64_t seed,
                                      uint64_t* out_sum, void* stream) {
  if (num_sectors < 1 || num_reads < 0 || reinterpret_cast<uintptr_t>(array) % fs::kSectorBytes != 0) {
    return fs::fail(FS_INVALID_ARGUMENT, "random_sectors: %lld sectors, %lld reads; expected 1 and 0 or more, aligned",
                    static_cast<long long>(num_sectors), static_cast<long long>(num_reads));
  }
  cudaStream_t on = static_cast<cudaStream_t>(stream);
  cudaMemsetAsync(out_sum, 0, sizeof(uint64_t), on);
  if (num_reads == 0) return fs::launch_status("random_sectors");
  const int64_t threads = (num_reads + fs::kInFlight - 1) / fs::kInFlight;
  fs::launch(fs::random_sectors_kernel, fs::blocks_for(threads), on, static_cast<const uint64_t*>(array),
             static_cast<uint64_t>(num_sectors), num_reads, seed, out_sum);
  return fs::launch_status("random_sectors");
}

FsStatus fs_cuda_bench_read_in_order(const void* array, int64_t num_bytes, uint64_t* out_sum, void* stream) {
  if (num_bytes < 0 || num_bytes % fs::kVectorBytes != 0 ||
      reinterpret_cast<uintptr_t>(array) % fs::kVectorBytes != 0) {
    return fs::fail(FS_INVALID_ARGUMENT, "read_in_order: %lld bytes; expected a multiple of 16, aligned",
                    static_cast<long long>(num_bytes));
  }
  cudaStream_t on = static_cast<cudaStream_t>(stream);
  cudaMemsetAsync(out_sum, 0, sizeof(uint64_t), on);
  if (num_bytes == 0) return fs::launch_status("read_in_order");
  const int64_t vectors = num_bytes / fs::kVectorBytes, threads = (vectors + fs::kInFlight - 1) / fs::kInFlight;
  fs::launch(fs::read_in_order_kernel, fs::blocks_for(threads), on, static_cast<const int4*>(array), vectors, out_sum);
  return fs::launch_status("read_in_order");
}

}  // extern "C"
