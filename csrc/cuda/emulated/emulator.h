// Runs CUDA kernels on the CPU, for tests: every thread of a block is a fiber, and one of them runs at a time.
//
// A fiber runs until it waits (at a barrier or in a warp function), ends, or yields. Atomics, __nanosleep and volatile
// reads may yield, so other threads get in between; a seed decides which thread runs next. Schedule 0 goes round in
// order and never yields at atomics; every other seed is a random schedule that can be repeated. Plain loads and stores
// between two such points are never interleaved, and memory is sequentially consistent: missing fences do not show.
//
// Found and reported as a failed launch, with the state in words: barriers that not all threads reach, warp functions
// whose mask names a lane that has ended or that the caller is not in, and traps. Shared memory starts as 0xCD bytes.
#ifndef FS_CUDA_EMULATED_EMULATOR_H_
#define FS_CUDA_EMULATED_EMULATOR_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <type_traits>

#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__

struct EmulatedDim {
  unsigned x, y, z;
};
extern EmulatedDim threadIdx, blockIdx, blockDim, gridDim;  // of the thread that runs

struct alignas(16) int4 {
  int x, y, z, w;
};

struct alignas(8) int2 {
  int x, y;
};

typedef void* cudaStream_t;
typedef int cudaError_t;
constexpr cudaError_t cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorHostMemoryAlreadyRegistered = 712,
                      cudaErrorHostMemoryNotRegistered = 713, cudaErrorLaunchFailure = 719;
constexpr unsigned cudaHostRegisterPortable = 1;

cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t error);

// Ranges of pages. Launches are over when they return, but pages are only unregistered after cudaDeviceSynchronize()
// since the last of them: on a device it may still read them.
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* address);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);

namespace fs {
namespace emulated {

constexpr int kProcessors = 1;      // what blocks_for counts with
constexpr int kResidentBlocks = 4;  // blocks that run at the same time; the others wait for one to end

// Whether the call that begins is the one that was chosen to fail (fs_cuda_fail_call); then an error is left behind.
bool fails();

// Runs body() in every thread of a grid of one dimension, to the end.
void run(int blocks, int threads, const std::function<void()>& body);

// Whether so many blocks are resident all at once; a launch that needs it and where they are not is reported.
bool fits(int blocks);

// Lets another thread run, perhaps (maybe_yield) or always where there is one.
void maybe_yield();
void yield();

// Waits until every lane of `mask` has come with the same mask; returns the 32 contributions (those of lanes outside
// the mask are not set). Valid until the thread's next call.
const uint64_t* gather_from_warp(uint32_t mask, uint64_t value);
void wait_for_block();
[[noreturn]] void trap();
uint64_t nanoseconds();  // a microsecond for every time that the launch's threads have changed

void* shared_bytes(int number, size_t bytes);
template <typename T>
T* shared(int number, size_t count) {
  static_assert(std::is_trivial<T>::value, "shared memory is not constructed");
  return static_cast<T*>(shared_bytes(number, count * sizeof(T)));
}

template <typename T>
uint64_t to_word(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable<T>::value, "at most 8 bytes");
  uint64_t word = 0;
  memcpy(&word, &value, sizeof(T));
  return word;
}
template <typename T>
T from_word(uint64_t word) {
  T value;
  memcpy(&value, &word, sizeof(T));
  return value;
}

template <typename T, typename Change>
T change(T* place, Change next) {
  maybe_yield();
  const T before = *place;
  *place = next(before);
  return before;
}

inline int lane() { return static_cast<int>(threadIdx.x % 32); }

}  // namespace emulated
}  // namespace fs

inline void __syncthreads() { fs::emulated::wait_for_block(); }
inline void __syncwarp(uint32_t mask) { fs::emulated::gather_from_warp(mask, 0); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { fs::emulated::yield(); }
[[noreturn]] inline void __trap() { fs::emulated::trap(); }

template <typename T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32) {
  const uint64_t* words = fs::emulated::gather_from_warp(mask, fs::emulated::to_word(value));
  const int first = fs::emulated::lane() / width * width;
  return fs::emulated::from_word<T>(words[first + (source & (width - 1))]);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
  const uint64_t* words = fs::emulated::gather_from_warp(mask, fs::emulated::to_word(value));
  const int lane = fs::emulated::lane(), source = lane - static_cast<int>(delta);
  return fs::emulated::from_word<T>(words[source < lane / width * width ? lane : source]);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
  const uint64_t* words = fs::emulated::gather_from_warp(mask, fs::emulated::to_word(value));
  const int lane = fs::emulated::lane(), source = lane + static_cast<int>(delta);
  return fs::emulated::from_word<T>(words[source >= lane / width * width + width ? lane : source]);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  const uint64_t* words = fs::emulated::gather_from_warp(mask, predicate != 0);
  uint32_t ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u) ballot |= static_cast<uint32_t>(words[lane]) << lane;
  }
  return ballot;
}
inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
template <typename T>
uint32_t __match_any_sync(uint32_t mask, T value) {
  const uint64_t word = fs::emulated::to_word(value);
  const uint64_t* words = fs::emulated::gather_from_warp(mask, word);
  uint32_t equal = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u) equal |= static_cast<uint32_t>(words[lane] == word) << lane;
  }
  return equal;
}

inline int __popc(uint32_t word) { return __builtin_popcount(word); }
inline int __ffs(int word) { return __builtin_ffs(word); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

template <typename T>
T atomicAdd(T* place, T value) {
  return fs::emulated::change(place, [=](T before) { return static_cast<T>(before + value); });
}
template <typename T>
T atomicMin(T* place, T value) {
  return fs::emulated::change(place, [=](T before) { return value < before ? value : before; });
}
template <typename T>
T atomicMax(T* place, T value) {
  return fs::emulated::change(place, [=](T before) { return before < value ? value : before; });
}
template <typename T>
T atomicExch(T* place, T value) {
  return fs::emulated::change(place, [=](T) { return value; });
}
template <typename T>
T atomicCAS(T* place, T expected, T value) {
  return fs::emulated::change(place, [=](T before) { return before == expected ? value : before; });
}

#endif  // FS_CUDA_EMULATED_EMULATOR_H_
