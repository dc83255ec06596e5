// Picks that are to be distinct in a sample, on CUDA: the rounds of cpu/transit_picks.cpp.
//
// The picks of the first round stand in their places, repeated ones among them. A warp takes a sample of few picks, a
// block one of many, with a table from a vertex to the smallest number, round * picks + slot, under which it was
// picked. A slot keeps its vertex if that number is the slot's own; else it draws again, as the next round. A vertex
// whose slot keeps it has the smallest number for good, so rounds share one table, which holds no more vertices than
// there are slots: it is in shared memory where they are few.
#ifndef FS_CUDA_DISTINCT_ROUNDS_CUH_
#define FS_CUDA_DISTINCT_ROUNDS_CUH_

#include "block_sums.cuh"
#include "id_table.cuh"
#include "sorted_keys.cuh"
#include "transit_draw.h"

namespace fs {

constexpr int kWarpSlots = 64;                         // of the table of a warp
constexpr int64_t kSharedSlots = 512;                  // of the tables of a block in shared memory
constexpr int64_t kMostTableBytes = int64_t{1} << 28;  // of all blocks' tables in device memory, if these are several
constexpr int64_t kSlotBytes = 8 + sizeof(int64_t);    // a value and a key of any type
static_assert(kWarps * kWarpSlots <= kSharedSlots, "every warp of a block has a table");

// Where tables are, and how many blocks have one.
struct DistinctTables {
  int bits;  // of a table's slots
  int blocks;
  bool is_shared;
  char* memory;  // else: [blocks, slots * kSlotBytes]
  int64_t max_attempts;

  int64_t bytes() const { return is_shared ? 0 : blocks * (kSlotBytes << bits); }
  FS_HD bool by_warp() const { return int64_t{1} << bits <= kWarpSlots; }
};

namespace {

inline DistinctTables distinct_tables(int64_t picks, int64_t num_samples, int64_t max_attempts, void* memory) {
  DistinctTables tables = {bits_of(2 * picks - 1), 0, true, static_cast<char*>(memory), max_attempts};
  tables.blocks = blocks_for(num_samples * (tables.by_warp() ? kWarp : kThreads));
  tables.is_shared = int64_t{1} << tables.bits <= kSharedSlots;
  if (tables.is_shared) return tables;
  const int64_t most = kMostTableBytes / (kSlotBytes << tables.bits);
  if (tables.blocks > most) tables.blocks = most < 1 ? 1 : static_cast<int>(most);
  return tables;
}

// Whether it is so for a thread of the group. Every thread of the group must call it: what they wrote is seen then.
template <bool kByWarp>
FS_DEVICE bool any_of_group(bool is_so) {
  if (!kByWarp) return block_sum(is_so) > 0;
  __syncwarp(kAllLanes);
  return __any_sync(kAllLanes, is_so) != 0;
}

// One sample's picks of a step, as the threads of a group see them. Picks says what they are,
// as StepPicks (distinct_picks.cuh) does.
template <typename Picks, bool kByWarp>
struct DistinctSample {
  static constexpr int kLanes = kByWarp ? kWarp : kThreads;
  using Key = typename Picks::Key;

  const Picks& picks;
  const DeviceIdTable<Key>& table;
  int64_t sample;

  static FS_DEVICE int lane() { return static_cast<int>(threadIdx.x) % kLanes; }

  FS_DEVICE void start() const {
    for (int64_t slot = lane(); slot < table.slots; slot += kLanes) {
      table.keys[slot] = Key{-1};
      table.values[slot] = kNoValue;
    }
    any_of_group<kByWarp>(false);
  }

  // Enters a round's picks. Whether all are nodes or FS_NULL_NODE.
  FS_DEVICE bool enter(int64_t round) const {
    bool has_bad = false;
    for (int64_t n = lane(); n < picks.num_picks(); n += kLanes) {
      const int64_t node = *picks.place(sample, n);
      if (node == FS_NULL_NODE) continue;
      if (!picks.is_node(node)) {
        has_bad = true;
        continue;
      }
      const uint64_t slot = table.insert(static_cast<Key>(node));
      atomic_min(table.values + slot, static_cast<uint64_t>(round * picks.num_picks() + n));
    }
    return !any_of_group<kByWarp>(has_bad);
  }

  // Fills the slots of repeated vertices by the next round, or, behind the last, with FS_NULL_NODE. Whether it did.
  FS_DEVICE bool draw_again(int64_t round, bool is_last) const {
    bool draws = false;
    for (int64_t n = lane(); n < picks.num_picks(); n += kLanes) {
      int64_t* const place = picks.place(sample, n);
      if (*place == FS_NULL_NODE) continue;
      const uint64_t first = table.values[table.insert(static_cast<Key>(*place))];
      if (static_cast<uint32_t>(first) % static_cast<uint32_t>(picks.num_picks()) == n) continue;  // below 2^31
      draws = true;
      if (is_last) {
        *place = FS_NULL_NODE;
      } else {
        picks.pick(sample, round + 1, n);
      }
    }
    return any_of_group<kByWarp>(draws);
  }
};

// Every thread of the grid must call it.
template <bool kByWarp, typename Picks>
FS_DEVICE void keep_distinct_picks(const Picks& picks, const DistinctTables& tables) {
  using Key = typename Picks::Key;
  FS_SHARED(uint64_t, values, kSharedSlots);
  FS_SHARED(Key, keys, kSharedSlots);
  using Sample = DistinctSample<Picks, kByWarp>;
  const int64_t slots = int64_t{1} << tables.bits, own = kByWarp ? warp_in_block() * slots : 0;
  DeviceIdTable<Key> table = {keys + own, values + own, slots, tables.bits};
  if (!tables.is_shared) {
    char* const memory = tables.memory + blockIdx.x * (kSlotBytes << tables.bits);
    table.values = reinterpret_cast<uint64_t*>(memory);
    table.keys = reinterpret_cast<Key*>(memory + slots * 8);
  }
  const int64_t groups = num_threads() / Sample::kLanes;
  for (int64_t i = thread_number() / Sample::kLanes; i < picks.num_samples(); i += groups) {
    const Sample sample = {picks, table, i};
    sample.start();
    for (int64_t round = 0; sample.enter(round); ++round) {
      if (!sample.draw_again(round, round + 1 == tables.max_attempts)) break;
      if (round + 1 == tables.max_attempts) break;
    }
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CUDA_DISTINCT_ROUNDS_CUH_
