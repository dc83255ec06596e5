#include "status.h"

#include <stdarg.h>
#include <stdio.h>

namespace fs {
namespace {
thread_local char last_error[512] = "";
}

FsStatus fail(FsStatus status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof(last_error), format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace fs

extern "C" {

int32_t fs_abi_version(void) { return FS_ABI_VERSION; }

const char* fs_last_error(void) { return fs::last_error; }

}  // extern "C"
