// Which of a node's neighbours are taken: positions 0 .. degree - 1 in its neighbour list.
//
// Without replacement: Floyd's selection (Bentley & Floyd, CACM 1987). Its work depends on the fanout, not on the
// degree: for j = degree - fanout .. degree - 1 draw t uniform in 0 .. j; take t, or j when t was taken before.
// A node with no more neighbours than the fanout takes them all, in canonical order, and draws nothing.
#ifndef FS_CORE_PICK_H_
#define FS_CORE_PICK_H_

#include <stdint.h>

#include "fastsample.h"
#include "philox.h"
#include "platform.h"

namespace fs {

constexpr int64_t kTakeAll = FS_TAKE_ALL;

FS_HD int64_t num_picks(int64_t degree, int64_t fanout, bool replace) {
  if (fanout == kTakeAll) return degree;
  if (replace) return degree > 0 ? fanout : 0;
  return degree < fanout ? degree : fanout;
}

FS_HD bool takes_all(int64_t degree, int64_t fanout, bool replace) {
  return fanout == kTakeAll || (!replace && degree <= fanout);
}

// Membership by scanning what was taken: fastest while the fanout is small.
struct ScanTaken {
  const int64_t* taken;
  FS_HD bool insert(int64_t position, int64_t num_taken) {
    for (int64_t i = 0; i < num_taken; ++i) {
      if (taken[i] == position) return false;
    }
    return true;
  }
};

// Picks `fanout` distinct positions out of `degree` > fanout. `taken.insert(p, i)` answers whether p is new among the
// i positions taken so far, and remembers it. Output order is the order of the draws.
template <typename Taken>
FS_HD void pick_distinct(NodeStream& stream, int64_t degree, int64_t fanout, Taken& taken, int64_t* out) {
  for (int64_t i = 0; i < fanout; ++i) {
    const int64_t last = degree - fanout + i;
    const int64_t drawn = static_cast<int64_t>(stream.below(static_cast<uint64_t>(last) + 1));
    if (taken.insert(drawn, i)) {
      out[i] = drawn;
    } else {
      taken.insert(last, i);  // `last` is larger than everything drawn before, hence new
      out[i] = last;
    }
  }
}

FS_HD void pick_with_replacement(NodeStream& stream, int64_t degree, int64_t fanout, int64_t* out) {
  for (int64_t i = 0; i < fanout; ++i) out[i] = static_cast<int64_t>(stream.below(static_cast<uint64_t>(degree)));
}

}  // namespace fs

#endif  // FS_CORE_PICK_H_
