// An open-addressing table from node id to local id, and the small set that Floyd's selection uses for large fanouts.
//
// Linear probing over a power-of-two number of slots, at most half full; Fibonacci hashing. A slot whose key is
// negative is empty. The caller owns the slots, so that a device can place them where it likes.
#ifndef FS_CORE_HASH_SET_H_
#define FS_CORE_HASH_SET_H_

#include <stdint.h>

#include "platform.h"

namespace fs {

template <typename Id>
struct IdSlot {
  Id key;    // < 0: empty
  Id local;  // local id of key
};

template <typename Id>
struct IdTable {
  IdSlot<Id>* slots = nullptr;
  int log2_capacity = 0;  // capacity = 2^log2_capacity slots

  FS_HD uint64_t home(Id key) const {
    return (static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ull) >> (64 - log2_capacity);
  }
  // The slot that holds `key`, or the empty slot where it belongs.
  FS_HD IdSlot<Id>* find(Id key) const {
    const uint64_t mask = (1ull << log2_capacity) - 1;
    uint64_t at = home(key);
    while (slots[at].key >= 0 && slots[at].key != key) at = (at + 1) & mask;
    return slots + at;
  }
};

}  // namespace fs

#endif  // FS_CORE_HASH_SET_H_
