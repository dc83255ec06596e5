// Edges of one hop from drawn positions to local ids: ask for a neighbour, read it, relabel it, as stages of one loop.
//
// Memory is what sampling waits for: every pick reads one neighbour at a random place of `indices` and one bucket of
// the id table. Positions are drawn ahead, into a ring. One loop over the picks asks for the neighbour of a pick, reads
// that of the pick kReadAhead before it, which was asked for then, and asks for its bucket, and relabels the pick
// kRelabelAhead before that, whose bucket was asked for then. Picks are independent except for the number of the next
// new id, so the misses of some dozens of picks overlap.
#ifndef FS_CPU_VECTOR_EDGE_PIPELINE_H_
#define FS_CPU_VECTOR_EDGE_PIPELINE_H_

#include "hop_task.h"
#include "id_lanes.h"
#include "vector_kernels.h"

namespace fs {
namespace {

constexpr int64_t kReadAhead = 64;     // picks between asking for a neighbour and reading it
constexpr int64_t kRelabelAhead = 24;  // picks between asking for a bucket and reading it
constexpr int64_t kSpanPicks = 1024;   // picks that are drawn before the pipeline moves on
constexpr int64_t kRing = 4096;        // picks that are drawn and not yet read, a power of two
static_assert((kRing & (kRing - 1)) == 0, "places in the ring are masked");
static_assert(kRing > kSpanPicks + 2 * (kReadAhead + kRelabelAhead) + kGroupFanout,
              "a span must fit beside the stages");

// Edge positions that are drawn and not yet read; pick j is at[j & mask]. When the caller wants edge ids the ring is
// their array itself.
struct PickRing {
  int64_t* at;
  int64_t mask;
  int64_t& operator[](int64_t j) const { return at[j & mask]; }
};

// The pipeline over picks asked <= read <= done. Without relabelling it ends with reading, and `ids` is null.
template <typename Id, bool kRelabel>
class Pipeline {
 public:
  FS_INLINE Pipeline(const HopTask<Id>& task, const PickRing& ring, int64_t begin, Relabeling<Id>* ids)
      : indices_(task.graph.indices),
        out_(task.neighbors),
        ring_(ring),
        asked_(begin),
        read_(begin),
        done_(begin),
        labeler_(ids, &spare_) {}

  // Moves on until everything before `drawn` is asked for. False: an id was refused, that of pick `done`.
  FS_INLINE bool advance(int64_t drawn) {
    while (asked_ < drawn && (asked_ - read_ < kReadAhead || read_ - done_ < kRelabelAhead)) {  // filling up
      __builtin_prefetch(indices_ + ring_[asked_], 0, 2);
      ++asked_;
      if (asked_ - read_ > kReadAhead && !read_and_relabel()) return false;
    }
    for (; asked_ < drawn; ++asked_) {  // all stages are busy
      __builtin_prefetch(indices_ + ring_[asked_], 0, 2);
      read();
      if (kRelabel && !relabel()) return false;
    }
    return true;
  }

  // Does what is left.
  FS_INLINE bool finish() {
    while (read_ < asked_) {
      if (!read_and_relabel()) return false;
    }
    while (kRelabel && done_ < read_) {
      if (!relabel()) return false;
    }
    return true;
  }

  // Hands the state of the relabelling back.
  FS_INLINE void write(bool refused, Relabeling<Id>* ids) const {
    if (!kRelabel) return;
    labeler_.write(ids);
    if (refused) ids->bad = done_;
  }

 private:
  FS_INLINE void read() {
    const Id id = indices_[ring_[read_]];
    out_[read_] = id;
    ++read_;
    if (kRelabel) labeler_.ask_for(id);
  }

  FS_INLINE bool read_and_relabel() {
    read();
    return !kRelabel || read_ - done_ <= kRelabelAhead || relabel();
  }

  FS_INLINE bool relabel() {
    const Id id = out_[done_];
    if (!labeler_.accepts(id)) return false;
    out_[done_] = labeler_.local_id(id);
    ++done_;
    return true;
  }

  const Id* indices_;
  Id* out_;
  PickRing ring_;
  int64_t asked_, read_, done_;
  IdBucket<Id> spare_;
  Labeler<Id> labeler_;
};

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_EDGE_PIPELINE_H_
