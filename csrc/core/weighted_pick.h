// Which of a node's neighbours are taken when edges have weights: positions 0 .. degree - 1 in its neighbour list.
//
// With replacement: alias draws. Without: alias draws, throwing away what was taken before. Rows whose weight lies in
// few edges would throw away almost everything, so after 4 * fanout draws the rest is drawn from a binary tree of sums
// over the edges not taken. Throwing away repeats and drawing among the rest are one distribution, successive sampling.
//
// How many: num_picks(m, fanout, replace) of pick.h, where m is the number of positive weights. takes_all(m, ...) means
// list_positive, which draws nothing. Stream is NodeStream, or any type with its next() and below(n).
#ifndef FS_CORE_WEIGHTED_PICK_H_
#define FS_CORE_WEIGHTED_PICK_H_

#include <stdint.h>

#include "alias.h"
#include "pick.h"
#include "platform.h"

namespace fs {

constexpr int64_t kAliasDrawsPerPick = 4;

template <typename Weight>
struct WeightedRow {
  const Weight* weights;    // [degree] finite, >= 0
  const AliasEntry* table;  // [degree]
  int64_t degree;
};

// All positions of positive weight, in canonical order; returns how many.
template <typename Weight>
FS_HD int64_t list_positive(const Weight* weights, int64_t degree, int64_t* out) {
  int64_t count = 0;
  for (int64_t i = 0; i < degree; ++i) {
    if (weights[i] > 0) out[count++] = i;
  }
  return count;
}

// `fanout` positions of a row with a positive weight.
template <typename Stream>
FS_HD void pick_weighted_with_replacement(Stream& stream, const AliasEntry* table, int64_t degree, int64_t fanout,
                                          int64_t* out) {
  for (int64_t i = 0; i < fanout; ++i) out[i] = alias_draw(stream, table, degree);
}

// Alias draws without repeats, at most kAliasDrawsPerPick * fanout of them; returns how many positions were taken.
// `taken` as in pick_distinct.
template <typename Stream, typename Taken>
FS_HD int64_t draw_weighted_distinct(Stream& stream, const AliasEntry* table, int64_t degree, int64_t fanout,
                                     Taken& taken, int64_t* out) {
  int64_t num_taken = 0;
  for (int64_t draw = 0; draw < kAliasDrawsPerPick * fanout && num_taken < fanout; ++draw) {
    const int64_t position = alias_draw(stream, table, degree);
    if (taken.insert(position, num_taken)) out[num_taken++] = position;
  }
  return num_taken;
}

// Sums of weights in a complete binary tree: node n has children 2 n and 2 n + 1, the root is node 1, and leaf i is
// node num_leaves + i. Rounding is fixed (no fused multiply-add), so that host and device take the same path.
class SumTree {
 public:
  // Doubles of scratch for a row.
  static FS_HD int64_t size(int64_t degree) { return 2 * leaves(degree); }

  // Over nodes [size(degree)] as they are: filled and summed up by the caller.
  FS_HD SumTree(int64_t degree, double* nodes) : nodes_(nodes), num_leaves_(leaves(degree)) {}

  template <typename Weight>
  FS_HD SumTree(const Weight* weights, int64_t degree, double* nodes) : SumTree(degree, nodes) {
    for (int64_t i = 0; i < degree; ++i) nodes_[num_leaves_ + i] = static_cast<double>(weights[i]);
    for (int64_t i = degree; i < num_leaves_; ++i) nodes_[num_leaves_ + i] = 0;
  }

  FS_HD int64_t num_leaves() const { return num_leaves_; }

  // Before sum_up: leaves the position out.
  FS_HD void leave_out(int64_t position) { nodes_[num_leaves_ + position] = 0; }

  FS_HD void sum_up() {
    for (int64_t node = num_leaves_ - 1; node >= 1; --node) nodes_[node] = nodes_[2 * node] + nodes_[2 * node + 1];
  }

  // Draws a position and takes it out of the tree. Needs a positive sum.
  template <typename Stream>
  FS_HD int64_t take(Stream& stream) {
    const uint64_t low = stream.next();
    const uint64_t word = low | static_cast<uint64_t>(stream.next()) << 32;
    double x = times(static_cast<double>(word >> 11) * 0x1p-53, nodes_[1]);
    int64_t node = 1;
    while (node < num_leaves_) {
      const double left = nodes_[2 * node], right = nodes_[2 * node + 1];
      // A sum of 0 is never entered, whatever rounding made of x: the leaf that is reached has a positive weight.
      const bool goes_left = left != 0 && (right == 0 || x < left);
      if (!goes_left) x -= left;
      node = 2 * node + (goes_left ? 0 : 1);
    }
    const int64_t position = node - num_leaves_;
    nodes_[node] = 0;
    for (node /= 2; node >= 1; node /= 2) nodes_[node] = nodes_[2 * node] + nodes_[2 * node + 1];
    return position;
  }

 private:
  // The smallest power of two >= degree.
  static FS_HD int64_t leaves(int64_t degree) {
    int64_t count = 1;
    while (count < degree) count *= 2;
    return count;
  }

  static FS_HD double times(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
  }

  double* nodes_;
  int64_t num_leaves_;
};

// Draws out[num_taken .. fanout) among the positions that are not in out[0 .. num_taken). The row has more than
// `fanout` positive weights. Scratch: tree [SumTree::size(degree)].
template <typename Stream, typename Weight>
FS_HD void draw_weighted_rest(Stream& stream, const WeightedRow<Weight>& row, int64_t fanout, int64_t num_taken,
                              double* tree, int64_t* out) {
  SumTree sums(row.weights, row.degree, tree);
  for (int64_t i = 0; i < num_taken; ++i) sums.leave_out(out[i]);
  sums.sum_up();
  for (int64_t i = num_taken; i < fanout; ++i) out[i] = sums.take(stream);
}

}  // namespace fs

#endif  // FS_CORE_WEIGHTED_PICK_H_
