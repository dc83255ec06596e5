// The scheduler of emulator.h. One launch runs at a time; its fibers share the stacks of the launches before.
#include "emulator.h"

#include <stdarg.h>
#include <stdio.h>
#include <ucontext.h>

#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fastsample_cuda.h"

EmulatedDim threadIdx, blockIdx, blockDim, gridDim;

namespace fs {
namespace emulated {
namespace {

constexpr size_t kStackBytes = 256 << 10;  // the address sanitizer makes frames several times larger
constexpr uint32_t kYieldOneIn = 4;        // atomics of a random schedule

enum class State { kReady, kAtBlock, kAtWarp, kEnded };

struct Block;

struct Fiber {
  ucontext_t context;
  Block* block;
  unsigned number;  // thread in the block
  State state;
  uint32_t mask;
  uint64_t value;
  uint64_t gathered[32];
};

struct Block {
  unsigned number;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::map<int, std::vector<char>> shared;
  int num_live, num_at_barrier;
};

// xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016).
struct Random {
  uint64_t word;
  uint32_t below(uint32_t n) {
    word ^= word >> 12;
    word ^= word << 25;
    word ^= word >> 27;
    return static_cast<uint32_t>((word * 0x2545F4914F6CDD1Dull >> 32) % n);
  }
};

std::mutex one_launch;
uint64_t schedule = 0;
int64_t calls_before_failure = -1;  // of those that start work; below 0: none fails
int64_t num_launches = 0;
constexpr int kKeptGrids = 64;
int grids[kKeptGrids];                 // blocks of launch n at n % kKeptGrids
cudaError_t last_error = cudaSuccess;  // since cudaGetLastError
std::string failure;                   // of the launches since cudaGetLastError, in words
std::map<char*, size_t> registered;    // cudaHostRegister
bool is_synchronized = true;           // since the last launch

struct Launch {
  ucontext_t scheduler;
  const std::function<void()>* body;
  std::vector<std::unique_ptr<Block>> blocks;
  std::deque<Fiber*> ready;
  std::vector<std::unique_ptr<char[]>> free_stacks;
  std::map<Fiber*, std::unique_ptr<char[]>> stacks;
  Random random;
  bool is_random, failed;
  uint64_t num_switches;
  Fiber* running;
};
Launch* current = nullptr;

void report(const char* format, ...) __attribute__((format(printf, 1, 2)));
void report(const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (failure.empty()) failure = text;
  last_error = cudaErrorLaunchFailure;
  current->failed = true;
}

void to_scheduler() { swapcontext(&current->running->context, &current->scheduler); }

[[noreturn]] void abandon() {  // the launch is over; this fiber is never run again
  for (;;) to_scheduler();
}

void make_ready(Fiber* fiber) {
  fiber->state = State::kReady;
  current->ready.push_back(fiber);
}

void release_block(Block* block) {
  if (block->num_live == 0 || block->num_at_barrier < block->num_live) return;
  block->num_at_barrier = 0;
  for (auto& fiber : block->fibers) {
    if (fiber->state == State::kAtBlock) make_ready(fiber.get());
  }
}

void enter() {
  (*current->body)();
  Fiber* fiber = current->running;
  fiber->state = State::kEnded;
  --fiber->block->num_live;
  release_block(fiber->block);
  abandon();
}

std::unique_ptr<char[]> take_stack() {
  if (current->free_stacks.empty()) return std::unique_ptr<char[]>(new char[kStackBytes]);
  std::unique_ptr<char[]> stack = std::move(current->free_stacks.back());
  current->free_stacks.pop_back();
  return stack;
}

void set_context(Fiber* fiber, char* stack) {
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, enter, 0);
}

void start_block(unsigned number, unsigned threads) {
  auto block = std::make_unique<Block>();
  block->number = number;
  block->num_live = static_cast<int>(threads);
  block->num_at_barrier = 0;
  for (unsigned t = 0; t < threads; ++t) {
    auto fiber = std::make_unique<Fiber>();
    fiber->block = block.get();
    fiber->number = t;
    auto& stack = current->stacks[fiber.get()] = take_stack();
    set_context(fiber.get(), stack.get());
    make_ready(fiber.get());
    block->fibers.push_back(std::move(fiber));
  }
  current->blocks.push_back(std::move(block));
}

Fiber* next_ready() {
  auto& ready = current->ready;
  if (current->is_random) std::swap(ready.front(), ready[current->random.below(static_cast<uint32_t>(ready.size()))]);
  Fiber* fiber = ready.front();
  ready.pop_front();
  return fiber;
}

// A block that cannot continue although threads of it live.
void report_stuck() {
  for (const auto& block : current->blocks) {
    if (block->num_live == 0) continue;
    for (const auto& fiber : block->fibers) {
      if (fiber->state == State::kAtBlock) {
        return report("block %u: %d of %d threads wait at a barrier that the others do not reach; thread %u is one",
                      block->number, block->num_at_barrier, block->num_live, fiber->number);
      }
      if (fiber->state == State::kAtWarp) {
        return report("block %u, thread %u: waits in a warp function for the lanes of mask %08x", block->number,
                      fiber->number, fiber->mask);
      }
    }
  }
}

void retire_ended_blocks() {
  for (size_t b = 0; b < current->blocks.size();) {
    if (current->blocks[b]->num_live > 0) {
      ++b;
      continue;
    }
    for (auto& fiber : current->blocks[b]->fibers) {
      current->free_stacks.push_back(std::move(current->stacks[fiber.get()]));
      current->stacks.erase(fiber.get());
    }
    current->blocks.erase(current->blocks.begin() + static_cast<std::ptrdiff_t>(b));
  }
}

}  // namespace

bool fails() {
  if (calls_before_failure < 0 || calls_before_failure-- > 0) return false;
  failure = "out of memory";
  last_error = cudaErrorMemoryAllocation;
  return true;
}

void run(int blocks, int threads, const std::function<void()>& body) {
  const std::lock_guard<std::mutex> hold(one_launch);
  if (fails()) return;
  static std::vector<std::unique_ptr<char[]>> kept_stacks;
  grids[num_launches++ % kKeptGrids] = blocks;
  is_synchronized = false;
  Launch launch;
  launch.body = &body;
  launch.free_stacks = std::move(kept_stacks);
  launch.random.word = schedule * 0x9E3779B97F4A7C15ull | 1;
  launch.is_random = schedule != 0;
  launch.failed = false;
  launch.num_switches = 0;
  launch.running = nullptr;
  current = &launch;
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  gridDim = {static_cast<unsigned>(blocks), 1, 1};
  unsigned started = 0;
  while (!launch.failed) {
    while (started < gridDim.x && launch.blocks.size() < kResidentBlocks) start_block(started++, blockDim.x);
    if (launch.blocks.empty()) break;
    if (launch.ready.empty()) {
      report_stuck();
      break;
    }
    Fiber* fiber = next_ready();
    launch.running = fiber;
    threadIdx = {fiber->number, 0, 0};
    blockIdx = {fiber->block->number, 0, 0};
    ++launch.num_switches;
    swapcontext(&launch.scheduler, &fiber->context);
    if (fiber->block->num_live == 0) retire_ended_blocks();
  }
  for (auto& entry : launch.stacks) launch.free_stacks.push_back(std::move(entry.second));
  kept_stacks = std::move(launch.free_stacks);
  current = nullptr;
}

bool fits(int blocks) {
  if (blocks <= kResidentBlocks) return true;
  failure = "cooperative launch of " + std::to_string(blocks) + " blocks, of which " + std::to_string(kResidentBlocks) +
            " are resident at once";
  last_error = cudaErrorLaunchFailure;
  return false;
}

void yield() {
  make_ready(current->running);
  to_scheduler();
}

void maybe_yield() {
  if (current != nullptr && current->is_random && current->random.below(kYieldOneIn) == 0) yield();
}

void trap() {
  Fiber* fiber = current->running;
  report("block %u, thread %u: trap", fiber->block->number, fiber->number);
  abandon();
}

uint64_t nanoseconds() { return current->num_switches * 1000; }

void wait_for_block() {
  Fiber* fiber = current->running;
  fiber->state = State::kAtBlock;
  ++fiber->block->num_at_barrier;
  release_block(fiber->block);
  to_scheduler();
}

const uint64_t* gather_from_warp(uint32_t mask, uint64_t value) {
  Fiber* self = current->running;
  auto& fibers = self->block->fibers;
  const unsigned first = self->number / 32 * 32;
  self->mask = mask;
  self->value = value;
  self->state = State::kAtWarp;
  if ((mask >> (self->number % 32) & 1u) == 0) {
    report("block %u, thread %u: mask %08x of a warp function lacks the caller", self->block->number, self->number,
           mask);
    abandon();
  }
  bool complete = true;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    const bool exists = first + lane < fibers.size();
    if (!exists || fibers[first + lane]->state == State::kEnded) {
      report("block %u, thread %u: mask %08x of a warp function names lane %u, which has ended", self->block->number,
             self->number, mask, lane);
      abandon();
    }
    const Fiber& other = *fibers[first + lane];
    complete = complete && other.state == State::kAtWarp && other.mask == mask;
  }
  if (complete) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1u) == 0) continue;
      Fiber* to = fibers[first + lane].get();
      for (unsigned from = 0; from < 32; ++from) {
        if (mask >> from & 1u) to->gathered[from] = fibers[first + from]->value;
      }
      make_ready(to);
    }
  }
  to_scheduler();
  return self->gathered;
}

void* shared_bytes(int number, size_t bytes) {
  std::vector<char>& memory = current->running->block->shared[number];
  if (memory.empty()) memory.assign(bytes + 64, static_cast<char>(0xCD));
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
}

}  // namespace emulated
}  // namespace fs

cudaError_t cudaGetLastError() {
  const cudaError_t error = fs::emulated::last_error;
  fs::emulated::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return fs::emulated::last_error; }

cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  char* const begin = static_cast<char*>(address);
  const auto next = fs::emulated::registered.lower_bound(begin);
  const bool meets_next = next != fs::emulated::registered.end() && next->first < begin + bytes;
  const bool meets_previous = next != fs::emulated::registered.begin() && [&] {
    const auto previous = std::prev(next);
    return previous->first + previous->second > begin;
  }();
  if (meets_next || meets_previous) return fs::emulated::last_error = cudaErrorHostMemoryAlreadyRegistered;
  fs::emulated::registered[begin] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  if (!fs::emulated::is_synchronized || fs::emulated::registered.erase(static_cast<char*>(address)) == 0) {
    return fs::emulated::last_error = cudaErrorHostMemoryNotRegistered;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  fs::emulated::is_synchronized = true;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorHostMemoryAlreadyRegistered) return "part or all of the range is registered already";
  if (error == cudaErrorHostMemoryNotRegistered) return "the pages are not registered, or a launch may still read them";
  static thread_local std::string text;
  text = std::move(fs::emulated::failure);
  fs::emulated::failure.clear();
  return text.c_str();
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  if (fs::emulated::fails()) return cudaErrorMemoryAllocation;
  if (bytes > 0) memset(to, value, bytes);
  return cudaSuccess;
}

// Which thread runs next where several may: see emulator.h.
extern "C" FS_API void fs_cuda_set_schedule(uint64_t seed) { fs::emulated::schedule = seed; }

// Of the calls from now on that start work (a launch, a memset, a sort) the one of this number, from 0, starts none and
// leaves an error; below 0: none of them. Returns what is left of the number before.
extern "C" FS_API int64_t fs_cuda_fail_call(int64_t number) {
  return std::exchange(fs::emulated::calls_before_failure, number);
}

// Blocks of launch `number` (from 0), one of the last 64.
extern "C" FS_API int32_t fs_cuda_blocks_of_launch(int64_t number) {
  return fs::emulated::grids[number % fs::emulated::kKeptGrids];
}

// Kernels launched so far.
extern "C" FS_API int64_t fs_cuda_num_launches(void) { return fs::emulated::num_launches; }
