// Numbers of nodes in order of first appearance: open addressing over a power of two of slots, linear probing, at most
// half full. Where the slots are as many as the graph's nodes, a node's slot is its id and nothing is ever probed.
#ifndef FS_CPU_NODE_INDEX_H_
#define FS_CPU_NODE_INDEX_H_

#include <stdint.h>

#include <algorithm>
#include <vector>

#include "platform.h"

namespace fs {

// A node id that the graph holds and should not; thrown, and refused by the entry point.
struct BadSource {
  int64_t id;
};

template <typename Id>
class NodeIndex {
 public:
  // direct_rows: up to so many rows there is a slot per node from the start.
  explicit NodeIndex(int64_t direct_rows = 0) : direct_rows_(static_cast<uint64_t>(direct_rows)) {}

  // Empty, for nodes of a graph of num_rows rows. Costs nothing but once in many times: a slot's word is base_ + the
  // node's number, and whatever is below base_ is from before.
  void start(int64_t num_rows) {
    num_rows_ = static_cast<uint64_t>(num_rows);
    size_t slots = std::max(slots_.size(), kLeastSlots);
    while (num_rows_ <= direct_rows_ && slots < num_rows_) slots *= 2;
    base_ += static_cast<int32_t>(count_);
    count_ = 0;
    if (slots > slots_.size() || static_cast<int64_t>(slots) + base_ > INT32_MAX) clear(slots);
    is_direct_ = slots_.size() >= num_rows_;
  }

  int64_t count() const { return count_; }
  Id node(int64_t i) const { return nodes_[static_cast<size_t>(i)]; }
  const Id* nodes() const { return nodes_.data(); }
  size_t bytes() const { return slots_.capacity() * sizeof(int32_t) + nodes_.capacity() * sizeof(Id); }

  bool is_direct() const { return is_direct_; }

  // Number of a node, negative: not in it.
  FS_INLINE int32_t find(Id node) const {
    for (uint64_t at = home(node);; at = (at + 1) & mask()) {
      const int32_t found = slots_[at] - base_;
      if (found < 0 || nodes_[static_cast<size_t>(found)] == node) return found;
    }
  }

  // Number of a node, which is entered if it is new: then it is count() - 1. Throws BadSource.
  FS_INLINE int32_t enter(Id node) {
    if (static_cast<uint64_t>(node) >= num_rows_) throw BadSource{static_cast<int64_t>(node)};
    for (uint64_t at = home(node);; at = (at + 1) & mask()) {
      const int32_t found = slots_[at] - base_;
      if (found >= 0) {
        if (nodes_[static_cast<size_t>(found)] == node) return found;
        continue;
      }
      make_room(1);
      slots_[at] = base_ + static_cast<int32_t>(count_);
      nodes_[static_cast<size_t>(count_++)] = node;
      if (!is_direct_ && static_cast<size_t>(count_) * 2 > slots_.size()) grow();
      return static_cast<int32_t>(count_) - 1;
    }
  }

  // Enters many nodes of a direct index that has room for them, without a branch on whether a node is new; each is to
  // be checked before. Nobody else may use the index meanwhile.
  class DirectEntries {
   public:
    explicit DirectEntries(NodeIndex* index)
        : index_(index),
          slots_(index->slots_.data()),
          nodes_(index->nodes_.data()),
          num_rows_(index->num_rows_),
          base_(index->base_),
          next_(static_cast<int32_t>(index->count_)) {}
    ~DirectEntries() { index_->count_ = next_; }

    // Number of a node, which is entered if it is new.
    FS_INLINE int32_t enter(Id node) {
      const int32_t found = slots_[node] - base_, if_new = found >> 31;  // all bits, or none
      const int32_t number = (next_ & if_new) | (found & ~if_new);
      slots_[node] = base_ + number;
      nodes_[next_] = node;
      next_ -= if_new;
      return number;
    }
    FS_INLINE void check(Id node) const {
      if (__builtin_expect(static_cast<uint64_t>(node) >= num_rows_, 0)) throw BadSource{static_cast<int64_t>(node)};
    }

    // What a vector kernel does the same with; `next` is the number of the next new node.
    struct Memory {
      int32_t* slots;
      Id* nodes;
      uint64_t num_rows;
      int32_t base, next;
    };
    FS_INLINE Memory memory() const { return {slots_, nodes_, num_rows_, base_, next_}; }
    FS_INLINE void go_on_with(int32_t next) { next_ = next; }

   private:
    NodeIndex* index_;
    int32_t* slots_;
    Id* nodes_;
    uint64_t num_rows_;
    int32_t base_, next_;
  };

  // The same for any index.
  class Entries {
   public:
    explicit Entries(NodeIndex* index) : index_(index) {}
    FS_INLINE int32_t enter(Id node) { return index_->enter(node); }
    FS_INLINE void check(Id) const {}  // entering does

   private:
    NodeIndex* index_;
  };

  void make_room(int64_t more) {
    const size_t wanted = static_cast<size_t>(count_ + more);
    if (nodes_.size() < wanted) nodes_.resize(2 * wanted);
  }

 private:
  static constexpr int32_t kEmpty = -1;
  static constexpr size_t kLeastSlots = 256;

  uint64_t mask() const { return slots_.size() - 1; }
  FS_INLINE uint64_t home(Id node) const {
    const uint64_t id = static_cast<uint64_t>(node);
    return is_direct_ ? id : (id * 0x9E3779B97F4A7C15ull >> 20) & mask();
  }

  void clear(size_t slots) {
    slots_.assign(slots, kEmpty);
    base_ = 0;
  }

  __attribute__((noinline)) void grow() {
    clear(slots_.size() * 4);
    is_direct_ = slots_.size() >= num_rows_;
    for (int64_t i = 0; i < count_; ++i) {
      uint64_t at = home(node(i));
      while (slots_[at] >= 0) at = (at + 1) & mask();
      slots_[at] = static_cast<int32_t>(i);
    }
  }

  const uint64_t direct_rows_;
  std::vector<int32_t> slots_;  // base_ + number of the node, less: none
  std::vector<Id> nodes_;       // count_ of them, and room
  int64_t count_ = 0;
  int32_t base_ = 0;
  uint64_t num_rows_ = 0;
  bool is_direct_ = false;
};

}  // namespace fs

#endif  // FS_CPU_NODE_INDEX_H_
