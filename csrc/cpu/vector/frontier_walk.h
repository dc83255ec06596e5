// A frontier as fastsample_subgraph.h defines it: a pop finds the slot in sums over the weights (slot_sums.h), which
// stay in the first cache, and its walker moves to a neighbour that has been read ahead.
//
// What a pop waits for is the pop before it, some 50 cycles; memory must not come into it. So every slot knows its next
// two nodes and the position of the one behind them, and a pop begins the reading of one more: the line of `indices`
// was requested when the position was drawn; some pops later the node is read and the line of `indptr` requested; and
// kAhead later its row, from which the next position is drawn. A slot that is popped more often than that (a hub just
// entered) reads what it lacks at once.
//
// Nor must wrong guesses of branches. A slot that lacks a next node waits in one of two queues, once, however many it
// lacks; every pop takes one slot from each, which is as many nodes as pops take.
//
// Words of a slot's stream are used in the order of its walker's hops, so that reading ahead changes no draw; what is
// read behind the last pop is refused by nobody.
#ifndef FS_CPU_VECTOR_FRONTIER_WALK_H_
#define FS_CPU_VECTOR_FRONTIER_WALK_H_

#include "id_lanes.h"
#include "lone_walkers.h"
#include "slot_sums.h"
#include "slot_words.h"

namespace fs {
namespace {

constexpr int64_t kUnknownChange = INT64_MIN;  // the slot's next node is not known yet, or is special
constexpr uint64_t kAnyWeight = kBadWeight - 1;
constexpr uint64_t kNarrowTotal = (1u << 31) - 1;  // of weights whose sums take 32 bits

// Slots that wait for memory, in order; fewer than kRoom.
class WaitingSlots {
 public:
  static constexpr uint32_t kRoom = 64;

  // Without a branch: whether a slot comes is as good as random.
  FS_INLINE void push(int64_t slot, bool comes) {
    slots_[end_ % kRoom] = static_cast<uint32_t>(slot);
    end_ += comes;
  }
  FS_INLINE uint32_t count() const { return end_ - begin_; }
  FS_INLINE int64_t pop() { return slots_[begin_++ % kRoom]; }

 private:
  uint32_t begin_ = 0, end_ = 0;
  uint32_t slots_[kRoom];
};

template <typename Id>
class FrontierWalk {
 public:
  explicit FrontierWalk(const FrontierTask<Id>& task)
      : task_(task),
        slots_(task.slots),
        changes_(task.changes),
        words_(task.hops_key, task.words),
        pops_(task.pops_key, 0),
        most_narrow_(kNarrowTotal / static_cast<uint64_t>(task.size)),
        largest_(most_narrow_) {}

  DrawnVisits run() {
    for (int64_t first = 0; first < task_.size; first += kChunkDraws) {
      const int64_t rest = task_.size - first;
      if (!start(first, rest < kChunkDraws ? rest : kChunkDraws)) return {-1, 0};
    }
    count_ = task_.size;
    Ended ended = kTooNarrow;
    if (largest_ == most_narrow_) {
      ended = task_.size > kFanOut && task_.size <= kFanOut * kFanOut ? pop_all<uint32_t, 1>() : pop_all<uint32_t, 0>();
    }
    if (ended == kTooNarrow) ended = pop_all<uint64_t, 0>();
    return {ended == kRefused ? -1 : count_, count_ - task_.size};
  }

 private:
  using Slot = FrontierSlot<Id>;
  enum Ended { kDone, kTooNarrow, kRefused };
  static constexpr uint32_t kAhead = 8;    // pops between the two readings
  static constexpr int64_t kLacking = 16;  // nodes that all slots lack together, once so many were popped

  // Slots first .. first + count - 1: their roots, and two nodes ahead. False: a root is refused.
  bool start(int64_t first, int64_t count) {
    Id* roots = task_.visits + first;
    if (!draw_roots(task_.graph, task_.roots, first, count, roots)) return false;
    words_.start(first, count, 0);
    for (int64_t i = 0; i < count; ++i) {
      Slot& slot = slots_[first + i];
      slot.num_known = 0;
      slot.words_used = 0;
      slot.weight = 0;
      changes_[first + i] = kUnknownChange;
      const uint64_t weight = enter_row(first + i, slot, roots[i]);
      if (weight == kBadWeight) return false;
      if (weight > largest_) largest_ = kAnyWeight;
      slot.weight = weight;
    }
    for (int known = 0; known < 2; ++known) {
      for (int64_t i = first; i < first + count; ++i) {
        if (slots_[i].stage == kAtPosition) read_node(slots_[i], i);
      }
      for (int64_t i = first; i < first + count; ++i) {
        if (slots_[i].stage == kAtNode) read_row(slots_[i], i);
      }
    }
    return true;
  }

  // The weight of a node that the walker comes to, kBadWeight where its offsets are none; draws the position behind it.
  FS_INLINE uint64_t enter_row(int64_t at, Slot& slot, Id node) {
    const int64_t begin = task_.graph.indptr[node], end = task_.graph.indptr[node + 1];
    slot.stage = kAtEnd;
    if (__builtin_expect(begin < 0 || end < begin || end > task_.graph.num_edges, 0)) return kBadWeight;
    const uint64_t degree = static_cast<uint64_t>(end - begin);
    if (degree == 0) return 0;
    typename SlotWords<kSlotWords>::Stream stream(words_, at, static_cast<uint64_t>(at), &slot.words_used);
    slot.position = begin + static_cast<int64_t>(draw_below(stream, degree));
    __builtin_prefetch(static_cast<const void*>(task_.graph.indices + slot.position));
    slot.stage = kAtPosition;
    return degree < task_.max_degree ? degree : task_.max_degree;
  }

  FS_INLINE void read_node(Slot& slot, int64_t at) {
    slot.found = task_.graph.indices[slot.position];
    slot.stage = kAtNode;
    if (__builtin_expect(!task_.graph.has_row(slot.found), 0)) {
      slot.stage = kAtEnd;
      know(slot, at, slot.found, kBadWeight);
      return;
    }
    __builtin_prefetch(task_.graph.indptr + slot.found);
    __builtin_prefetch(task_.graph.indptr + slot.found + 1);
  }

  FS_INLINE void read_row(Slot& slot, int64_t at) {
    const Id node = slot.found;
    know(slot, at, node, enter_row(at, slot, node));
  }

  // One more of the slot's next nodes is known.
  FS_INLINE void know(Slot& slot, int64_t at, Id node, uint64_t weight) {
    slot.nodes[slot.num_known] = node;
    slot.weights[slot.num_known] = weight;
    ++slot.num_known;
    changes_[at] = change_of(slot);
  }

  // Of its weight when it advances to a known node.
  FS_INLINE int64_t change_of(const Slot& slot) const {
    if (__builtin_expect(slot.weights[0] > largest_, 0)) return kUnknownChange;
    return static_cast<int64_t>(slot.weights[0] - slot.weight);
  }

  // Pops until all is done, or up to the first weight that is too large for sums of type Sum.
  template <typename Sum, int kUpper>
  Ended pop_all() {
    SlotSums<Sum, kUpper> sums(task_.sums, task_.size, [&](int64_t i) { return slots_[i].weight; });
    while (count_ < task_.budget && sums.total() > 0) {
      const int64_t at = sums.find(draw_below(pops_, sums.total()));
      int64_t change = changes_[at];
      if (__builtin_expect(change == kUnknownChange, 0)) {
        const uint64_t weight = next_weight(slots_[at], at);
        if (weight == kBadWeight) return kRefused;
        if (weight > largest_) {
          largest_ = kAnyWeight;
          advance(at);
          return kTooNarrow;
        }
        change = static_cast<int64_t>(weight - slots_[at].weight);
      }
      sums.add(at, change);
      advance(at);
      read_ahead();
    }
    return kDone;
  }

  // The slot that was popped takes its first known node.
  FS_INLINE void advance(int64_t at) {
    Slot& slot = slots_[at];
    task_.visits[count_++] = slot.nodes[0];
    slot.weight = slot.weights[0];
    slot.nodes[0] = slot.nodes[1];
    slot.weights[0] = slot.weights[1];
    --slot.num_known;
    const uint64_t none = opaque_mask(slot.num_known == 0), change = static_cast<uint64_t>(change_of(slot));
    changes_[at] = static_cast<int64_t>((change & ~none) | (static_cast<uint64_t>(kUnknownChange) & none));
    at_position_.push(at, (slot.num_known == 1) & (slot.stage != kAtEnd));  // with less it waits already
  }

  // Slots may have read at once what they wait for.
  FS_INLINE void read_ahead() {
    if (__builtin_expect(count_ - task_.size <= kLacking, 0)) return;
    if (__builtin_expect(at_position_.count() > 0, 1)) {
      const int64_t at = at_position_.pop();
      if (__builtin_expect(slots_[at].stage == kAtPosition, 1)) read_node(slots_[at], at);
      at_node_.push(at, true);
    }
    if (__builtin_expect(at_node_.count() > kAhead, 1)) {
      const int64_t at = at_node_.pop();
      Slot& slot = slots_[at];
      if (__builtin_expect(slot.stage == kAtNode, 1)) read_row(slot, at);
      at_position_.push(at, (slot.num_known < 2) & (slot.stage != kAtEnd));
    }
  }

  // Of a slot whose next node may not have been read.
  __attribute__((noinline)) uint64_t next_weight(Slot& slot, int64_t at) {
    if (slot.num_known == 0 && slot.stage == kAtPosition) read_node(slot, at);
    if (slot.num_known == 0 && slot.stage == kAtNode) read_row(slot, at);
    return slot.weights[0];
  }

  const FrontierTask<Id>& task_;
  Slot* const slots_;
  int64_t* const changes_;
  SlotWords<kSlotWords> words_;
  StreamWords pops_;
  WaitingSlots at_position_, at_node_;
  int64_t count_ = 0;
  const uint64_t most_narrow_;  // a weight of which `size` together are narrow
  uint64_t largest_;            // weight that the sums can take
};

template <typename Id>
DrawnVisits frontier_walk(const FrontierTask<Id>& task) {
  return FrontierWalk<Id>(task).run();
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_FRONTIER_WALK_H_
