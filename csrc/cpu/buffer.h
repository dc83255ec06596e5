// Memory that only grows: scratch of a thread, whose contents do not matter between calls.
#ifndef FS_CPU_BUFFER_H_
#define FS_CPU_BUFFER_H_

#include <stddef.h>

#include "pages.h"

namespace fs {

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { pages_.give(); }

  // Makes room for `bytes`; loses the contents when it has to grow. Aligned to 64 bytes or to a huge page.
  void require(size_t bytes) {
    if (bytes <= pages_.bytes) return;
    pages_.give();  // before asking for more
    pages_ = {nullptr, 0};
    pages_ = Pages::take(bytes);
  }
  template <typename T>
  T* require_array(int64_t count) {
    require(static_cast<size_t>(count > 0 ? count : 1) * sizeof(T));
    return static_cast<T*>(pages_.data);
  }
  void* data() const { return pages_.data; }
  size_t bytes() const { return pages_.bytes; }

 private:
  Pages pages_ = {nullptr, 0};
};

}  // namespace fs

#endif  // FS_CPU_BUFFER_H_
