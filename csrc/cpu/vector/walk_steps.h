// Picks of many transits in lock step. A chunk of picks goes through three plain loops: its random words; the rows of
// the transits, which give the positions, requested from memory; the neighbours found there, whose own rows are
// requested in turn. Each loop has as many reads under way as the processor takes. Measured: fusing the loops group by
// group was slower (24 against 19 ns per step of a walk on 123 M edges).
//
// A draw that Lemire's method may have to repeat (one of 2^32 / degree) is made again by its definition.
#ifndef FS_CPU_VECTOR_WALK_STEPS_H_
#define FS_CPU_VECTOR_WALK_STEPS_H_

#include "pick_run.h"
#include "pick_words.h"
#include "transit_draw.h"
#include "walk_slot.h"

namespace fs {
namespace {

constexpr int kChunkPicks = 128;
constexpr int64_t kNoPosition = -1;
constexpr int kLevel2 =
    2;  // of a request: into the second cache, towards which more of them are under way (50 -> 58 M/s)

// What uniform and weighted picks differ in.
template <typename Id>
struct UniformPlaces {
  static constexpr int kWords = 1;
  const Id* ids;

  explicit UniformPlaces(const PickedRows& rows) : ids(static_cast<const Id*>(rows.indices)) {}
  FS_INLINE void ask_for(int64_t position) const { __builtin_prefetch(ids + position, 0, kLevel2); }
  FS_INLINE int64_t pick(int64_t position, uint32_t) const { return ids[position]; }
};

template <typename Id>
struct WeightedPlaces {
  static constexpr int kWords = 2;
  const WalkSlots<Id> slots;

  explicit WeightedPlaces(const PickedRows& rows)
      : slots(rows.slots, static_cast<int64_t>(rows.num_rows), rows.num_edges) {}
  FS_INLINE void ask_for(int64_t position) const {
    __builtin_prefetch(slots.first(position), 0, kLevel2);
    if (slots.kCrossesLines) __builtin_prefetch(slots.last(position), 0, kLevel2);
  }
  FS_INLINE int64_t pick(int64_t position, uint32_t word) const { return slots.pick(position, word); }
};

// A pick: what its stream is keyed by.
struct PickKey {
  StageKey stage;
  uint64_t sample_id, number;
};

// A draw by its definition.
template <int kWords>
__attribute__((noinline)) uint64_t draw_again(const PickKey& key, uint64_t degree, uint32_t* second) {
  PickStream stream(key.stage, static_cast<int64_t>(key.sample_id), static_cast<int64_t>(key.number));
  const uint64_t position = stream.below(degree);
  if (kWords == 2) *second = stream.next();
  return position;
}

// The position of a pick in a row, by the first word of its stream; the second one is behind it.
template <int kWords>
FS_INLINE int64_t draw_position(const PickKey& key, int64_t begin, uint64_t degree, uint32_t* word) {
  const uint64_t product = static_cast<uint64_t>(*word) * static_cast<uint32_t>(degree);
  uint64_t position = product >> 32;
  if (__builtin_expect(static_cast<uint32_t>(product) < degree, 0)) {
    position = draw_again<kWords>(key, degree, word + kGroupNodes);
  }
  return degree == 0 ? kNoPosition : begin + static_cast<int64_t>(position);
}

// Walkers that make a pick each.
template <typename Id>
struct WalkerRows {
  const int64_t* indptr;
  const uint64_t* sample_ids;  // [count, filled up to a multiple of kGroupNodes]
  const Id* nodes;             // [count] where they are; negative: nowhere
  int64_t count;
};

// Draws the picks of up to kChunkPicks walkers and requests the neighbours. Words are made group by group, between the
// requests: they cost little while the processor waits for memory.
template <typename Places, typename Id>
FS_INLINE void draw_positions(const PickWords<Places::kWords>& words, const Places& places,
                              const WalkerRows<Id>& walkers, uint32_t* drawn, int64_t* positions) {
  constexpr int kWords = Places::kWords;
  for (int64_t group = 0; group < walkers.count; group += kGroupNodes) {
    const uint64_t* ids = walkers.sample_ids + group;
    uint32_t* first_words = drawn + group * kWords;
    words.make(ids, first_words);
    const int64_t size = walkers.count - group < kGroupNodes ? walkers.count - group : kGroupNodes;
    for (int64_t l = 0; l < size; ++l) {
      const int64_t node = walkers.nodes[group + l];
      int64_t& position = positions[group + l];
      if (__builtin_expect(node < 0, 0)) {
        position = kNoPosition;
        continue;
      }
      const int64_t begin = walkers.indptr[node];
      const uint64_t degree = static_cast<uint64_t>(walkers.indptr[node + 1] - begin);
      position = draw_position<kWords>({words.key(), ids[l], 0}, begin, degree, first_words + l);
      places.ask_for(position);
    }
  }
}

template <typename Places, bool kOneTransit>
void find_positions(const PickRun& run, const Places& places, int64_t first, int64_t count, uint32_t* words,
                    int64_t* positions) {
  constexpr int kWords = Places::kWords;
  const int64_t only = kOneTransit ? run.transits[0] : 0;
  const int64_t only_begin = kOneTransit ? run.rows.indptr[only] : 0;
  const uint64_t only_degree = kOneTransit ? static_cast<uint64_t>(run.rows.indptr[only + 1] - only_begin) : 0;
  for (int64_t j = 0; j < count; ++j) {
    const int64_t transit = kOneTransit ? only : run.transits[first + j];
    if (__builtin_expect(transit < 0, 0)) {
      positions[j] = kNoPosition;
      continue;
    }
    const int64_t begin = kOneTransit ? only_begin : run.rows.indptr[transit];
    const uint64_t degree = kOneTransit ? only_degree : static_cast<uint64_t>(run.rows.indptr[transit + 1] - begin);
    uint32_t* word = words + j / kGroupNodes * (kWords * kGroupNodes) + j % kGroupNodes;
    const uint64_t number = run.pick_numbers == nullptr ? 0 : run.pick_numbers[first + j];
    positions[j] = draw_position<kWords>({run.key, run.sample_ids[first + j], number}, begin, degree, word);
    places.ask_for(positions[j]);
  }
}

template <typename Places, bool kGoesOn>
void take_neighbors(const PickRun& run, const Places& places, int64_t first, int64_t count, const uint32_t* words,
                    const int64_t* positions, PickedRun* picked) {
  constexpr int kWords = Places::kWords;
  int64_t num_null = 0, num_bad = 0;
  for (int64_t j = 0; j < count; ++j) {
    int64_t node = FS_NULL_NODE;
    if (__builtin_expect(positions[j] >= 0, 1)) {
      const uint32_t* word = words + j / kGroupNodes * (kWords * kGroupNodes) + j % kGroupNodes;
      node = places.pick(positions[j], word[(kWords - 1) * kGroupNodes]);
    }
    run.out[run.places[first + j]] = node;
    if (__builtin_expect(static_cast<uint64_t>(node) >= run.rows.num_rows, 0)) {
      num_bad += node != FS_NULL_NODE;
      node = FS_NULL_NODE;
      ++num_null;
    }
    run.next[first + j] = node;
    if (kGoesOn) __builtin_prefetch(run.rows.indptr + node, 0, kLevel2);
  }
  picked->num_null += num_null;
  picked->num_bad += num_bad;
}

template <typename Places>
PickedRun picks_of(const PickRun& run) {
  constexpr int kWords = Places::kWords;
  alignas(64) uint32_t words[kChunkPicks * kWords];
  int64_t positions[kChunkPicks];
  const Places places(run.rows);
  PickedRun picked = {0, 0};
  for (int64_t first = 0; first < run.count; first += kChunkPicks) {
    const int64_t count = run.count - first < kChunkPicks ? run.count - first : kChunkPicks;
    const uint64_t* numbers = run.pick_numbers == nullptr ? nullptr : run.pick_numbers + first;
    pick_words<kWords>(run.key, run.sample_ids + first, numbers, (count + kGroupNodes - 1) / kGroupNodes, words);
    if (run.one_transit) {
      find_positions<Places, true>(run, places, first, count, words, positions);
    } else {
      find_positions<Places, false>(run, places, first, count, words, positions);
    }
    if (run.goes_on) {
      take_neighbors<Places, true>(run, places, first, count, words, positions, &picked);
    } else {
      take_neighbors<Places, false>(run, places, first, count, words, positions, &picked);
    }
  }
  return picked;
}

template <typename Id>
PickedRun pick_neighbors(const PickRun& run) {
  return run.rows.slots == nullptr ? picks_of<UniformPlaces<Id>>(run) : picks_of<WeightedPlaces<Id>>(run);
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_WALK_STEPS_H_
