// Floyd's selection (core/pick.h) for sixteen rows side by side, one row to a lane.
#ifndef FS_CPU_VECTOR_FLOYD_GROUP_H_
#define FS_CPU_VECTOR_FLOYD_GROUP_H_

#include <stdint.h>

#include "platform.h"
#include "vector_kernels.h"

namespace fs {
namespace {

typedef uint32_t GroupLanes __attribute__((vector_size(kGroupNodes * sizeof(uint32_t))));

struct GroupPicks {
  alignas(64) uint32_t positions[kGroupFanout][kGroupNodes];
  alignas(64) uint32_t redo[kGroupNodes];  // not 0: the lane may need more than one word for a pick; draw it singly
};

// Picks i < fanout of every lane from words [fanout][kGroupNodes]. Without replacement every degree exceeds fanout.
// A lane whose draws meet the rejection of NodeStream::below cannot use word i for pick i any more: it is marked.
template <bool kReplace>
FS_INLINE void pick_group(const uint32_t* words, const GroupLanes& degrees, int fanout, GroupPicks* out) {
  GroupLanes redo = degrees ^ degrees;
  GroupLanes* positions = reinterpret_cast<GroupLanes*>(out->positions);
  for (int i = 0; i < fanout; ++i) {
    alignas(64) uint32_t bounds[kGroupNodes], high[kGroupNodes], low[kGroupNodes];
    const GroupLanes bound = kReplace ? degrees : degrees - static_cast<uint32_t>(fanout - 1 - i);
    *reinterpret_cast<GroupLanes*>(bounds) = bound;
    const uint32_t* drawn = words + i * kGroupNodes;
#pragma omp simd
    for (int l = 0; l < kGroupNodes; ++l) {
      const uint64_t product = static_cast<uint64_t>(drawn[l]) * bounds[l];
      high[l] = static_cast<uint32_t>(product >> 32);
      low[l] = static_cast<uint32_t>(product);
    }
    redo |= reinterpret_cast<const GroupLanes&>(low) < bound;
    const GroupLanes position = reinterpret_cast<const GroupLanes&>(high);
    if (kReplace) {
      positions[i] = position;
      continue;
    }
    GroupLanes taken = degrees ^ degrees;
    for (int j = 0; j < i; ++j) taken |= positions[j] == position;
    positions[i] = (position & ~taken) | ((bound - 1) & taken);
  }
  *reinterpret_cast<GroupLanes*>(out->redo) = redo;
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_FLOYD_GROUP_H_
