// What lets one header serve the host compilers and nvcc.
#ifndef FS_CORE_PLATFORM_H_
#define FS_CORE_PLATFORM_H_

#if defined(__CUDACC__)
#define FS_HD __host__ __device__ __forceinline__
#else
#define FS_HD inline __attribute__((always_inline))
#endif

#endif  // FS_CORE_PLATFORM_H_
