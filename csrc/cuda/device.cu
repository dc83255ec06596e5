// Launch errors, grid sizes and the error line of the calling thread.
#include <stdarg.h>
#include <stdio.h>

#include "device.cuh"

namespace fs {
namespace {

thread_local char last_error[512] = "";

constexpr int kBlocksPerProcessor = 8;  // 2048 threads, what a multiprocessor holds

#if !defined(FS_EMULATED)
int num_processors() {
  int device = 0, count = 1;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  return count;
}
#else
int num_processors() { return emulated::kProcessors; }
#endif

}  // namespace

FsStatus fail(FsStatus status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof(last_error), format, arguments);
  va_end(arguments);
  return status;
}

FsStatus status_of(const char* operation, cudaError_t error) {
  if (error == cudaSuccess) return FS_OK;
  return fail(error == cudaErrorMemoryAllocation ? FS_OUT_OF_MEMORY : FS_DEVICE_ERROR, "%s: %s", operation,
              cudaGetErrorString(error));
}

FsStatus launch_status(const char* operation) { return status_of(operation, cudaGetLastError()); }

FsStatus refuse_kind(const char* operation, int32_t next_kind) {
  return fail(FS_INVALID_ARGUMENT, "%s: no CUDA kernel makes these picks (kind %d)", operation, next_kind);
}

FsStatus check_counts(const char* operation, int64_t num_samples, int64_t num_steps) {
  if (num_samples < int64_t{1} << FS_CUDA_SAMPLE_BITS && num_steps < int64_t{1} << (64 - FS_CUDA_SAMPLE_BITS)) {
    return FS_OK;
  }
  return fail(FS_INVALID_ARGUMENT, "%s: %lld samples of %lld steps; expected fewer on CUDA", operation,
              static_cast<long long>(num_samples), static_cast<long long>(num_steps));
}

FsStatus check_key_bits(const char* operation, int64_t num_transits, int64_t num_nodes, int bits) {
  if (bits <= 64) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: %lld transits of %lld nodes; numbers of both have 64 bits", operation,
              static_cast<long long>(num_transits), static_cast<long long>(num_nodes));
}

int blocks_for(int64_t threads) {
  const int64_t wanted = (threads + kThreads - 1) / kThreads, most = int64_t{num_processors()} * kBlocksPerProcessor;
  return static_cast<int>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

int resident_blocks(const void* kernel) {
#if defined(FS_EMULATED)
  (void)kernel;
  return emulated::kResidentBlocks;
#else
  int per_processor = 1;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, kThreads, 0) != cudaSuccess) return 1;
  return num_processors() * (per_processor < 1 ? 1 : per_processor);
#endif
}

}  // namespace fs

extern "C" {

int32_t fs_cuda_abi_version(void) { return FS_ABI_VERSION; }

const char* fs_cuda_last_error(void) { return fs::last_error; }

}  // extern "C"
