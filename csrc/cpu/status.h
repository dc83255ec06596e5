// How a C entry point reports failure: a status code, and one line kept per thread for fs_last_error().
#ifndef FS_CPU_STATUS_H_
#define FS_CPU_STATUS_H_

#include <new>

#include "requests.h"

namespace fs {

// fail(): stores the formatted line for fs_last_error() and returns `status`; declared in core/requests.h.

// What a line of refusals.cpp shows, in the order of FsRefusal's comments.
struct RefusedValues {
  long long at[FS_REFUSAL_VALUES];
};
FsStatus refuse(FsRefusal refusal, const char* operation, const RefusedValues& values);

inline FsStatus refuse_source(const char* operation, int64_t source, int64_t last) {
  if (source < 0) return refuse(FS_REFUSED_NEGATIVE_SOURCE, operation, {{source}});
  return refuse(FS_REFUSED_SOURCE, operation, {{source, last}});
}

// Thrown for a request that memory cannot hold, before it is tried.
struct NoRoom {
  const char* line;  // shows the operation, the count and both sizes
  long long count;
  double needed_gb, free_gb;
};

inline FsStatus out_of_memory(const char* operation) { return fail(FS_OUT_OF_MEMORY, "%s: out of memory", operation); }

// Runs `body` (returning FsStatus); memory exhaustion becomes a status, nothing is thrown across the C ABI.
template <typename Body>
FsStatus guarded(const char* operation, Body&& body) {
  try {
    return body();
  } catch (const NoRoom& found) {
    return fail(FS_INVALID_ARGUMENT, found.line, operation, found.count, found.needed_gb, found.free_gb);
  } catch (const std::bad_alloc&) {
    return out_of_memory(operation);
  }
}

// Calls body with a value of the C++ type behind id_type.
template <typename Body>
FsStatus with_id_type(const char* operation, int32_t id_type, Body&& body) {
  if (id_type == FS_INT32) return body(int32_t{});
  if (id_type == FS_INT64) return body(int64_t{});
  return check_id_type(operation, id_type);
}

}  // namespace fs

#endif  // FS_CPU_STATUS_H_
