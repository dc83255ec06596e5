// Which part owns a node: parts have consecutive ranges of ids.
#ifndef FS_CORE_PART_OWNER_H_
#define FS_CORE_PART_OWNER_H_

#include <stdint.h>

#include "platform.h"

namespace fs {

// The last part that begins at or before `id`; part_ranges [num_parts + 1]. Any id gives some part. Without branches:
// owners come in no predictable order.
FS_HD int64_t owner_of(int64_t id, const int64_t* part_ranges, int64_t num_parts) {
  int64_t part = 0;
  for (int64_t left = num_parts; left > 1; left -= left / 2) {
    part += (id >= part_ranges[part + left / 2]) * (left / 2);
  }
  return part;
}

}  // namespace fs

#endif  // FS_CORE_PART_OWNER_H_
