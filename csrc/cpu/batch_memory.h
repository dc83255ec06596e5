// Memory of mini-batches: what a freed batch leaves is given to the next one, so that a steady state asks the system
// for nothing and touches no new page.
#ifndef FS_CPU_BATCH_MEMORY_H_
#define FS_CPU_BATCH_MEMORY_H_

#include <stddef.h>
#include <stdint.h>

namespace fs {

// A block of at least `bytes` bytes, aligned to 64; contents undefined. Throws bad_alloc. Any thread may call.
void* take_block(size_t bytes);
// Gives a block of take_block back; null is allowed. At most kKeptBytes are kept, the rest goes to the system.
void give_block(void* block);
// Moves the first `used` bytes to a block of at least `bytes` bytes, unless `block` has that room already.
void* grow_block(void* block, size_t used, size_t bytes);

constexpr size_t kKeptBytes = size_t{256} << 20;

template <typename T>
T* take_array(int64_t count) {
  return static_cast<T*>(take_block(static_cast<size_t>(count > 0 ? count : 1) * sizeof(T)));
}

}  // namespace fs

#endif  // FS_CPU_BATCH_MEMORY_H_
