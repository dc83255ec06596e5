// Walkers taken from step to step in lock step, without any history: what walk_steps.h does for the picks of a step, on
// columns of nodes in the graph's own id type. A step reads one column and writes the next, both in order; the vertices
// are written from the columns afterwards, walk after walk. Written at once they would be 8 bytes in a cache line of
// its own per walker and step: a fifth of the time of a step (24 against 18.5 ns, uniform walks of 80 steps, 61 M
// edges).
#ifndef FS_CPU_VECTOR_WALK_COLUMNS_H_
#define FS_CPU_VECTOR_WALK_COLUMNS_H_

#include "walk_run.h"
#include "walk_steps.h"

namespace fs {
namespace {

constexpr int64_t kManyEnded = 4;  // of the walkers of a step, for their walks to be taken out: one in so many

// Steps of walkers in lock step, a chunk of them at a time.
template <typename Places, typename Id>
class ColumnWalk {
 public:
  explicit ColumnWalk(const WalkRun& run) : run_(run), places_(run.rows), going_on_(run.count) {}

  WalkedRun walk() {
    Id* nodes = static_cast<Id*>(run_.columns);
    int64_t taking = going_on(run_.first_step);
    while (walked_.num_steps < run_.num_steps && taking > 0) {
      const int64_t step = run_.first_step + walked_.num_steps++, asking = going_on(step + 1);
      const PickWords<kWords> words(run_.keys[step]);
      num_null_ = 0;
      for (int64_t first = 0; first < taking; first += kChunkPicks) {
        const int64_t count = taking - first < kChunkPicks ? taking - first : kChunkPicks;
        draw_positions(words, places_, WalkerRows<Id>{run_.rows.indptr, run_.sample_ids + first, nodes + first, count},
                       words_, positions_);
        take_neighbors(nodes + run_.stride + first, count, asking - first < count ? asking - first : count);
      }
      walked_.num_null += num_null_;
      if (walked_.num_bad > 0 || num_null_ * kManyEnded > taking) break;
      nodes += run_.stride;
      taking = asking;
    }
    return walked_;
  }

 private:
  static constexpr int kWords = Places::kWords;

  // Walkers that make a pick in a step; steps come in order.
  int64_t going_on(int64_t step) {
    while (going_on_ > 0 && run_.lengths[going_on_ - 1] <= step) --going_on_;
    return going_on_;
  }

  // Moves walkers to the neighbours there; the rows of the first `asking` of these are requested.
  void take_neighbors(Id* nodes, int64_t count, int64_t asking) {
    int64_t j = 0, num_null = 0;
    for (; j < asking; ++j) {
      const int64_t node = neighbor(j);
      nodes[j] = static_cast<Id>(node);
      num_null += static_cast<uint64_t>(node) >= run_.rows.num_rows;
      __builtin_prefetch(run_.rows.indptr + node, 0, kLevel2);
      __builtin_prefetch(run_.rows.indptr + node + 1, 0, kLevel2);  // one in eight begins in the next line
    }
    for (; j < count; ++j) {
      const int64_t node = neighbor(j);
      nodes[j] = static_cast<Id>(node);
      num_null += static_cast<uint64_t>(node) >= run_.rows.num_rows;
    }
    num_null_ += num_null;
    for (j = 0; num_null > 0 && j < count; ++j) walked_.num_bad += !is_fine(nodes[j]);
  }

  FS_INLINE int64_t neighbor(int64_t j) const {
    if (__builtin_expect(positions_[j] < 0, 0)) return FS_NULL_NODE;
    return places_.pick(
        positions_[j], words_[j / kGroupNodes * (kWords * kGroupNodes) + (kWords - 1) * kGroupNodes + j % kGroupNodes]);
  }
  bool is_fine(int64_t node) const { return node == FS_NULL_NODE || static_cast<uint64_t>(node) < run_.rows.num_rows; }

  const WalkRun& run_;
  const Places places_;
  WalkedRun walked_ = {0, 0, 0};
  int64_t going_on_, num_null_ = 0;
  alignas(64) uint32_t words_[kChunkPicks * kWords];
  int64_t positions_[kChunkPicks];
};

// The vertices of walks from their columns 1 .. num_steps.
template <typename Id>
void write_walks(const WalkRun& run, int64_t num_steps) {
  const Id* columns = static_cast<const Id*>(run.columns) + run.stride;
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t left = run.lengths[i] - run.first_step, steps = left < num_steps ? left : num_steps;
    int64_t* vertices = run.vertices + run.places[i] + run.first_step;
    for (int64_t k = 0; k < steps; ++k) vertices[k] = columns[k * run.stride + i];
  }
}

template <typename Id>
WalkedRun walk_on(const WalkRun& run) {
  const WalkedRun walked = run.rows.slots == nullptr ? ColumnWalk<UniformPlaces<Id>, Id>(run).walk()
                                                     : ColumnWalk<WeightedPlaces<Id>, Id>(run).walk();
  write_walks<Id>(run, walked.num_steps);
  return walked;
}

// lengths[i] = ppr_length (transit_draw.h) of the first two words of ids[i]'s stream, i < count; ids are filled up to
// a multiple of kGroupNodes. All lanes search the table at once.
void walk_lengths(StageKey key, const uint64_t* ids, int64_t count, const int64_t* table, int64_t entries,
                  int64_t* lengths) {
  const PickWords<2> words(key);
  for (int64_t first = 0; first < count; first += kGroupNodes) {
    alignas(64) uint32_t drawn[2 * kGroupNodes];
    int64_t variates[kGroupNodes], above[kGroupNodes] = {};
    words.make(ids + first, drawn);
    for (int l = 0; l < kGroupNodes; ++l) {
      variates[l] = static_cast<int64_t>((drawn[l] | static_cast<uint64_t>(drawn[kGroupNodes + l]) << 32) >> 1);
    }
    for (int64_t left = entries; left > 0;) {
      const int64_t half = (left + 1) / 2;
      for (int l = 0; l < kGroupNodes; ++l) {
        const int64_t is_above = -static_cast<int64_t>(table[above[l] + half - 1] > variates[l]);  // no branch
        above[l] += half & is_above;
      }
      left -= half;
    }
    const int64_t size = count - first < kGroupNodes ? count - first : kGroupNodes;
    for (int64_t l = 0; l < size; ++l) lengths[first + l] = 1 + above[l];
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_WALK_COLUMNS_H_
