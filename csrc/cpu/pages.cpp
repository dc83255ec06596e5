// Huge pages: see pages.h.
#include "pages.h"

#include <stdlib.h>

#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "fastsample.h"

namespace fs {
namespace {

constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kLine = 64;
[[maybe_unused]] constexpr int kCollapse = 25;  // MADV_COLLAPSE of Linux 6.1, which older headers lack

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

#if defined(__linux__)

// Large memory is a mapping of its own: what malloc has cut up and handed out before may be in small pages for good.
Pages Pages::take(size_t bytes) {
  if (bytes < kHugePage) {
    void* memory = aligned_alloc(kLine, round_up(bytes > 0 ? bytes : 1, kLine));
    if (memory == nullptr) throw std::bad_alloc();
    return {memory, bytes};
  }
  const size_t size = round_up(bytes, kHugePage);
  void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const uintptr_t first = reinterpret_cast<uintptr_t>(mapped), begin = round_up(first, kHugePage);
  if (begin > first) munmap(mapped, begin - first);
  const uintptr_t behind = begin + size;
  munmap(reinterpret_cast<void*>(behind), first + size + kHugePage - behind);
  advise_huge_pages(reinterpret_cast<void*>(begin), size, false);
  return {reinterpret_cast<void*>(begin), bytes};
}

void Pages::give() const {
  if (bytes < kHugePage) {
    free(data);
  } else {
    munmap(data, round_up(bytes, kHugePage));
  }
}

#else

Pages Pages::take(size_t bytes) {
  void* memory = aligned_alloc(kLine, round_up(bytes > 0 ? bytes : 1, kLine));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, bytes};
}

void Pages::give() const { free(data); }

#endif

void advise_huge_pages(const void* bytes, size_t count, bool now) {
#if defined(MADV_HUGEPAGE)
  const uintptr_t first = reinterpret_cast<uintptr_t>(bytes);
  const uintptr_t begin = round_up(first, kHugePage), end = (first + count) / kHugePage * kHugePage;
  if (begin >= end) return;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  if (now) madvise(reinterpret_cast<void*>(begin), end - begin, kCollapse);
#else
  (void)bytes;
  (void)count;
  (void)now;
#endif
}

}  // namespace fs

extern "C" void fs_advise_huge_pages(const void* bytes, int64_t count, int32_t now) {
  fs::advise_huge_pages(bytes, static_cast<size_t>(count), now != 0);
}
