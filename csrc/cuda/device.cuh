// What every CUDA file of this library is written against: kernels, launches and errors.
//
// The same sources compile twice. nvcc makes libfastsample_cuda.so of them. With FS_EMULATED a host compiler makes
// libfastsample_emulated.so, in which emulated/emulator.h runs the kernels' threads one at a time on the CPU: the tests
// compare every kernel with its oracle on machines without a GPU, under the sanitizers and under many schedules.
//
// A kernel is `FS_KERNEL void name(...)`, started by launch(); blocks have kThreads threads. Shared memory is declared
// by FS_SHARED; FS_CALLED is a function with registers of its own; FS_UNROLL goes before a loop that must be unrolled,
// so that its arrays become registers. Warp functions keep their CUDA names and always take a mask.
#ifndef FS_CUDA_DEVICE_CUH_
#define FS_CUDA_DEVICE_CUH_

#include <stdint.h>

#include "fastsample_cuda.h"
#include "number_types.h"
#include "platform.h"
#include "requests.h"

#if defined(FS_EMULATED)
#include "emulated/emulator.h"
#define FS_KERNEL static
#define FS_DEVICE inline
#define FS_CALLED inline
#define FS_SHARED(type, name, count) type* const name = fs::emulated::shared<type>(__COUNTER__, count)
#define FS_UNROLL
#else
#include <cuda_runtime.h>
#define FS_KERNEL static __global__
#define FS_DEVICE __device__ __forceinline__
#define FS_CALLED static __device__ __noinline__
#define FS_SHARED(type, name, count) __shared__ type name[count]
#define FS_UNROLL _Pragma("unroll")
#endif

namespace fs {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFFu;
#if defined(FS_EMULATED)
constexpr int kThreads = 64;  // per block
#else
constexpr int kThreads = 256;
#endif
constexpr int kWarps = kThreads / kWarp;  // per block

// fail(): records one line for fs_cuda_last_error of the calling thread and returns `status`; declared in
// core/requests.h.

// FS_OK, or an error of the CUDA runtime, reported under the operation's name.
FsStatus status_of(const char* operation, cudaError_t error);

// The same of what has been enqueued since the last call: launches, and whatever else the runtime remembers errors of.
FsStatus launch_status(const char* operation);

// An application whose picks no kernel makes.
FsStatus refuse_kind(const char* operation, int32_t next_kind);

// Refuses more samples or steps of an application than a word that reports a failure has bits for.
FsStatus check_counts(const char* operation, int64_t num_samples, int64_t num_steps);

// Refuses transits whose numbers, and those of the nodes, do not fit into one key together.
FsStatus check_key_bits(const char* operation, int64_t num_transits, int64_t num_nodes, int bits);

// Blocks for `threads` threads: as many as they fill, but no more than keep the device busy; at least one. Kernels go
// over their work in strides (or ranges) of the grid.
int blocks_for(int64_t threads);

// Blocks of a kernel that the device holds at once, for kernels that wait for one another's results.
int resident_blocks(const void* kernel);

// Whether nothing that was enqueued since the last launch_status has failed. Nothing is launched behind what has: it
// would read, and go by, what was never written.
inline bool can_launch() { return cudaPeekAtLastError() == cudaSuccess; }

#if defined(FS_EMULATED)
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), int blocks, cudaStream_t, Arguments... arguments) {
  if (!can_launch()) return;
  emulated::run(blocks, kThreads, [=] { kernel(static_cast<Parameters>(arguments)...); });
}
// All blocks at once: at most resident_blocks of them, which may then wait for one another at barriers.
template <typename Parameter>
void launch_together(void (*kernel)(Parameter), int blocks, cudaStream_t stream, const Parameter& parameter) {
  if (emulated::fits(blocks)) launch(kernel, blocks, stream, parameter);
}
#else
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), int blocks, cudaStream_t stream, Arguments... arguments) {
  if (!can_launch()) return;
  // clang-format off
  kernel<<<blocks, kThreads, 0, stream>>>(static_cast<Parameters>(arguments)...);
  // clang-format on
}

template <typename Parameter>
void launch_together(void (*kernel)(Parameter), int blocks, cudaStream_t stream, const Parameter& parameter) {
  if (!can_launch()) return;
  void* parameters[] = {const_cast<Parameter*>(&parameter)};
  cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                              dim3(kThreads), parameters, 0, stream);
}
#endif

// What `with` returns for a value of the element type, one that check_element_type accepts.
template <typename With>
auto with_element_type(int32_t type, const With& with) {
  if (type == FS_FLOAT32) return with(float());
  if (type == FS_FLOAT64) return with(double());
  return with(Bfloat16());
}

// Number of the calling thread in the grid, and the grid's threads.
FS_DEVICE int64_t thread_number() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }
FS_DEVICE int64_t num_threads() { return static_cast<int64_t>(gridDim.x) * kThreads; }
FS_DEVICE int lane_number() { return static_cast<int>(threadIdx.x % kWarp); }
FS_DEVICE int warp_in_block() { return static_cast<int>(threadIdx.x / kWarp); }

// The atomics of 64-bit words under the names that the rest of the code uses for such words.
FS_DEVICE uint64_t atomic_min(uint64_t* word, uint64_t value) {
  return atomicMin(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
}
FS_DEVICE uint64_t atomic_add(uint64_t* word, uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
}
FS_DEVICE uint64_t atomic_cas(uint64_t* word, uint64_t expected, uint64_t value) {
  return atomicCAS(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(value));
}
FS_DEVICE uint32_t atomic_cas(uint32_t* word, uint32_t expected, uint32_t value) {
  return atomicCAS(word, expected, value);
}

// What another block may be writing: read past the first-level cache.
template <typename T>
FS_DEVICE T load_now(const T* place) {
#if defined(FS_EMULATED)
  emulated::maybe_yield();
#endif
  return *static_cast<const volatile T*>(place);
}

// What the kernel does not read again: the caches keep other lines instead. T: a number, int2 or int4.
template <typename T>
FS_DEVICE void store_streaming(T* place, T value) {
#if defined(FS_EMULATED)
  *place = value;
#else
  __stcs(place, value);
#endif
}

// What another block, or the host, may be reading.
template <typename T>
FS_DEVICE void store_now(T* place, T value) {
#if defined(FS_EMULATED)
  emulated::maybe_yield();
#endif
  *static_cast<volatile T*>(place) = value;
}

// Read before everything that the thread does after it.
FS_DEVICE uint64_t load_acquire(const uint64_t* word) {
#if defined(FS_EMULATED)
  return load_now(word);
#else
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(word)) : "memory");
  return value;
#endif
}

// Adds after everything that the thread has written before; what it finds there was written after everything that those
// had written whose sums it finds. Returns the sum before. Orders no more than that: there is no fence of all accesses
// of all threads, as __threadfence() is one.
FS_DEVICE uint64_t add_acq_rel(uint64_t* word, uint64_t value) {
#if defined(FS_EMULATED)
  return atomic_add(word, value);
#else
  uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(__cvta_generic_to_global(word)), "l"(value)
               : "memory");
  return before;
#endif
}

// A clock that all blocks share.
FS_DEVICE uint64_t nanoseconds() {
#if defined(FS_EMULATED)
  return emulated::nanoseconds();
#else
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#endif
}

}  // namespace fs

#endif  // FS_CUDA_DEVICE_CUH_
