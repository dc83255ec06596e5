// Sums and prefix sums over the threads of a block, and over the blocks of a grid: what turns counts into places.
//
// Over the grid: every block has a contiguous range of the items. One kernel writes the sum of each block's range; in
// the next a block adds up the sums of the blocks before it. Both must be launched with as many blocks.
#ifndef FS_CUDA_BLOCK_SUMS_CUH_
#define FS_CUDA_BLOCK_SUMS_CUH_

#include "device.cuh"

namespace fs {

constexpr int kMaxRangeBlocks = 1024;  // of a grid whose blocks have ranges

inline int range_blocks(int64_t most_items) {
  const int blocks = blocks_for(most_items);
  return blocks < kMaxRangeBlocks ? blocks : kMaxRangeBlocks;
}

struct Range {
  int64_t begin, end;
};

// The calling block's share of `count` items.
FS_DEVICE Range block_range(int64_t count) {
  const int64_t block = blockIdx.x, blocks = gridDim.x;
  return {count * block / blocks, count * (block + 1) / blocks};
}

// Sum over the lanes up to and including the calling one. Every lane of the warp must call it.
template <typename T>
FS_DEVICE T warp_scan(T value) {
  const int lane = lane_number();
  for (int delta = 1; delta < kWarp; delta *= 2) {
    const T other = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(delta));
    if (lane >= delta) value += other;
  }
  return value;
}

struct BlockScan {
  int64_t before;  // sum over the threads of lower number
  int64_t total;   // over the block
};

// Prefix sums over the block. Every thread must call it; calls may follow one another.
FS_DEVICE BlockScan block_scan(int64_t value) {
  FS_SHARED(int64_t, warp_sums, kWarps);
  const int lane = lane_number(), warp = warp_in_block();
  const int64_t inclusive = warp_scan(value);
  if (lane == kWarp - 1) warp_sums[warp] = inclusive;
  __syncthreads();
  int64_t before = inclusive - value, total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  __syncthreads();  // the next call writes warp_sums
  return {before, total};
}

FS_DEVICE int64_t block_sum(int64_t value) { return block_scan(value).total; }

// Sum of the ranges of the blocks before the calling one. Every thread must call it.
FS_DEVICE int64_t sum_before(const int64_t* range_sums) {
  int64_t sum = 0;
  for (unsigned block = threadIdx.x; block < blockIdx.x; block += kThreads) sum += range_sums[block];
  return block_sum(sum);
}

}  // namespace fs

#endif  // FS_CUDA_BLOCK_SUMS_CUH_
