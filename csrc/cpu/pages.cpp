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

void* allocate_pages(size_t bytes) {
  const size_t unit = bytes >= kHugePage ? kHugePage : kLine;
  const size_t size = round_up(bytes > 0 ? bytes : 1, unit);
  void* memory = aligned_alloc(unit, size);
  if (memory == nullptr) throw std::bad_alloc();
  advise_huge_pages(memory, size, false);
  return memory;
}

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
