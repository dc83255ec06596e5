// Walks from a block of rows in lock step, and their visits, counted and ranked.
//
// A step takes the walkers that are left, writes where they are to the step's column of visits, and closes up those
// that go on. Ranking takes kRankedRows rows side by side, one to a lane, and branches on nothing, as the order of
// visits is a coin flip: every pair of a row's visits is compared for the number of visits of each node; (number,
// original id, place) make a word, the less the better, and a network of comparators (Batcher's merge exchange; Knuth,
// The Art of Computer Programming, volume 3, algorithm 5.2.2 M) sorts the words.
#ifndef FS_CPU_VECTOR_VISIT_ROWS_H_
#define FS_CPU_VECTOR_VISIT_ROWS_H_

#include "visit_run.h"
#include "walk_steps.h"

namespace fs {
namespace {

template <typename Id>
class VisitWalk {
 public:
  explicit VisitWalk(const VisitRun& run) : run_(run), ids_(run.rows), nodes_(static_cast<Id*>(run.nodes)) {}

  // Ids, met in the last step that was made, that are no nodes; they stand in `visits` as they are.
  int64_t walk() {
    int64_t count = run_.num_walkers;
    for (int64_t i = 0; i < count; ++i) run_.places[i] = static_cast<int32_t>(i);
    for (int64_t step = 0; step < run_.walk_length && count > 0; ++step) {
      const PickWords<1> words(run_.keys[step]);
      int64_t kept = 0;
      for (int64_t first = 0; first < count; first += kChunkPicks) {
        const int64_t size = count - first < kChunkPicks ? count - first : kChunkPicks;
        draw_positions(words, ids_, WalkerRows<Id>{run_.rows.indptr, run_.sample_ids + first, nodes_ + first, size},
                       words_, positions_);
        kept = take_neighbors(step, first, size, kept);
      }
      if (num_bad_ > 0) break;
      count = kept;
    }
    return num_bad_;
  }

 private:
  // Moves walkers to the neighbours drawn, and those that go on behind the `kept` that do already.
  int64_t take_neighbors(int64_t step, int64_t first, int64_t count, int64_t kept) {
    Id* const visits = static_cast<Id*>(run_.visits) + step * run_.num_walkers;
    Id* const nodes = nodes_;
    uint64_t* const sample_ids = run_.sample_ids;
    int32_t* const places = run_.places;
    const int64_t *const lengths = run_.lengths, *const orig_ids = run_.orig_ids, *const indptr = run_.rows.indptr;
    const int64_t num_rows = static_cast<int64_t>(run_.rows.num_rows), before = kept;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t node = __builtin_expect(positions_[j] < 0, 0) ? FS_NULL_NODE : ids_.pick(positions_[j], 0);
      if (__builtin_expect(node < FS_NULL_NODE || node >= num_rows, 0)) ++num_bad_;
      if (orig_ids != nullptr) __builtin_prefetch(orig_ids + node, 0, kLevel2);
      const int32_t place = places[first + j];
      visits[place] = static_cast<Id>(node);
      sample_ids[kept] = sample_ids[first + j];
      places[kept] = place;
      nodes[kept] = static_cast<Id>(node);
      kept += static_cast<int64_t>(node >= 0) & static_cast<int64_t>(lengths[place] > step + 1);
    }
    for (int64_t i = before; i < kept; ++i) {
      __builtin_prefetch(indptr + nodes[i], 0, kLevel2);
      __builtin_prefetch(indptr + nodes[i] + 1, 0, kLevel2);  // one in eight begins in the next line
    }
    return kept;
  }

  const VisitRun& run_;
  const UniformPlaces<Id> ids_;
  Id* nodes_;
  int64_t num_bad_ = 0;
  alignas(64) uint32_t words_[kChunkPicks];
  int64_t positions_[kChunkPicks];
};

template <typename Id>
int64_t walk_visits(const VisitRun& run) {
  return VisitWalk<Id>(run).walk();
}

template <typename Id>
class VisitRanks {
 public:
  explicit VisitRanks(const RankRun& run) : run_(run), visits_(static_cast<int>(run.num_visits)) { connect(); }

  // Edges that were written; -1: original ids are too long for it.
  int64_t rank() {
    int64_t written = 0;
    for (int64_t first = 0; first < run_.num_rows; first += kRankedRows) {
      read(first);
      if (!make_words()) return -1;
      for (int c = 0; c < num_comparators_; ++c) order(words_[lower_[c]], words_[upper_[c]]);
      written = write(first, written);
    }
    return written;
  }

 private:
  static constexpr int kLanes = kRankedRows, kMost = kRankedVisits;
  static constexpr int kPlaceBits = 4, kNumberShift = 59;  // between them the original id
  static constexpr uint64_t kNothing = INT64_MAX;          // a repeated visit, or none
  static constexpr int kComparators = 63;                  // of the network for 16
  static_assert(kMost <= 1 << kPlaceBits, "places of visits");

  void connect() {
    for (int p = 1; p < visits_; p *= 2) {
      for (int k = p; k >= 1; k /= 2) {
        for (int low = k % p; low + k < visits_; low += 2 * k) {
          for (int i = low; i < low + k && i + k < visits_; ++i) {
            if (i / (2 * p) != (i + k) / (2 * p)) continue;
            lower_[num_comparators_] = i;
            upper_[num_comparators_++] = i + k;
          }
        }
      }
    }
  }

  // A visit of the start is none.
  void read(int64_t first) {
    const Id* starts = static_cast<const Id*>(run_.starts) + first;
    for (int v = 0; v < visits_; ++v) {
      const Id* visits = static_cast<const Id*>(run_.visits) + v * run_.stride + first;
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) nodes_[v][l] = visits[l] == starts[l] ? Id{FS_NULL_NODE} : visits[l];
    }
  }

  bool make_words() {
    alignas(64) uint64_t all[kLanes] = {};
    for (int v = 0; v < visits_; ++v) {
      alignas(64) Id later[kLanes] = {}, is_none[kLanes];  // visits of the same node; -1: a repeated one, or none
      const Id* own = nodes_[v];
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) is_none[l] = static_cast<Id>(-static_cast<Id>(own[l] < 0));
      for (int w = 0; w < v; ++w) {
#pragma omp simd
        for (int l = 0; l < kLanes; ++l) is_none[l] |= static_cast<Id>(-static_cast<Id>(nodes_[w][l] == own[l]));
      }
      for (int w = v + 1; w < visits_; ++w) {
#pragma omp simd
        for (int l = 0; l < kLanes; ++l) later[l] += static_cast<Id>(nodes_[w][l] == own[l]);
      }
      alignas(64) uint64_t orig_ids[kLanes];
      if (run_.orig_ids == nullptr) {
#pragma omp simd
        for (int l = 0; l < kLanes; ++l) orig_ids[l] = static_cast<uint64_t>(own[l] < 0 ? 0 : own[l]);
      } else {
        for (int l = 0; l < kLanes; ++l) orig_ids[l] = static_cast<uint64_t>(run_.orig_ids[own[l] < 0 ? 0 : own[l]]);
      }
      int64_t* words = words_[v];
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) {
        all[l] |= orig_ids[l];
        const uint64_t fewer = static_cast<uint64_t>(kMost - 1 - later[l]);
        const uint64_t word = fewer << kNumberShift | orig_ids[l] << kPlaceBits | static_cast<uint64_t>(v);
        words[l] = static_cast<int64_t>((word | static_cast<uint64_t>(int64_t{is_none[l]})) & kNothing);
      }
    }
    uint64_t any = 0;
    for (int l = 0; l < kLanes; ++l) any |= all[l];
    return any >> (kNumberShift - kPlaceBits) == 0;
  }

  FS_INLINE static void order(int64_t* a, int64_t* b) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) {
      const int64_t less = a[l] < b[l] ? a[l] : b[l], more = a[l] < b[l] ? b[l] : a[l];
      a[l] = less;
      b[l] = more;
    }
  }

  // Behind the `written` edges before. Every row writes most_edges of them, of which the next one takes back those that
  // are not there.
  int64_t write(int64_t first, int64_t written) {
    const int most = static_cast<int>(run_.most_edges);
    alignas(64) int32_t counts[kLanes] = {}, sums[kLanes] = {}, numbers[kMost][kLanes];
    alignas(64) float weights[kMost][kLanes];
    for (int r = 0; r < most; ++r) {
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) {
        const int32_t is_one = words_[r][l] < static_cast<int64_t>(kNothing);
        numbers[r][l] = is_one * (kMost - static_cast<int32_t>(words_[r][l] >> kNumberShift));
        counts[l] += is_one;
        sums[l] += numbers[r][l];
      }
    }
    for (int r = 0; r < most; ++r) {
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) {
        weights[r][l] = static_cast<float>(numbers[r][l]) / static_cast<float>(sums[l] == 0 ? 1 : sums[l]);
      }
    }
    const int64_t rows = run_.num_rows - first < kLanes ? run_.num_rows - first : kLanes;
    for (int64_t l = 0; l < rows; ++l) {
      Id* neighbors = static_cast<Id*>(run_.neighbors) + written;
      for (int r = 0; r < most; ++r) {
        neighbors[r] = nodes_[words_[r][l] & (kMost - 1)][l];
        run_.weights[written + r] = weights[r][l];
      }
      run_.counts[first + l] = counts[l];
      written += counts[l];
    }
    return written;
  }

  const RankRun& run_;
  const int visits_;
  int num_comparators_ = 0;
  int lower_[kComparators], upper_[kComparators];
  alignas(64) Id nodes_[kMost][kLanes] = {};
  alignas(64) int64_t words_[kMost][kLanes];
};

template <typename Id>
int64_t rank_visits(const RankRun& run) {
  return VisitRanks<Id>(run).rank();
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_VISIT_ROWS_H_
