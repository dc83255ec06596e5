// Host pages that kernels read over the bus: pinned for every context of the process, and unpinned when nothing that
// has been enqueued reads them any more. The runtime keeps the error of a failed call for whoever asks next, which
// would be an unrelated launch: both functions take it away.
#include "device.cuh"

extern "C" {

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
