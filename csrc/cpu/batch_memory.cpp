// Blocks by size: powers of two, each with a list of the free ones, chained through their first bytes. A header of one
// cache line before a block holds its size.
#include "batch_memory.h"

#include <stdlib.h>
#include <string.h>

#include <mutex>
#include <new>

namespace fs {
namespace {

constexpr size_t kHeader = 64;
constexpr int kMinLog2 = 8;  // 256 bytes, the header among them
constexpr int kMaxLog2 = 48;

struct Header {
  int log2_size;  // of header and block
};
struct Free {
  Free* next;
};

Header* header_of(void* block) { return reinterpret_cast<Header*>(static_cast<char*>(block) - kHeader); }
size_t room_of(int log2_size) { return (size_t{1} << log2_size) - kHeader; }

class FreeBlocks {
 public:
  void* take(int log2_size) {
    const std::lock_guard<std::mutex> hold(mutex_);
    Free* block = lists_[log2_size];
    if (block == nullptr) return nullptr;
    lists_[log2_size] = block->next;
    kept_ -= size_t{1} << log2_size;
    return block;
  }
  // False: enough is kept already.
  bool give(void* block, int log2_size) {
    const std::lock_guard<std::mutex> hold(mutex_);
    const size_t size = size_t{1} << log2_size;
    if (kept_ + size > kKeptBytes) return false;
    Free* free_block = static_cast<Free*>(block);
    free_block->next = lists_[log2_size];
    lists_[log2_size] = free_block;
    kept_ += size;
    return true;
  }

 private:
  std::mutex mutex_;
  Free* lists_[kMaxLog2 + 1] = {};
  size_t kept_ = 0;
};

// Never destructed: tensors over a batch may be freed after the library's other statics.
FreeBlocks& free_blocks() {
  static FreeBlocks* blocks = new FreeBlocks;
  return *blocks;
}

}  // namespace

void* take_block(size_t bytes) {
  int log2_size = kMinLog2;
  while (log2_size < kMaxLog2 && room_of(log2_size) < bytes) ++log2_size;
  if (room_of(log2_size) < bytes) throw std::bad_alloc();
  void* block = free_blocks().take(log2_size);
  if (block != nullptr) return block;
  void* memory = aligned_alloc(kHeader, size_t{1} << log2_size);
  if (memory == nullptr) throw std::bad_alloc();
  static_cast<Header*>(memory)->log2_size = log2_size;
  return static_cast<char*>(memory) + kHeader;
}

void give_block(void* block) {
  if (block == nullptr) return;
  Header* header = header_of(block);
  if (!free_blocks().give(block, header->log2_size)) free(header);
}

void* grow_block(void* block, size_t used, size_t bytes) {
  if (block != nullptr && room_of(header_of(block)->log2_size) >= bytes) return block;
  void* larger = take_block(bytes);
  if (used > 0) memcpy(larger, block, used);
  give_block(block);
  return larger;
}

}  // namespace fs
