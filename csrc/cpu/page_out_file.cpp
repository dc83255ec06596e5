// page_out_file: a mapped file that another thread reads once, kept from filling memory.
//
// A library that maps a large file and reads it from front to back holds all its pages until it is done. Here the pages
// of its mapping are given back to the system time and again (MADV_PAGEOUT, Linux 5.4). That changes no byte, whatever
// the mapping has become since its address was read: a page that is wanted again is read again.
#include <stdio.h>
#include <string.h>

#include <chrono>
#include <string>
#include <thread>

#include "status.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fs {
namespace {

[[maybe_unused]] constexpr int kPageOut = 21;  // MADV_PAGEOUT, which older headers lack

#if defined(__linux__)

// One line of /proc/self/maps, which ends with the file's path; false: it is not of that file.
bool range_of(const std::string& line, const std::string& path, unsigned long& begin, unsigned long& end) {
  int at = 0;
  if (sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %*s %n", &begin, &end, &at) < 2 || at == 0) return false;
  return line.compare(static_cast<size_t>(at), std::string::npos, path) == 0;
}

bool read_line(FILE* file, std::string& line) {
  line.clear();
  for (int c = getc(file); c != EOF; c = getc(file)) {
    if (c == '\n') return true;
    line.push_back(static_cast<char>(c));
  }
  return !line.empty();
}

FsStatus page_out(const std::string& path) {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return fail(FS_DEVICE_ERROR, "page_out_file: the system does not say which files are mapped");
  std::string line;
  unsigned long begin = 0, end = 0;
  while (read_line(maps, line)) {
    // A refusal (another kind of mapping by now, an older system) leaves the pages where they are.
    if (range_of(line, path, begin, end)) madvise(reinterpret_cast<void*>(begin), end - begin, kPageOut);
  }
  fclose(maps);
  return FS_OK;
}

#else

FsStatus page_out(const std::string&) { return FS_OK; }

#endif

FsStatus page_out_file(const char* path, int64_t interval_ms, const int32_t* stop) {
  const std::string wanted(path);
  while (__atomic_load_n(stop, __ATOMIC_ACQUIRE) == 0) {
    const FsStatus status = page_out(wanted);
    if (status != FS_OK) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(interval_ms));
  }
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_page_out_file(const char* path, int64_t interval_ms, const int32_t* stop) {
  return fs::guarded("page_out_file", [&] { return fs::page_out_file(path, interval_ms, stop); });
}
