// Walk slots: alias tables (alias.h) that hold ids instead of positions, so that drawing a neighbour by weight reads
// one place instead of two. Same thresholds, same draws: the neighbour is indices[begin + alias_draw(...)].
//
// Of int32 ids a slot is a word of 64 bits, which lies in one cache line: own id + 1, above it other id + 1, each in as
// many bits as num_rows has, and at the top as many upper bits of the threshold as there is room for: 20 of a graph of
// 2^21 nodes, 16 up to 2^24. They decide a draw unless its own upper bits are the same; then the threshold is read,
// which lies whole in an array behind the words.
//
// The slots of a row without a positive weight have no ids: such a row gives none, and draws nothing.
#ifndef FS_CORE_WALK_SLOT_H_
#define FS_CORE_WALK_SLOT_H_

#include <stdint.h>

#include "platform.h"

namespace fs {

// The bits of a word.
struct WalkSlotBits {
  int id;    // of an id + 1
  int open;  // of a threshold's lower bits that a word lacks

  FS_HD WalkSlotBits() : id(0), open(0) {}
  FS_HD explicit WalkSlotBits(int64_t num_rows) : id(0) {
    while (id < 32 && num_rows >> id != 0) ++id;
    open = id > 16 ? 2 * id - 32 : 0;
  }

  // Ids of -1: none.
  FS_HD uint64_t word(uint32_t threshold, int64_t own, int64_t other) const {
    const uint64_t upper = uint64_t{threshold} >> open << open;
    return upper << 32 | static_cast<uint64_t>(other + 1) << id | static_cast<uint64_t>(own + 1);
  }
};

// The slots of a graph's edges, as fs_walk_slots made them, or those of one row.
template <typename Id>
class WalkSlots;

template <>
class WalkSlots<int32_t> {
 public:
  static constexpr bool kCrossesLines = false;  // of the cache
  static constexpr int64_t kReadBytes = 8;      // of an edge, but for few picks

  FS_HD WalkSlots() : words_(nullptr), thresholds_(nullptr), id_mask_(0) {}  // none
  FS_HD WalkSlots(const void* slots, int64_t num_rows, int64_t num_edges)
      : words_(static_cast<const uint64_t*>(slots)),
        thresholds_(reinterpret_cast<const uint32_t*>(words_ + num_edges)),
        bits_(num_rows),
        id_mask_((uint64_t{1} << bits_.id) - 1) {}

  FS_HD bool is_none() const { return words_ == nullptr; }
  // From a position on; and the same where what picks read of an edge, kReadBytes, has been copied.
  FS_HD WalkSlots from(int64_t position) const { return {words_ + position, thresholds_ + position, *this}; }
  FS_HD WalkSlots copied(const void* copy) const { return {static_cast<const uint64_t*>(copy), thresholds_, *this}; }

  FS_HD const void* first(int64_t position) const { return words_ + position; }  // byte of what a pick reads
  FS_HD const void* last(int64_t position) const { return words_ + position; }
  FS_HD bool has_ids(int64_t position) const { return (words_[position] & id_mask_) != 0; }

  // The id that a word takes at a position; -1: the row's weights are all 0.
  FS_HD int64_t pick(int64_t position, uint32_t word) const {
    const uint64_t slot = words_[position];
    uint32_t threshold = static_cast<uint32_t>(slot >> 32);
    if (__builtin_expect(uint64_t{threshold ^ word} >> bits_.open == 0, 0)) threshold = thresholds_[position];
    const int shift = bits_.id & -static_cast<int>(word >= threshold);  // a coin toss: no branch
    return static_cast<int64_t>(slot >> shift & id_mask_) - 1;
  }

 private:
  FS_HD WalkSlots(const uint64_t* words, const uint32_t* thresholds, const WalkSlots& like)
      : words_(words), thresholds_(thresholds), bits_(like.bits_), id_mask_(like.id_mask_) {}

  const uint64_t* words_;       // [num_edges]
  const uint32_t* thresholds_;  // [num_edges]
  WalkSlotBits bits_;
  uint64_t id_mask_;
};

struct LongWalkSlot {
  uint32_t threshold;
  uint32_t unused;
  int64_t own, other;  // taken where the word is below the threshold, and else; -1: none
};
static_assert(sizeof(LongWalkSlot) == 24, "the size of fs_walk_slots");

template <>
class WalkSlots<int64_t> {
 public:
  static constexpr bool kCrossesLines = true;
  static constexpr int64_t kReadBytes = sizeof(LongWalkSlot);

  FS_HD WalkSlots() : slots_(nullptr) {}
  FS_HD WalkSlots(const void* slots, int64_t, int64_t) : slots_(static_cast<const LongWalkSlot*>(slots)) {}

  FS_HD bool is_none() const { return slots_ == nullptr; }
  FS_HD WalkSlots from(int64_t position) const { return {slots_ + position, 0, 0}; }
  FS_HD WalkSlots copied(const void* copy) const { return {copy, 0, 0}; }

  FS_HD const void* first(int64_t position) const { return slots_ + position; }
  FS_HD const void* last(int64_t position) const { return &slots_[position].other; }
  FS_HD bool has_ids(int64_t position) const { return slots_[position].own >= 0; }

  FS_HD int64_t pick(int64_t position, uint32_t word) const {
    const LongWalkSlot& slot = slots_[position];
    const int64_t takes_other = -static_cast<int64_t>(word >= slot.threshold);
    return (slot.own & ~takes_other) | (slot.other & takes_other);
  }

 private:
  const LongWalkSlot* slots_;  // [num_edges]
};

// A neighbour by weight, -1 where the row is empty or its weights are all 0 (then nothing is drawn). Stream has next()
// and below(n), as NodeStream.
template <typename Id, typename Stream>
FS_HD int64_t walk_draw(Stream& stream, const WalkSlots<Id>& slots, int64_t begin, int64_t degree) {
  if (degree == 0) return -1;
  Stream ahead = stream;
  const int64_t position = begin + static_cast<int64_t>(ahead.below(static_cast<uint64_t>(degree)));
  if (!slots.has_ids(position)) return -1;
  const uint32_t word = ahead.next();
  stream = ahead;
  return slots.pick(position, word);
}

}  // namespace fs

#endif  // FS_CORE_WALK_SLOT_H_
