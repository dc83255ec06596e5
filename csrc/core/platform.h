// What lets one header serve the host compilers and nvcc.
#ifndef FS_CORE_PLATFORM_H_
#define FS_CORE_PLATFORM_H_

// FS_HD: for host and device, in core/ and cuda/. FS_INLINE: for the host alone, where a call would cost too much.
#define FS_INLINE inline __attribute__((always_inline))
#if defined(__CUDACC__)
#define FS_HD __host__ __device__ __forceinline__
#else
#define FS_HD FS_INLINE
#endif

#endif  // FS_CORE_PLATFORM_H_
