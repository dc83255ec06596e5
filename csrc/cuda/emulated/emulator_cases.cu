// Kernels whose outcome is known, some of them wrong, for the tests of the emulator. Every entry point
// launches one kernel on host memory and returns the launch's status.
#include "tile_scan.cuh"

namespace fs {
namespace {

// Every thread adds its number.
FS_KERNEL void add_numbers(uint64_t* sum) { atomic_add(sum, static_cast<uint64_t>(thread_number())); }

// Reads, yields perhaps, writes: increments get lost where another thread comes in between.
FS_KERNEL void lose_updates(uint32_t* count) {
  const uint32_t before = atomicAdd(count, 0u);
  atomicExch(count, before + 1);
}

// Thread t writes place t; after the barrier it reads its neighbour's. out[t] is that number.
FS_KERNEL void pass_through_shared(uint32_t* out) {
  FS_SHARED(uint32_t, places, kThreads);
  places[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[thread_number()] = places[(threadIdx.x + 1) % kThreads];
}

// What shared memory holds before anything is written.
FS_KERNEL void read_shared(uint32_t* out) {
  FS_SHARED(uint32_t, places, kThreads);
  out[thread_number()] = places[threadIdx.x];
}

// Per lane: a rotation by one, the sum of lower lanes, the ballot of odd lanes, the lanes with an equal number / 4.
FS_KERNEL void exchange_in_warp(uint32_t* out) {
  const uint32_t lane = threadIdx.x % kWarp;
  uint32_t sum = lane;
  for (unsigned delta = 1; delta < kWarp; delta *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, sum, delta);
    if (lane >= delta) sum += other;
  }
  uint32_t* own = out + 4 * thread_number();
  own[0] = __shfl_sync(kAllLanes, lane, static_cast<int>(lane + 1) % kWarp);
  own[1] = sum;
  own[2] = __ballot_sync(kAllLanes, lane % 2);
  own[3] = __match_any_sync(kAllLanes, lane / 4);
}

// Groups of eight lanes take different ways and meet among themselves only.
FS_KERNEL void exchange_in_groups(uint32_t* out) {
  const uint32_t lane = threadIdx.x % kWarp, group = lane / 8;
  const uint32_t mask = 0xFFu << (8 * group);
  uint32_t votes = 0;
  for (uint32_t round = 0; round <= group; ++round) votes += __popc(__ballot_sync(mask, lane % 8 <= round));
  out[thread_number()] = votes;
}

// Block 0 waits for a word that the last block writes: they must take turns.
FS_KERNEL void wait_for_last_block(uint32_t* words) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == gridDim.x - 1) store_now(words, 7u);
  if (blockIdx.x == 0) {
    while (load_now(words) != 7u) __nanosleep(100);
    words[1] = 1;
  }
}

// words: of the scan, ~0; places[i]: the sum of the counts before i; places[num_counts]: of all.
FS_KERNEL void scan_tiles(uint64_t* words, const int64_t* counts, int64_t num_counts, int64_t* places) {
  TileScan scan(words, num_counts);
  while (scan.next()) {
    int64_t own[kStripes], before[kStripes];
    for (int i = 0; i < kStripes; ++i) own[i] = scan.item(i) < num_counts ? counts[scan.item(i)] : 0;
    scan.place(own, before);
    for (int i = 0; i < kStripes; ++i) {
      if (scan.item(i) < num_counts) places[scan.item(i)] = before[i];
    }
    if (scan.is_last() && threadIdx.x == 0) places[num_counts] = scan.total();
  }
}

FS_KERNEL void miss_barrier(uint32_t*) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncwarp(kAllLanes);
  }
}

FS_KERNEL void lack_own_lane(uint32_t*) { __ballot_sync(1u, 1); }

FS_KERNEL void name_ended_lane(uint32_t*) {
  if (threadIdx.x % kWarp == 5) return;
  __syncwarp(kAllLanes);
}

FS_KERNEL void end_by_trap(uint32_t*) {
  if (thread_number() == 33) __trap();
}

}  // namespace
}  // namespace fs

extern "C" {

#define FS_CASE(name)                                                        \
  FS_API FsStatus case_##name(int32_t blocks, uint32_t* words) {             \
    fs::launch(fs::name, blocks, static_cast<cudaStream_t>(nullptr), words); \
    return fs::launch_status(#name);                                         \
  }

FS_API FsStatus case_add_numbers(int32_t blocks, uint64_t* sum) {
  fs::launch(fs::add_numbers, blocks, static_cast<cudaStream_t>(nullptr), sum);
  return fs::launch_status("add_numbers");
}
FS_API int64_t case_scan_words(int64_t num_counts) { return fs::scan_words(num_counts); }
FS_API FsStatus case_scan_tiles(int32_t blocks, uint64_t* words, const int64_t* counts, int64_t num_counts,
                                int64_t* places) {
  fs::launch(fs::scan_tiles, blocks, static_cast<cudaStream_t>(nullptr), words, counts, num_counts, places);
  return fs::launch_status("scan_tiles");
}
FS_CASE(lose_updates)
FS_CASE(pass_through_shared)
FS_CASE(read_shared)
FS_CASE(exchange_in_warp)
FS_CASE(exchange_in_groups)
FS_CASE(wait_for_last_block)
FS_CASE(miss_barrier)
FS_CASE(lack_own_lane)
FS_CASE(name_ended_lane)
FS_CASE(end_by_trap)

}  // extern "C"
