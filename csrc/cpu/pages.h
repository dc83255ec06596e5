// Memory in huge pages where the system has them: random reads then miss the processor's page table cache less often.
#ifndef FS_CPU_PAGES_H_
#define FS_CPU_PAGES_H_

#include <stddef.h>
#include <stdint.h>

namespace fs {

// Memory aligned to 64 bytes; from a huge page's size on, to a huge page.
struct Pages {
  void* data;
  size_t bytes;

  static Pages take(size_t bytes);  // throws bad_alloc
  void give() const;
};

// Asks the system to hold bytes[0 .. count) in huge pages: anonymous memory and, where the system can, mapped files.
// `now` gathers pages that exist already. Contents are untouched, and a system that cannot is not an error.
void advise_huge_pages(const void* bytes, size_t count, bool now);

}  // namespace fs

#endif  // FS_CPU_PAGES_H_
