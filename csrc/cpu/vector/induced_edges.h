// The edges between given nodes: each id of their rows is looked up in a bitmap, those that are in it are packed
// together without a branch, and packed ids become local ids some rows later, when they can be read back from the cache
// at no cost (a load of what was just stored in pieces would wait for the stores).
//
// Half of all rows are a vector or less, and where a row ends is as good as random to a processor. So ids of 32 bits
// are not read row by row: behind a vector comes the next one of its row or the first one of the next row, chosen
// without a branch. A second place, kVectorsAhead vectors before the first, requests their lines.
#ifndef FS_CPU_VECTOR_INDUCED_EDGES_H_
#define FS_CPU_VECTOR_INDUCED_EDGES_H_

#include <stdint.h>

#include "edge_lanes.h"
#include "id_lanes.h"
#include "induced_task.h"

namespace fs {
namespace {

constexpr int64_t kEdgesTranslated = 4096;  // that wait for their local ids: 16 or 32 KB

#if defined(__AVX2__)

constexpr int64_t kVectorsAhead = 24;

// A vector of the rows up to end_row: ids from `position` on, of which `left` are the row's.
class RowPlace {
 public:
  RowPlace(const InducedTask<int32_t>& task, const InducedRun<int32_t>& run)
      : rows_(task.rows), end_row_(run.end_row), row_(run.row) {
    position_ = rows_[row_].begin + run.next_edge;
    left_ = rows_[row_].degree - run.next_edge;
  }

  FS_INLINE bool at_end() const { return row_ == end_row_; }
  FS_INLINE int64_t row() const { return row_; }
  FS_INLINE int64_t position() const { return position_; }
  FS_INLINE int64_t count() const { return left_ < kCount ? left_ : kCount; }
  FS_INLINE int64_t next_edge() const { return rows_[row_].degree - left_; }

  // Not beyond the row behind the last one, which may be read.
  FS_INLINE void advance() {
    const uint64_t ends = opaque_mask(left_ <= kCount);
    row_ -= static_cast<int64_t>(ends) & -static_cast<int64_t>(row_ < end_row_);
    const RowEdges next = rows_[row_];
    position_ = chosen(ends, next.begin, position_ + kCount);
    left_ = chosen(ends, next.degree, left_ - kCount);
  }

 private:
  static constexpr int64_t kCount = EdgeLanes<int32_t>::kCount;
  static FS_INLINE int64_t chosen(uint64_t mask, int64_t if_ones, int64_t if_zero) {
    return static_cast<int64_t>((static_cast<uint64_t>(if_ones) & mask) | (static_cast<uint64_t>(if_zero) & ~mask));
  }

  const RowEdges* rows_;
  int64_t end_row_, row_, position_, left_;
};

// Reads the rows of a run block by block, as one sequence of vectors of 32-bit ids. (Of 64-bit ids the sequence costs
// as much as it saves: half as many edges to a vector.)
class VectorReader {
 public:
  VectorReader(const InducedTask<int32_t>& task, const InducedRun<int32_t>& run)
      : task_(task), place_(task, run), ahead_(place_) {
    for (int64_t i = 0; i < kVectorsAhead; ++i) request(task.indices, &ahead_);
  }

  // Appends those of at most kInducedPiece edges that the bits have. Returns the largest of all their ids.
  FS_INLINE uint64_t pack_block(InducedRun<int32_t>* run) {
    Lanes::Vector largest = Lanes::zero();
    RowPlace place = place_, ahead = ahead_;  // copies, which nothing that is stored can change
    const NodeMembers<int32_t> members = task_.members;
    const int32_t* const indices = task_.indices;
    int32_t* const out = run->indices;
    int64_t *const positions = run->edge_ids, *const offsets = run->offsets;
    int64_t count = run->count, seen = 0;
    for (int64_t i = 0; i < kInducedPiece / Lanes::kCount && !place.at_end(); ++i) {
      request(indices, &ahead);
      const int64_t here = place.count();
      const auto ids = Lanes::load(indices + place.position(), here);
      largest = Lanes::largest(largest, ids);
      const uint32_t kept = Lanes::kept(members, ids, here);
      Lanes::store_packed(out + count, kept, ids);
      if (positions != nullptr) Lanes::store_positions(positions + count, kept, place.position());
      count += __builtin_popcount(kept);
      seen += here;
      offsets[place.row() + 1] = count;  // for good at the end of the row
      place.advance();
    }
    place_ = place;
    ahead_ = ahead;
    run->row = place.row();
    run->next_edge = place.at_end() ? 0 : place.next_edge();
    run->unseen -= seen;
    run->count = count;
    return Lanes::reduce(largest);
  }

 private:
  using Lanes = EdgeLanes<int32_t>;

  static FS_INLINE void request(const int32_t* indices, RowPlace* ahead) {
    const int32_t* ids = indices + ahead->position();
    __builtin_prefetch(ids);
    __builtin_prefetch(ids + Lanes::kCount - 1);
    ahead->advance();
  }

  const InducedTask<int32_t>& task_;
  RowPlace place_, ahead_;
};

#endif

constexpr int64_t kInducedAhead = 6;  // rows ahead whose first lines are requested
constexpr int64_t kInducedLines = 4;  // the hardware follows from there
constexpr int64_t kEdgesAhead = 256;  // in a long row
constexpr int64_t kLineEdges = 16;

// Appends those of edges first .. first + count - 1 that the bits have; `left` edges follow from the first up to the
// end of the row. Returns the largest of all their ids.
template <typename Id>
FS_INLINE uint64_t pack_row(const InducedTask<Id>& task, int64_t first, int64_t count, int64_t left,
                            InducedRun<Id>* run) {
  const Id* const ids = task.indices + first;
  const NodeMembers<Id> members = task.members;  // copies, which nothing that is stored can change
  Id* const out = run->indices;
  int64_t* const positions = run->edge_ids;
  uint64_t largest = 0;
  int64_t at = run->count;
  for (int64_t i = 0; i < count; ++i) {
    if (i % kLineEdges == 0 && i + kEdgesAhead < left) __builtin_prefetch(ids + i + kEdgesAhead);
    const uint64_t id = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
    largest = id > largest ? id : largest;
    out[at] = ids[i];
    if (positions != nullptr) positions[at] = first + i;
    at += static_cast<int64_t>(members.bits[(id & members.mask) >> 5] >> (id & 31) & 1);
  }
  run->count = at;
  return largest;
}

#if defined(__AVX512F__)

FS_INLINE uint64_t pack_row(const InducedTask<int64_t>& task, int64_t first, int64_t count, int64_t left,
                            InducedRun<int64_t>* run) {
  using Lanes = EdgeLanes<int64_t>;
  const int64_t* const ids = task.indices + first;
  const NodeMembers<int64_t> members = task.members;
  int64_t *const out = run->indices, *const positions = run->edge_ids;
  Lanes::Vector largest = Lanes::zero();
  int64_t at = run->count;
  for (int64_t i = 0; i < count; i += Lanes::kCount) {
    if (i + kEdgesAhead < left) __builtin_prefetch(ids + i + kEdgesAhead);
    const int64_t here = count - i < Lanes::kCount ? count - i : Lanes::kCount;
    const auto vector = Lanes::load(ids + i, here);
    largest = Lanes::largest(largest, vector);
    const uint32_t kept = Lanes::kept(members, vector, here);
    Lanes::store_packed(out + at, kept, vector);
    if (positions != nullptr) Lanes::store_positions(positions + at, kept, first + i);
    at += __builtin_popcount(kept);
  }
  run->count = at;
  return Lanes::reduce(largest);
}

#endif

// Reads the rows of a run block by block.
template <typename Id>
class RowReader {
 public:
  RowReader(const InducedTask<Id>& task, const InducedRun<Id>&) : task_(task) {}

  // Appends those of at most kInducedPiece edges that the bits have. Returns the largest of all their ids.
  FS_INLINE uint64_t pack_block(InducedRun<Id>* run) const {
    uint64_t largest = 0;
    int64_t rest = kInducedPiece;
    while (rest > 0 && run->row < run->end_row) {
      if (run->row + kInducedAhead < run->end_row) request_start(run->row + kInducedAhead);
      const RowEdges row = task_.rows[run->row];
      const int64_t left = row.degree - run->next_edge, count = left < rest ? left : rest;
      const uint64_t most = pack_row(task_, row.begin + run->next_edge, count, left, run);
      largest = most > largest ? most : largest;
      rest -= count;
      run->unseen -= count;
      run->next_edge += count;
      if (count < left) break;
      run->next_edge = 0;
      run->offsets[++run->row] = run->count;
    }
    return largest;
  }

 private:
  void request_start(int64_t row) const {
    const char* bytes = reinterpret_cast<const char*>(task_.indices + task_.rows[row].begin);
    for (int64_t line = 0; line < kInducedLines; ++line) __builtin_prefetch(bytes + 64 * line);
  }

  const InducedTask<Id>& task_;
};

template <typename Id>
FS_INLINE void translate(const int32_t* locals, Id* ids, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) ids[i] = static_cast<Id>(locals[ids[i]]);
}

#if defined(__AVX2__)
FS_INLINE void translate(const int32_t* locals, int32_t* ids, int64_t begin, int64_t end) {
  constexpr int64_t kCount = EdgeLanes<int32_t>::kCount;
  for (int64_t i = begin; i < end; i += kCount) {
    EdgeLanes<int32_t>::translate(ids + i, end - i < kCount ? end - i : kCount, locals);
  }
}
#endif

// What reads the rows.
template <typename Id>
struct ReaderOf {
  using Type = RowReader<Id>;
};

#if defined(__AVX2__)
template <>
struct ReaderOf<int32_t> {
  using Type = VectorReader;
};
#endif

// Local id of a node, -1: it is not in the table.
template <typename Id>
FS_INLINE int64_t find_local(const IdTable<Id>& table, Id id) {
  for (uint64_t at = table.home(id);; at = table.after(at)) {
    const IdBucket<Id>& bucket = table.buckets[at];
    const uint32_t found = equal_lanes(bucket.keys, id);
    if (found != 0) return bucket.locals[__builtin_ctz(found)];
    if (equal_lanes(bucket.keys, Id{-1}) != 0) return -1;
  }
}

// Local ids of edges num_local .. count, where the bits are not exact; those that are not in the table go. The first of
// these edges belongs to `row`.
template <typename Id>
FS_INLINE void relabel_known(const NodeMembers<Id>& members, int64_t row, InducedRun<Id>* run) {
  int64_t from = run->num_local, to = from;
  for (;; ++row) {
    const int64_t end = row < run->row ? run->offsets[row + 1] : run->count;
    for (; from < end; ++from) {
      const int64_t local = find_local(members.table, run->indices[from]);
      run->indices[to] = static_cast<Id>(local);
      if (run->edge_ids != nullptr) run->edge_ids[to] = run->edge_ids[from];
      to += local >= 0;
    }
    if (row == run->row) break;
    run->offsets[row + 1] = to;
  }
  run->num_local = run->count = to;
}

// Position of the first id that is refused, from that edge of a row on.
template <typename Id>
int64_t first_refused(const InducedTask<Id>& task, int64_t row, int64_t edge) {
  for (;; ++row, edge = 0) {
    for (; edge < task.rows[row].degree; ++edge) {
      const int64_t at = task.rows[row].begin + edge;
      if (static_cast<uint64_t>(static_cast<int64_t>(task.indices[at])) >= task.num_ids) return at;
    }
  }
}

template <typename Id>
uint64_t unsigned_limit(uint64_t num_ids) {  // of ids as the kernels compare them
  const uint64_t most = sizeof(Id) == 4 ? uint64_t{1} << 31 : uint64_t{1} << 63;
  return num_ids < most ? num_ids : most;
}

template <typename Id>
void induce_rows(const InducedTask<Id>& task, InducedRun<Id>* progress) {
  InducedRun<Id> run = *progress;  // that nothing else points to
  typename ReaderOf<Id>::Type reader(task, run);
  const uint64_t limit = unsigned_limit<Id>(task.num_ids);
  while (run.row < run.end_row) {
    const int64_t most = run.unseen < kInducedPiece ? run.unseen : kInducedPiece;
    if (run.capacity - run.count < most + kInducedSlack) break;
    const int64_t row = run.row, edge = run.next_edge;
    if (reader.pack_block(&run) >= limit) {
      run.bad = first_refused(task, row, edge);
      break;
    }
    if (task.members.locals == nullptr) {
      relabel_known(task.members, row, &run);
    } else if (run.count - run.num_local >= kEdgesTranslated || run.row == run.end_row) {
      translate(task.members.locals, run.indices, run.num_local, run.count);
      run.num_local = run.count;
    }
  }
  *progress = run;
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_INDUCED_EDGES_H_
