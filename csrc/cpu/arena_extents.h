// Which bytes of an arena are free: extents in ascending order that do not touch, in memory of the caller's. The first
// one that fits is given away, so that what is used stays at the front.
#ifndef FS_CPU_ARENA_EXTENTS_H_
#define FS_CPU_ARENA_EXTENTS_H_

#include <stdint.h>

#include <algorithm>

namespace fs {

struct Extent {
  int64_t offset, bytes;
};

class ArenaExtents {
 public:
  // count: of the extents; `extents` has room for one more than there are pieces in use.
  ArenaExtents(Extent* extents, int64_t* count) : extents_(extents), count_(count) {}

  void make(int64_t arena_bytes) {
    extents_[0] = {0, arena_bytes};
    *count_ = 1;
  }

  // Where `bytes` that end at `limit` or before are now in use; -1: nowhere.
  int64_t take(int64_t bytes, int64_t limit) {
    for (Extent* extent = extents_; extent < extents_ + *count_; ++extent) {
      if (extent->offset + bytes > limit) return -1;
      if (extent->bytes < bytes) continue;
      const int64_t offset = extent->offset;
      extent->offset += bytes;
      extent->bytes -= bytes;
      if (extent->bytes == 0) remove(extent);
      return offset;
    }
    return -1;
  }

  void give_back(int64_t offset, int64_t bytes) {
    if (bytes == 0) return;
    Extent* end = extents_ + *count_;
    Extent* next = std::lower_bound(extents_, end, offset, [](const Extent& e, int64_t at) { return e.offset < at; });
    const bool joins_before = next > extents_ && next[-1].offset + next[-1].bytes == offset;
    const bool joins_next = next < end && offset + bytes == next->offset;
    if (joins_before) {
      next[-1].bytes += bytes;
      if (joins_next) {
        next[-1].bytes += next->bytes;
        remove(next);
      }
    } else if (joins_next) {
      *next = {offset, next->bytes + bytes};
    } else {
      std::copy_backward(next, end, end + 1);
      *next = {offset, bytes};
      ++*count_;
    }
  }

 private:
  void remove(Extent* extent) {
    std::copy(extent + 1, extents_ + *count_, extent);
    --*count_;
  }

  Extent* extents_;
  int64_t* count_;
};

}  // namespace fs

#endif  // FS_CPU_ARENA_EXTENTS_H_
