// Memory that only grows: scratch of a thread, whose contents are of no account between calls.
#ifndef FS_CPU_BUFFER_H_
#define FS_CPU_BUFFER_H_

#include <stddef.h>
#include <stdlib.h>

#include <new>

#include "pages.h"

namespace fs {

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { free(data_); }

  // Makes room for `bytes`; loses the contents when it has to grow. Aligned to 64 bytes or to a huge page.
  void require(size_t bytes) {
    if (bytes <= bytes_) return;
    free(data_);  // before asking for more
    data_ = nullptr;
    bytes_ = 0;
    data_ = allocate_pages(bytes);
    bytes_ = bytes;
  }
  template <typename T>
  T* require_array(int64_t count) {
    require(static_cast<size_t>(count > 0 ? count : 1) * sizeof(T));
    return static_cast<T*>(data_);
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace fs

#endif  // FS_CPU_BUFFER_H_
