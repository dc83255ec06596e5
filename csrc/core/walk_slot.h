// Walk slots: alias tables (alias.h) that hold ids instead of positions, so that drawing a neighbour by weight reads
// one place instead of two. Same thresholds, same draws: the neighbour is indices[begin + alias_draw(...)].
//
// The slots of a row without a positive weight have no ids: such a row gives none, and draws nothing.
#ifndef FS_CORE_WALK_SLOT_H_
#define FS_CORE_WALK_SLOT_H_

#include <stdint.h>

#include "platform.h"

namespace fs {

template <typename Id>
struct WalkSlot;

template <>
struct WalkSlot<int32_t> {
  uint32_t threshold;
  int32_t own, other;  // taken where the word is below the threshold, and else; -1: the row's weights are all 0

  FS_HD int64_t pick(uint32_t word) const {
    const int32_t takes_other = -static_cast<int32_t>(word >= threshold);  // a coin toss: no branch
    return (own & ~takes_other) | (other & takes_other);
  }
};

template <>
struct WalkSlot<int64_t> {
  uint32_t threshold;
  uint32_t unused;
  int64_t own, other;

  FS_HD int64_t pick(uint32_t word) const {
    const int64_t takes_other = -static_cast<int64_t>(word >= threshold);
    return (own & ~takes_other) | (other & takes_other);
  }
};

static_assert(sizeof(WalkSlot<int32_t>) == 12 && sizeof(WalkSlot<int64_t>) == 24, "the sizes of fs_walk_slots");

// A neighbour by weight, -1 where the row is empty or its weights are all 0 (then nothing is drawn). Stream has next()
// and below(n), as NodeStream.
template <typename Id, typename Stream>
FS_HD int64_t walk_draw(Stream& stream, const WalkSlot<Id>* row, int64_t degree) {
  if (degree == 0) return -1;
  Stream ahead = stream;
  const WalkSlot<Id>& slot = row[ahead.below(static_cast<uint64_t>(degree))];
  if (slot.own < 0) return -1;
  const uint32_t word = ahead.next();
  stream = ahead;
  return slot.pick(word);
}

}  // namespace fs

#endif  // FS_CORE_WALK_SLOT_H_
