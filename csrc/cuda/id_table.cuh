// A table from node ids to 64-bit values in device memory, filled by many threads at once.
//
// Where the ids are few, the slot of an id is the id itself and there are no keys; else slots are found by hashing with
// linear probing, in a table of at least twice as many slots as distinct ids will come. A key is empty where all its
// bits are one, and so is a value; who fills a table makes it empty first. A table for fewer ids than may come can
// become too full; then an id finds no slot, after a few looks already.
#ifndef FS_CUDA_ID_TABLE_CUH_
#define FS_CUDA_ID_TABLE_CUH_

#include "device.cuh"

namespace fs {

constexpr uint64_t kNoValue = ~0ull;
constexpr uint64_t kNoSlot = ~0ull;

// Sizes of a table; the same on host and device.
struct IdTableSize {
  int64_t slots;
  bool is_direct;
  int bits;  // of a hash
};

// For at most `most_ids` distinct ids out of 0 .. num_ids - 1: whichever kind is smaller. A slot takes one bit less
// than an id has: with more than 2^30 ids of 32 bits a hashed table is fuller than half.
inline IdTableSize id_table_size(int64_t most_ids, int64_t num_ids, int64_t id_bytes) {
  int bits = 1;
  while ((int64_t{1} << bits) < 2 * most_ids && bits < 8 * id_bytes - 1) ++bits;
  const int64_t hashed = int64_t{1} << bits;
  if (num_ids * 8 <= hashed * (8 + id_bytes)) return {num_ids, true, 0};
  return {hashed, false, bits};
}

#if defined(FS_EMULATED)
constexpr int64_t kLargeTable = 2 << 10;
#else
constexpr int64_t kLargeTable = 32 << 20;  // bytes; most of the second-level cache of an A100 (40 MB) or H100 (50 MB)
#endif
constexpr int64_t kDirectFactor = 8;    // a hashed table is emptied for every batch, a direct one is not
constexpr uint64_t kMostProbes = 1024;  // of an id in a table that may become too full

// Of at most `most_ids` ids how many a table has room for, of which `expected_ids` are expected, or 0: all. All as well
// where their table is not large, or the other one not much smaller.
inline int64_t table_room(int64_t most_ids, int64_t expected_ids, int64_t num_ids, int64_t id_bytes) {
  if (expected_ids < 1 || expected_ids >= most_ids) return most_ids;
  const IdTableSize all = id_table_size(most_ids, num_ids, id_bytes);
  const IdTableSize few = id_table_size(expected_ids, num_ids, id_bytes);
  const int64_t bytes = all.slots * (all.is_direct ? 8 : 8 + id_bytes), few_bytes = few.slots * (8 + id_bytes);
  if (few.is_direct || bytes <= kLargeTable) return most_ids;
  return few_bytes <= bytes / (all.is_direct ? kDirectFactor : 2) ? expected_ids : most_ids;
}

FS_DEVICE int32_t swap_if_empty(int32_t* key, int32_t id) {
  return static_cast<int32_t>(atomic_cas(reinterpret_cast<uint32_t*>(key), ~0u, static_cast<uint32_t>(id)));
}
FS_DEVICE int64_t swap_if_empty(int64_t* key, int64_t id) {
  return static_cast<int64_t>(atomic_cas(reinterpret_cast<uint64_t*>(key), ~0ull, static_cast<uint64_t>(id)));
}

template <typename Id>
struct DeviceIdTable {
  Id* keys;          // [slots] -1: empty; null: the slot of an id is the id
  uint64_t* values;  // [slots]
  int64_t slots;
  int bits;
  uint64_t most_probes = ~0ull;  // for an id, beside `slots`

  // Slot of an id >= 0, which is put in where it is new. kNoSlot: the table is too full, for this and for every further
  // call with the id.
  FS_DEVICE uint64_t insert(Id id) const {
    if (keys == nullptr) return static_cast<uint64_t>(id);
    const uint64_t last = static_cast<uint64_t>(slots) - 1, probes = most_probes <= last ? most_probes : last + 1;
    uint64_t slot = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull >> (64 - bits);
    for (uint64_t probe = 0; probe < probes; ++probe, slot = (slot + 1) & last) {
      Id found = *static_cast<volatile Id*>(keys + slot);
      if (found == Id{-1}) found = swap_if_empty(keys + slot, id);
      if (found == Id{-1} || found == id) return slot;
    }
    return kNoSlot;
  }

  // Slot of an id >= 0 in a table that is not full; kNoSlot: it has none.
  FS_DEVICE uint64_t find(Id id) const {
    if (keys == nullptr) return static_cast<uint64_t>(id);
    const uint64_t last = static_cast<uint64_t>(slots) - 1;
    for (uint64_t slot = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull >> (64 - bits);; slot = (slot + 1) & last) {
      if (keys[slot] == id) return slot;
      if (keys[slot] == Id{-1}) return kNoSlot;
    }
  }

  // Id of a slot that other blocks may just have filled; Id{-1}: that cannot be seen yet. A key changes once, from -1
  // to its id, so what is not -1 needs no order with anything else.
  FS_DEVICE Id id_now(uint64_t slot) const { return keys == nullptr ? static_cast<Id>(slot) : load_now(keys + slot); }

  FS_DEVICE Id id_at(uint64_t slot) const { return keys == nullptr ? static_cast<Id>(slot) : keys[slot]; }
};

}  // namespace fs

#endif  // FS_CUDA_ID_TABLE_CUH_
