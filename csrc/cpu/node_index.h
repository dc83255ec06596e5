// Numbers of nodes in order of first appearance: open addressing over a power of two of slots, linear probing, at most
// half full. Where the slots are as many as the graph's nodes, a node's slot is its id and nothing is ever probed.
#ifndef FS_CPU_NODE_INDEX_H_
#define FS_CPU_NODE_INDEX_H_

#include <stdint.h>

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

  // Empty, for nodes of a graph of num_rows rows. Costs the nodes that were in it, or the slots where these are fewer.
  void start(int64_t num_rows) {
    num_rows_ = static_cast<uint64_t>(num_rows);
    if (slots_.empty()) slots_.assign(kLeastSlots, kEmpty);
    if (num_rows_ <= direct_rows_ && slots_.size() < num_rows_) {
      size_t slots = kLeastSlots;
      while (slots < num_rows_) slots *= 2;
      nodes_.clear();
      slots_.assign(slots, kEmpty);
    } else if (nodes_.size() * 8 < slots_.size()) {
      for (size_t i = 0; i < nodes_.size(); ++i) {
        uint64_t at = home(nodes_[i]);
        while (slots_[at] != static_cast<int32_t>(i)) at = (at + 1) & mask();  // slots before it may be empty by now
        slots_[at] = kEmpty;
      }
    } else {
      slots_.assign(slots_.size(), kEmpty);
    }
    nodes_.clear();
    is_direct_ = slots_.size() >= num_rows_;
  }

  int64_t count() const { return static_cast<int64_t>(nodes_.size()); }
  Id node(int64_t i) const { return nodes_[static_cast<size_t>(i)]; }
  const Id* nodes() const { return nodes_.data(); }
  size_t bytes() const { return slots_.capacity() * sizeof(int32_t) + nodes_.capacity() * sizeof(Id); }

  bool is_direct() const { return is_direct_; }
  // For callers that enter many nodes of a direct index without a branch: see ColumnSums.
  int32_t* slots() { return slots_.data(); }
  std::vector<Id>& entered() { return nodes_; }

  // Number of a node, -1: not in it.
  FS_INLINE int32_t find(Id node) const {
    for (uint64_t at = home(node);; at = (at + 1) & mask()) {
      const int32_t found = slots_[at];
      if (found < 0 || nodes_[static_cast<size_t>(found)] == node) return found;
    }
  }

  // Number of a node, which is entered if it is new: then it is count() - 1. Throws BadSource.
  FS_INLINE int32_t enter(Id node) {
    if (static_cast<uint64_t>(node) >= num_rows_) throw BadSource{static_cast<int64_t>(node)};
    for (uint64_t at = home(node);; at = (at + 1) & mask()) {
      const int32_t found = slots_[at];
      if (found >= 0) {
        if (nodes_[static_cast<size_t>(found)] == node) return found;
        continue;
      }
      slots_[at] = static_cast<int32_t>(nodes_.size());
      nodes_.push_back(node);
      if (!is_direct_ && nodes_.size() * 2 > slots_.size()) grow();
      return static_cast<int32_t>(nodes_.size()) - 1;
    }
  }

 private:
  static constexpr int32_t kEmpty = -1;
  static constexpr size_t kLeastSlots = 256;

  uint64_t mask() const { return slots_.size() - 1; }
  FS_INLINE uint64_t home(Id node) const {
    const uint64_t id = static_cast<uint64_t>(node);
    return is_direct_ ? id : (id * 0x9E3779B97F4A7C15ull >> 20) & mask();
  }

  __attribute__((noinline)) void grow() {
    slots_.assign(slots_.size() * 4, kEmpty);
    is_direct_ = slots_.size() >= num_rows_;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      uint64_t at = home(nodes_[i]);
      while (slots_[at] >= 0) at = (at + 1) & mask();
      slots_[at] = static_cast<int32_t>(i);
    }
  }

  const uint64_t direct_rows_;
  std::vector<int32_t> slots_;  // number of the node, kEmpty: none
  std::vector<Id> nodes_;
  uint64_t num_rows_ = 0;
  bool is_direct_ = false;
};

}  // namespace fs

#endif  // FS_CPU_NODE_INDEX_H_
