// Prefix sums over the items of a whole grid in one kernel (Merrill and Garland, "Single-pass parallel prefix scan with
// decoupled look-back", 2016): counts become places without a launch between.
//
// The items are cut into tiles. A block takes the next tile by a ticket, writes down the tile's sum, and reads the sums
// of the tiles before it, backwards, up to one that covers everything before. Tickets are given in order, so the holder
// of every tile that a block waits for has begun: blocks need not be resident all at once.
#ifndef FS_CUDA_TILE_SCAN_CUH_
#define FS_CUDA_TILE_SCAN_CUH_

#include "block_sums.cuh"

namespace fs {

constexpr int kStripes = 4;  // items of a thread in a tile
constexpr int64_t kTileItems = int64_t{kThreads} * kStripes;
constexpr unsigned kLookNap = 20;  // nanoseconds between two looks at a sum

inline int64_t num_tiles(int64_t items) { return items < 1 ? 1 : (items + kTileItems - 1) / kTileItems; }

// Words of one scan of at most `most_items` items; all of them start as ~0.
inline int64_t scan_words(int64_t most_items) { return 1 + num_tiles(most_items); }

// Blocks for the tiles of at most `most_items` items.
inline int tile_blocks(int64_t most_items) { return blocks_for(num_tiles(most_items) * kThreads); }

// A block at the tiles: `while (scan.next()) { ... scan.place(...); ... }`. All threads call all functions.
class TileScan {
 public:
  // words: [scan_words]; num_items: the same in every block, at most what the words are for.
  FS_DEVICE TileScan(uint64_t* words, int64_t num_items) : ticket_(words), sums_(words + 1) {
    num_tiles_ = num_items < 1 ? 1 : (num_items + kTileItems - 1) / kTileItems;
  }

  // Takes a tile; false: there is none left. Every tile that is taken must be placed. Without items there is one tile.
  FS_DEVICE bool next() {
    FS_SHARED(int64_t, taken, 1);
    if (threadIdx.x == 0) taken[0] = static_cast<int64_t>(atomic_add(ticket_, 1) + 1);
    __syncthreads();
    tile_ = taken[0];
    return tile_ < num_tiles_;
  }

  // The thread's item of a stripe. Those of a warp lie side by side, stripe after stripe.
  FS_DEVICE int64_t item(int stripe) const {
    return tile_ * kTileItems + int64_t{warp_in_block()} * kWarp * kStripes + int64_t{stripe} * kWarp + lane_number();
  }

  // before[i]: the sum of all items before item(i), where counts[i] is that item's own; 0 of items that there are not.
  // T: holds the sum of a tile.
  template <typename T>
  FS_DEVICE void place(const T (&counts)[kStripes], int64_t (&before)[kStripes]) {
    T of_warp = 0;
    T in_warp[kStripes];
    FS_UNROLL
    for (int i = 0; i < kStripes; ++i) {
      const T inclusive = warp_scan(counts[i]);
      in_warp[i] = of_warp + inclusive - counts[i];
      of_warp += __shfl_sync(kAllLanes, inclusive, kWarp - 1);
    }
    const BlockScan warps = block_scan(lane_number() == 0 ? static_cast<int64_t>(of_warp) : 0);
    FS_SHARED(int64_t, before_tile, 1);
    if (warp_in_block() == 0) {
      const int64_t sum = sum_before_tile(warps.total);
      if (lane_number() == 0) before_tile[0] = sum;
    }
    __syncthreads();
    const int64_t first = before_tile[0] + __shfl_sync(kAllLanes, warps.before, 0);
    FS_UNROLL
    for (int i = 0; i < kStripes; ++i) before[i] = first + static_cast<int64_t>(in_warp[i]);
    end_ = before_tile[0] + warps.total;
  }

  // Whether the tile is the last one; then total(), after place(), is the sum of all items.
  FS_DEVICE bool is_last() const { return tile_ == num_tiles_ - 1; }
  FS_DEVICE int64_t total() const { return end_; }

 private:
  static constexpr uint64_t kNoSum = ~0ull;
  // The sum of a tile alone, or of all tiles up to it: a word says which, and is written as one.
  FS_DEVICE static uint64_t of_tile(int64_t sum) { return static_cast<uint64_t>(sum) << 1; }
  FS_DEVICE static uint64_t up_to_tile(int64_t sum) { return of_tile(sum) | 1; }

  // Called by the first warp alone.
  FS_DEVICE int64_t sum_before_tile(int64_t own) const {
    const int lane = lane_number();
    if (lane == 0) store_now(sums_ + tile_, tile_ == 0 ? up_to_tile(own) : of_tile(own));
    if (tile_ == 0) return 0;
    int64_t before = 0;
    for (int64_t last = tile_ - 1;; last -= kWarp) {
      const uint64_t word = last < lane ? up_to_tile(0) : wait_for(sums_ + last - lane);
      const uint32_t whole = __ballot_sync(kAllLanes, static_cast<int>(word & 1));
      const int nearest = whole == 0 ? kWarp : __ffs(static_cast<int>(whole)) - 1;
      const int64_t sums = warp_scan(lane <= nearest ? static_cast<int64_t>(word >> 1) : int64_t{0});
      before += __shfl_sync(kAllLanes, sums, kWarp - 1);
      if (whole != 0) break;
    }
    if (lane == 0) store_now(sums_ + tile_, up_to_tile(before + own));
    return before;
  }

  FS_DEVICE static uint64_t wait_for(const uint64_t* place) {
    uint64_t word = load_now(place);
    for (; word == kNoSum; word = load_now(place)) __nanosleep(kLookNap);
    return word;
  }

  uint64_t* ticket_;  // tiles taken, minus one
  uint64_t* sums_;    // [tiles]
  int64_t num_tiles_, tile_ = 0, end_ = 0;
};

}  // namespace fs

#endif  // FS_CUDA_TILE_SCAN_CUH_
