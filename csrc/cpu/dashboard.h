// The Dashboard of Zeng et al., IPDPS 2019, section IV-B: a table with an entry per unit of a slot's weight. A probe of
// a random entry that is live finds a slot in proportion to its weight.
//
//   entry        number of the slot it belongs to, 32 bits (the paper's three: vertex, offset, number), or kNoSlot
//   order        the paper's IA: slots in the order in which their entries were appended, and where these begin
//   pop          clears the entries of the slot that was found
//   push         appends entries; where the table is full, the live ones are moved to its front first (cleanup), and
//                where they do not fit even then it grows to eta entries per live one
// Probes go to the entries in use alone, not to the whole table.
#ifndef FS_CPU_DASHBOARD_H_
#define FS_CPU_DASHBOARD_H_

#include <stdint.h>

#include <vector>

#include "philox.h"
#include "vector/vector_kernels.h"

namespace fs {

constexpr int64_t kMostEntries = INT32_MAX - kEntrySlack;

// Entries of a table: eta per live one, rounded up.
inline int64_t dashboard_capacity(double eta, double live) {
  const double entries = eta * live;
  if (entries >= static_cast<double>(kMostEntries)) return kMostEntries;
  const int64_t whole = static_cast<int64_t>(entries);
  return static_cast<double>(whole) < entries ? whole + 1 : whole;
}

class Dashboard {
 public:
  int64_t probes, cleanups, growths;

  // A table of `capacity` entries, or more, with the entries of the slots 0, 1, ...; false: they are too many.
  bool start(const std::vector<int64_t>& weights, int64_t capacity, double eta, StageKey probes_key) {
    kernels_ = &vector_kernels();
    key_ = probes_key;
    eta_ = eta;
    probes = cleanups = growths = used_ = live_ = 0;
    first_pop_ = -kGroupNodes;
    order_.clear();
    runs_.assign(weights.size(), {-1, 0});
    for (const int64_t weight : weights) {
      if (weight > kMostEntries - live_) return false;
      live_ += weight;
    }
    reserve(capacity);
    if (live_ > capacity) grow(live_);
    for (size_t slot = 0; slot < weights.size(); ++slot) append(static_cast<uint32_t>(slot), weights[slot]);
    return true;
  }

  bool is_empty() const { return live_ == 0; }

  // Finds the slot of pop `number`; its entries are dead then. Numbers ascend by one; the table is not empty.
  uint32_t pop(int64_t number) {
    const uint32_t slot = entries_[static_cast<size_t>(probe(number))];
    Run& run = runs_[slot];
    kernels_->clear_entries(entries_.data() + run.begin, run.count);
    live_ -= run.count;
    run = {-1, 0};
    return slot;
  }

  // Gives a slot without entries `weight` of them; false: more than a table may have.
  bool push(uint32_t slot, int64_t weight) {
    if (weight > kMostEntries - live_) return false;
    if (used_ + weight > capacity_) make_room(weight);
    append(slot, weight);
    live_ += weight;
    return true;
  }

 private:
  struct Run {
    int32_t begin, count;  // begin < 0: the slot has no entries
  };
  struct Appended {
    uint32_t slot;
    int32_t begin;
  };

  int64_t probe(int64_t number) {
    if (number >= first_pop_ + kGroupNodes) draw_words(number);
    const int64_t lane = number - first_pop_;
    const uint32_t used = static_cast<uint32_t>(used_);
    const int32_t first = kernels_->probe_entries(entries_.data(), used, words_ + lane, kGroupNodes);
    if (first >= 0 && first < kDashboardProbes) {
      probes += first + 1;
      return static_cast<int64_t>(static_cast<uint64_t>(words_[first * kGroupNodes + lane]) * used >> 32);
    }
    NodeStream stream(key_, static_cast<uint64_t>(number));
    for (;;) {
      ++probes;
      const int64_t at = static_cast<int64_t>(stream.below(used));
      if (entries_[static_cast<size_t>(at)] != kNoSlot) return at;
    }
  }

  // Words for the probes of the next kGroupNodes pops: one block each.
  void draw_words(int64_t number) {
    uint64_t pops[kGroupNodes];
    for (int i = 0; i < kGroupNodes; ++i) pops[i] = static_cast<uint64_t>(number + i);
    kernels_->stream_words(key_, pops, 1, 1, words_);
    first_pop_ = number;
  }

  void append(uint32_t slot, int64_t weight) {
    if (weight == 0) return;
    kernels_->fill_entries(entries_.data() + used_, weight, slot);
    const int32_t begin = static_cast<int32_t>(used_);
    runs_[slot] = {begin, static_cast<int32_t>(weight)};
    order_.push_back({slot, begin});
    used_ += weight;
  }

  void make_room(int64_t weight) {
    ++cleanups;
    used_ = 0;
    size_t kept = 0;
    for (const Appended& appended : order_) {
      Run& run = runs_[appended.slot];
      if (run.begin != appended.begin) continue;                                  // it was popped
      kernels_->fill_entries(entries_.data() + used_, run.count, appended.slot);  // no entry is read: runs say it all
      run.begin = static_cast<int32_t>(used_);
      order_[kept++] = {appended.slot, run.begin};
      used_ += run.count;
    }
    order_.resize(kept);
    if (used_ + weight > capacity_) grow(used_ + weight);
  }

  void grow(int64_t live) {
    ++growths;
    reserve(dashboard_capacity(eta_, static_cast<double>(live)));
  }

  void reserve(int64_t capacity) {
    capacity_ = capacity;
    const size_t size = static_cast<size_t>(capacity + kEntrySlack);
    if (entries_.size() < size) entries_.resize(size);
  }

  const VectorKernels* kernels_;
  StageKey key_;
  double eta_;
  std::vector<uint32_t> entries_;  // those below used_ count; kEntrySlack more than the largest table had
  std::vector<Run> runs_;          // by slot
  std::vector<Appended> order_;
  int64_t capacity_, used_, live_;
  int64_t first_pop_;  // whose words are the first in words_
  uint32_t words_[kDashboardProbes * kGroupNodes];
};

}  // namespace fs

#endif  // FS_CPU_DASHBOARD_H_
