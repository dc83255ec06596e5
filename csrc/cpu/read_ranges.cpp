// read_ranges: many pieces of a file, one after the other in memory.
//
// Pieces that lie close together are read at once and picked apart, so that a sweep over a file costs few calls; unlike
// a mapping, what was read leaves no pages of the file with the process.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "status.h"

namespace fs {
namespace {

constexpr int64_t kGap = 1 << 14;   // a longer gap costs more to copy than a second call
constexpr int64_t kSpan = 1 << 20;  // of pieces read at once

FsStatus read_span(int fd, int64_t begin, int64_t count, char* out) {
  while (count > 0) {
    const ssize_t got = pread(fd, out, static_cast<size_t>(count), begin);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(FS_DEVICE_ERROR, "read_ranges: %s", strerror(errno));
    if (got == 0) {
      return fail(FS_INVALID_ARGUMENT, "read_ranges: the file ends at byte %lld; expected %lld more",
                  static_cast<long long>(begin), static_cast<long long>(count));
    }
    begin += got;
    out += got;
    count -= got;
  }
  return FS_OK;
}

FsStatus read_ranges(int fd, const int64_t* begins, const int64_t* sizes, int64_t num_ranges, char* out) {
  const std::unique_ptr<char[]> span(new char[kSpan]);
  for (int64_t i = 0; i < num_ranges;) {
    const int64_t begin = begins[i];
    int64_t end = begin + sizes[i], next = i + 1;
    while (next < num_ranges && begins[next] >= end && begins[next] - end <= kGap &&
           begins[next] + sizes[next] - begin <= kSpan) {
      end = begins[next] + sizes[next];
      ++next;
    }
    if (next == i + 1) {
      const FsStatus status = read_span(fd, begin, sizes[i], out);
      if (status != FS_OK) return status;
      out += sizes[i];
    } else {
      const FsStatus status = read_span(fd, begin, end - begin, span.get());
      if (status != FS_OK) return status;
      for (int64_t j = i; j < next; ++j) {
        out = std::copy_n(span.get() + (begins[j] - begin), sizes[j], out);
      }
    }
    i = next;
  }
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_read_ranges(int32_t fd, const int64_t* begins, const int64_t* sizes, int64_t num_ranges,
                                   void* out) {
  return fs::guarded("read_ranges",
                     [&] { return fs::read_ranges(fd, begins, sizes, num_ranges, static_cast<char*>(out)); });
}
