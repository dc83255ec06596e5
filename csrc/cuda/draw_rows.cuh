// Uniform draws of one row by a group of lanes, equal to core/pick.h bit for bit.
//
// Lane i computes draw i by itself: word i of the node's stream is known without the words before it. That holds while
// no draw is rejected (core/philox.h), which a row meets with probability fanout * degree / 2^32; then, and for degrees
// of 2^32 and more, the row is drawn again, one pick at a time.
//
// Floyd's selection takes the drawn t_i, or last_i = degree - fanout + i when t_i was taken before. t_i was taken iff
// an earlier draw has the same value, or it is last_j of an earlier j and draw j was replaced. Whether a draw was
// replaced thus depends on at most one earlier draw, and the answers are passed along in a few rounds of ballots.
// The work depends on the fanout and not on the degree.
#ifndef FS_CUDA_DRAW_ROWS_CUH_
#define FS_CUDA_DRAW_ROWS_CUH_

#include "device.cuh"
#include "philox.h"
#include "pick.h"

namespace fs {

// Lanes of one warp that work on one row; width is a power of two.
struct LaneGroup {
  int width;
  int lane;       // in the group
  int base;       // lane of the warp with which the group begins
  uint32_t mask;  // of the group's lanes
};

FS_DEVICE LaneGroup lane_group(int width) {
  const int lane = lane_number(), base = lane / width * width;
  return {width, lane - base, base, width == kWarp ? kAllLanes : ((1u << width) - 1u) << base};
}

// Width of the groups for a fanout of at most kWarp.
FS_HD int group_width(int64_t fanout) {
  int width = 4;
  while (width < fanout && width < kWarp) width *= 2;
  return width;
}

// A row that is drawn from: degree > fanout, or with replacement degree > 0.
struct DrawnRow {
  StageKey key;
  uint64_t orig_id;
  int64_t degree, fanout;
  bool replace;
};

// Word `index` of the node's stream.
FS_DEVICE uint32_t stream_word(const DrawnRow& row, int64_t index) {
  const uint64_t block = static_cast<uint64_t>(index) >> 2;
  uint32_t c[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(row.orig_id),
                   static_cast<uint32_t>(row.orig_id >> 32)};
  philox_block(row.key, c);
  const int word = static_cast<int>(index & 3);
  return word < 2 ? (word == 0 ? c[0] : c[1]) : (word == 2 ? c[2] : c[3]);
}

// Draw `index` as if no draw before it was rejected. False: this one is.
FS_DEVICE bool draw_alone(const DrawnRow& row, int64_t index, uint32_t* drawn) {
  const uint32_t bound = static_cast<uint32_t>(row.replace ? row.degree : row.degree - row.fanout + index + 1);
  const uint64_t product = static_cast<uint64_t>(stream_word(row, index)) * bound;
  const uint32_t low = static_cast<uint32_t>(product);
  *drawn = static_cast<uint32_t>(product >> 32);
  return low >= bound || low >= (0u - bound) % bound;
}

// All draws, one by one, into positions [fanout].
FS_DEVICE void draw_in_order(const DrawnRow& row, int64_t* positions) {
  NodeStream stream(row.key, row.orig_id);
  if (row.replace) {
    pick_with_replacement(stream, row.degree, row.fanout, positions);
  } else {
    ScanTaken scan{positions};
    pick_distinct(stream, row.degree, row.fanout, scan, positions);
  }
}

// Whether draw `index`, which gave t, is replaced. `repeats`: an earlier draw gave t too. `link` is the earlier draw
// whose last is t, or -1; where it is none of this group's draws, `repeats` has answered for it. All lanes call it; the
// group's draws begin at `first`.
FS_DEVICE bool is_replaced(const LaneGroup& group, bool repeats, int64_t link, int64_t first) {
  const int from = link >= first ? static_cast<int>(link - first) : -1;
  bool replaced = repeats;
  for (int round = 0; round < group.width; ++round) {
    const uint32_t known = __ballot_sync(group.mask, replaced) >> group.base;
    const bool next = repeats || (from >= 0 && (known >> from & 1u) != 0);
    const bool settled = __all_sync(group.mask, next == replaced) != 0;
    replaced = next;
    if (settled) break;
  }
  return replaced;
}

// The group's lane i gets pick i of a row of at most `width` picks; lanes from the fanout on get nothing of use.
FS_DEVICE int64_t draw_by_lanes(const LaneGroup& group, const DrawnRow& row) {
  const bool draws = group.lane < row.fanout, fits = row.degree <= int64_t{UINT32_MAX};
  uint32_t drawn = 0;
  const bool accepted = !draws || !fits || draw_alone(row, group.lane, &drawn);
  if (!__all_sync(group.mask, accepted && fits)) {
    int64_t positions[kWarp];
    draw_in_order(row, positions);
    return draws ? positions[group.lane] : 0;
  }
  if (row.replace) return drawn;
  bool repeats = false;
  for (int j = 0; j < row.fanout; ++j) {
    const uint32_t other = __shfl_sync(group.mask, drawn, j, group.width);
    repeats = repeats || (j < group.lane && other == drawn);
  }
  const int64_t first_last = row.degree - row.fanout, link = static_cast<int64_t>(drawn) - first_last;
  const bool replaced = is_replaced(group, draws && repeats, link < group.lane ? link : -1, 0);
  return replaced ? first_last + group.lane : drawn;
}

// `fanout` picks of any number into positions [fanout], by a whole warp; visible to its lanes on return.
FS_DEVICE void draw_by_warp(const LaneGroup& warp, const DrawnRow& row, int64_t* positions) {
  bool in_order = row.degree > int64_t{UINT32_MAX};
  const int64_t first_last = row.degree - row.fanout;
  for (int64_t first = 0; first < row.fanout && !in_order; first += kWarp) {
    const int64_t index = first + warp.lane;
    const bool draws = index < row.fanout;
    uint32_t drawn = 0;
    const bool accepted = !draws || draw_alone(row, index, &drawn);
    in_order = !__all_sync(warp.mask, accepted);
    if (in_order) break;
    int64_t pick = drawn;
    if (!row.replace) {
      bool repeats = false;
      for (int64_t j = 0; j < first; ++j) repeats = repeats || positions[j] == pick;
      for (int j = 0; j < kWarp; ++j) {
        const uint32_t other = __shfl_sync(warp.mask, drawn, j);
        repeats = repeats || (j < warp.lane && other == drawn);
      }
      const int64_t link = pick - first_last;
      if (is_replaced(warp, draws && repeats, link < index ? link : -1, first)) pick = first_last + index;
    }
    __syncwarp(warp.mask);  // all have read what the next line adds to
    if (draws) positions[index] = pick;
    __syncwarp(warp.mask);
  }
  if (in_order && warp.lane == 0) draw_in_order(row, positions);
  __syncwarp(warp.mask);
}

}  // namespace fs

#endif  // FS_CUDA_DRAW_ROWS_CUH_
