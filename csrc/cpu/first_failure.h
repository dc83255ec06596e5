// The failure that a call of many independent pieces of work reports: that of the first piece, whatever their order.
#ifndef FS_CPU_FIRST_FAILURE_H_
#define FS_CPU_FIRST_FAILURE_H_

#include <mutex>
#include <string>

#include "status.h"

namespace fs {

class FirstFailure {
 public:
  // Called by the thread in which piece `number` has just failed.
  void take(FsStatus found, int64_t number) {
    const std::lock_guard<std::mutex> hold(mutex_);
    if (number >= number_) return;
    status_ = found;
    number_ = number;
    text_ = fs_last_error();
  }

  // For when all pieces are done: FS_OK, or the status, with its line as that of the calling thread.
  FsStatus report() const { return status_ == FS_OK ? FS_OK : fail(status_, "%s", text_.c_str()); }

 private:
  std::mutex mutex_;
  FsStatus status_ = FS_OK;
  int64_t number_ = INT64_MAX;
  std::string text_;
};

}  // namespace fs

#endif  // FS_CPU_FIRST_FAILURE_H_
