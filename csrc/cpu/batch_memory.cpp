// Blocks by size: powers of two, each with a list of the free ones, chained through their headers. A header is the
// cache line before a block.
#include "batch_memory.h"

#include <stdlib.h>
#include <string.h>

#include <new>

#include "kept_memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fs {
namespace {

constexpr size_t kHeader = 64;
constexpr int kMinLog2 = 8;  // 256 bytes, the header among them
constexpr int kMaxLog2 = 48;

struct Header {
  int log2_size;  // of header and block
  Header* next;   // free block of the same size
};

Header* header_of(void* block) { return reinterpret_cast<Header*>(static_cast<char*>(block) - kHeader); }
void* block_of(Header* header) { return reinterpret_cast<char*>(header) + kHeader; }
size_t room_of(int log2_size) { return (size_t{1} << log2_size) - kHeader; }

// Tells the address sanitizer, which sees whole allocations, that only the first `used` bytes of a block may be
// touched.
void mark_used([[maybe_unused]] Header* header, [[maybe_unused]] size_t used) {
#if defined(__SANITIZE_ADDRESS__)
  char* block = static_cast<char*>(block_of(header));
  ASAN_UNPOISON_MEMORY_REGION(block, used);
  ASAN_POISON_MEMORY_REGION(block + used, room_of(header->log2_size) - used);
#endif
}

class FreeBlocks {
 public:
  Header* take(int log2_size) {
    const std::lock_guard<std::mutex> hold(mutex_);
    Header* header = lists_[log2_size];
    if (header == nullptr) return nullptr;
    lists_[log2_size] = header->next;
    kept_ -= size_t{1} << log2_size;
    return header;
  }
  // False: enough is kept already.
  bool give(Header* header) {
    const std::lock_guard<std::mutex> hold(mutex_);
    const size_t size = size_t{1} << header->log2_size;
    if (kept_ + size > kKeptBytes) return false;
    mark_used(header, 0);
    header->next = lists_[header->log2_size];
    lists_[header->log2_size] = header;
    kept_ += size;
    return true;
  }

 private:
  friend class KeptMemory<FreeBlocks>;

  std::mutex mutex_;
  Header* lists_[kMaxLog2 + 1] = {};
  size_t kept_ = 0;
};

FreeBlocks& free_blocks() { return KeptMemory<FreeBlocks>::get(); }

}  // namespace

void* take_block(size_t bytes) {
  int log2_size = kMinLog2;
  while (log2_size < kMaxLog2 && room_of(log2_size) < bytes) ++log2_size;
  if (room_of(log2_size) < bytes) throw std::bad_alloc();
  Header* header = free_blocks().take(log2_size);
  if (header == nullptr) {
    header = static_cast<Header*>(aligned_alloc(kHeader, size_t{1} << log2_size));
    if (header == nullptr) throw std::bad_alloc();
    header->log2_size = log2_size;
  }
  mark_used(header, bytes);
  return block_of(header);
}

void give_block(void* block) {
  if (block == nullptr) return;
  Header* header = header_of(block);
  if (free_blocks().give(header)) return;
  mark_used(header, room_of(header->log2_size));
  free(header);
}

void* grow_block(void* block, size_t used, size_t bytes) {
  if (block != nullptr && room_of(header_of(block)->log2_size) >= bytes) {
    mark_used(header_of(block), bytes);
    return block;
  }
  void* larger = take_block(bytes);
  if (used > 0) memcpy(larger, block, used);
  give_block(block);
  return larger;
}

}  // namespace fs
