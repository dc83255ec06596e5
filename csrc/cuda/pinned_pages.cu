// Host pages that kernels read and write over the bus: pinned for every context of the process, and unpinned when
// nothing that has been enqueued reads them any more. The runtime keeps the error of a failed call for whoever asks
// next, which would be an unrelated launch: both functions take it away.
#include "device.cuh"

namespace fs {
namespace {

FS_KERNEL void copy_words(const int64_t* from, int64_t* to, int64_t count) {
  for (int64_t i = thread_number(); i < count; i += num_threads()) to[i] = from[i];
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_publish_words(const int64_t* from, int64_t* to, int64_t count, void* stream) {
  fs::launch(fs::copy_words, fs::blocks_for(count), static_cast<cudaStream_t>(stream), from, to, count);
  return fs::launch_status("publish_words");
}

FsStatus fs_cuda_pin_pages(void* address, int64_t num_bytes) {
  const cudaError_t error = cudaHostRegister(address, static_cast<size_t>(num_bytes), cudaHostRegisterPortable);
  if (error == cudaSuccess) return FS_OK;
  cudaGetLastError();
  return fs::fail(FS_DEVICE_ERROR,
                  "pinning %lld bytes of host memory failed: %s; choose device memory, or free host memory",
                  static_cast<long long>(num_bytes), cudaGetErrorString(error));
}

FsStatus fs_cuda_unpin_pages(void* address) {
  const cudaError_t ended = cudaDeviceSynchronize();
  const cudaError_t unpinned = cudaHostUnregister(address);
  if (ended == cudaSuccess && unpinned == cudaSuccess) return FS_OK;
  cudaGetLastError();
  return fs::fail(FS_DEVICE_ERROR, "unpinning host memory failed: %s",
                  cudaGetErrorString(ended == cudaSuccess ? unpinned : ended));
}

}  // extern "C"
