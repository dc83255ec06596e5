// Nodes that take their turns one after the other, with rows that several threads have read ahead.
//
// A batch of rows is read by all threads, from the state at the batch's start; each leaves what its node's turn needs.
// Then this thread takes the turns in order. What was read of a row holds unless a neighbour has moved since, in an
// earlier turn of the batch: neighbours with such turns are noted, and where one has moved, the row is read again. So
// the result is that of one node after the other, whatever the threads and the batches. Long rows are read in their
// turn, so that what is left of a batch stays small. Where more than half of a batch had to be read again (neighbours
// lie close together, and most nodes move), the next ones are not read ahead.
//
// A Law says what a turn does:
//
//   Law::Reader(law)                   of one thread: reads rows, and holds what it has read
//   reader.read(row, near)             false: the row is to be read in its turn. near.see(neighbour) for all neighbours
//   reader.size(), clear(), soon(i)    how much it holds; empty; what lies at i is needed soon
//   law.turn(row)                      a turn that reads its row: a status
//   law.turn(row, reader, from, to)    a turn of a row that was read
//   law.moved()                        turns that have changed something that rows are read for
#ifndef FS_CPU_TURNS_H_
#define FS_CPU_TURNS_H_

#include <algorithm>
#include <atomic>
#include <vector>

#include "mix64.h"
#include "neighbour_rows.h"
#include "worker_pool.h"

namespace fs {

// Turns of a batch by node.
class TurnPlaces {
 public:
  // Turns first .. first + count - 1 of the order; without one they are the nodes of these numbers.
  void begin(const int64_t* order, int64_t first, int64_t count) {
    first_ = first;
    order_ = order == nullptr ? nullptr : order + first;
    if (order_ == nullptr) return;
    uint64_t slots = 16;
    while (slots < 4 * static_cast<uint64_t>(count)) slots *= 2;
    slots_.assign(slots, -1);
    for (int64_t place = 0; place < count; ++place) {
      uint64_t slot = home(order_[place]);
      while (slots_[slot] >= 0) slot = (slot + 1) & (slots - 1);
      slots_[slot] = static_cast<int32_t>(place);
    }
  }

  // Turn of the node in the batch, if it comes before `place`; else some number that is not less.
  int64_t before(int64_t node, int64_t place) const {
    if (order_ == nullptr) return node < first_ ? place : node - first_;
    for (uint64_t slot = home(node); slots_[slot] >= 0; slot = (slot + 1) & (slots_.size() - 1)) {
      if (order_[slots_[slot]] == node) return slots_[slot];
    }
    return place;
  }

 private:
  uint64_t home(int64_t node) const { return mix64(static_cast<uint64_t>(node)) & (slots_.size() - 1); }

  const int64_t* order_ = nullptr;
  int64_t first_ = 0;
  std::vector<int32_t> slots_;  // place in the batch; -1: empty
};

// Neighbours of a row whose turns come before its own in the batch.
class NearTurns {
 public:
  explicit NearTurns(const TurnPlaces& places) : places_(places) {}

  void begin(int64_t place) { place_ = place; }

  void see(int64_t neighbour) {
    const int64_t other = places_.before(neighbour, place_);
    if (other < place_) seen_.push_back(static_cast<int32_t>(other));
  }

  std::vector<int32_t>& seen() { return seen_; }

 private:
  const TurnPlaces& places_;
  int64_t place_ = 0;
  std::vector<int32_t> seen_;
};

template <typename Id, typename Law>
class Turns {
 public:
  Turns(const NeighbourRows<Id>& rows, Law& law, int32_t num_threads)
      : rows_(rows), law_(law), num_threads_(num_threads) {}

  FsStatus run(int64_t first, int64_t last) {
    FsStatus status = rows_.check_turns(first, last);
    int64_t alone = num_threads_ > 1 ? 0 : last;  // turns before this one are not read ahead
    while (status == FS_OK && first < last) {
      const int64_t end = first < alone ? std::min(last, first + kBatchTurns) : batch_end(first, last);
      if (first < alone) {
        status = rows_.each(first, end, [&](const NeighbourRow& row) { return law_.turn(row); });
      } else {
        read_ahead(first, end);
        status = take(first, end);
        if (2 * num_again_ > end - first) alone = end + kBatchesAlone * (end - first);
      }
      first = end;
    }
    return status;
  }

 private:
  static constexpr int64_t kBatchTurns = 1 << 13;
  static constexpr int64_t kBatchEntries = 1 << 19;
  static constexpr int64_t kBatchesAlone = 7;
  static constexpr int64_t kRunTurns = 1 << 6;  // that a thread takes at a time
  static constexpr int64_t kLongRow = 1 << 14;
  static constexpr int64_t kSoon = 8;  // turns

  struct Thread {
    Thread(const Law& law, const TurnPlaces& places) : reader(law), near(places) {}
    typename Law::Reader reader;
    NearTurns near;
  };

  // What a thread has read of a row; thread < 0: it is to be read in its turn.
  struct RowRead {
    int32_t thread = -1;
    size_t from, to, near_from, near_to;
  };

  // Where a batch ends that is small enough for what is read of its rows, at least one.
  int64_t batch_end(int64_t first, int64_t last) const {
    int64_t end = first, entries = 0;
    while (end < std::min(last, first + kBatchTurns) && entries < kBatchEntries) {
      const NeighbourRow row = rows_.at(end++);
      if (is_read_ahead(row)) entries += row.degree();
    }
    return end;
  }

  bool is_read_ahead(const NeighbourRow& row) const { return rows_.is_sound(row) && row.degree() <= kLongRow; }

  void read_ahead(int64_t first, int64_t end) {
    const int64_t count = end - first;
    rows_read_.assign(static_cast<size_t>(count), RowRead{});
    places_.begin(rows_.order(), first, count);
    while (static_cast<int32_t>(threads_.size()) < num_threads_) threads_.emplace_back(law_, places_);
    for (Thread& thread : threads_) {
      thread.reader.clear();
      thread.near.seen().clear();
    }
    std::atomic<int64_t> next{0};
    std::atomic<int32_t> next_thread{0};
    auto work = [&](bool) {
      const int32_t mine = next_thread.fetch_add(1, std::memory_order_relaxed);
      for (int64_t begin; (begin = next.fetch_add(kRunTurns, std::memory_order_relaxed)) < count;) {
        for (int64_t place = begin; place < std::min(count, begin + kRunTurns); ++place) read(mine, first, place);
      }
    };
    work_together(num_threads_, work);
  }

  void read(int32_t number, int64_t first, int64_t place) {
    const NeighbourRow row = rows_.at(first + place);
    if (!is_read_ahead(row)) return;
    Thread& thread = threads_[static_cast<size_t>(number)];
    RowRead& read = rows_read_[static_cast<size_t>(place)];
    read.from = thread.reader.size();
    read.near_from = thread.near.seen().size();
    thread.near.begin(place);
    if (!thread.reader.read(row, thread.near)) return;
    read.thread = number;
    read.to = thread.reader.size();
    read.near_to = thread.near.seen().size();
  }

  FsStatus take(int64_t first, int64_t end) {
    moved_.assign(static_cast<size_t>(end - first), 0);
    num_again_ = 0;
    size_t place = 0;
    return rows_.each(first, end, [&](const NeighbourRow& row) {
      if (place + kSoon < rows_read_.size()) announce(rows_read_[place + kSoon]);
      const RowRead& read = rows_read_[place];
      const int64_t before = law_.moved();
      FsStatus status;
      if (holds(read)) {
        status = law_.turn(row, threads_[static_cast<size_t>(read.thread)].reader, read.from, read.to);
      } else {
        ++num_again_;
        status = law_.turn(row);
      }
      moved_[place++] = law_.moved() != before;
      return status;
    });
  }

  bool holds(const RowRead& row) {
    if (row.thread < 0) return false;
    const std::vector<int32_t>& near = threads_[static_cast<size_t>(row.thread)].near.seen();
    for (size_t i = row.near_from; i < row.near_to; ++i) {
      if (moved_[static_cast<size_t>(near[i])] != 0) return false;
    }
    return true;
  }

  void announce(const RowRead& row) const {
    if (row.thread < 0) return;
    const typename Law::Reader& reader = threads_[static_cast<size_t>(row.thread)].reader;
    for (size_t i = row.from; i < row.to; ++i) reader.soon(i);
  }

  const NeighbourRows<Id>& rows_;
  Law& law_;
  const int32_t num_threads_;
  TurnPlaces places_;
  std::vector<Thread> threads_;
  std::vector<RowRead> rows_read_;  // of the batch
  std::vector<uint8_t> moved_;      // of the batch: whether the turn has changed something
  int64_t num_again_ = 0;           // turns of the batch that read their row
};

}  // namespace fs

#endif  // FS_CPU_TURNS_H_
