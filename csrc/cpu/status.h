// How a C entry point reports failure: a status code, and one line kept per thread for fs_last_error().
#ifndef FS_CPU_STATUS_H_
#define FS_CPU_STATUS_H_

#include <new>

#include "fastsample.h"

namespace fs {

// Stores the formatted line for fs_last_error() and returns `status`.
FsStatus fail(FsStatus status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Thrown for a request that memory cannot hold, seen ahead.
struct NoRoom {
  long long num_edges;
  double needed_gb, free_gb;
};

// Runs `body` (returning FsStatus); memory exhaustion becomes a status, nothing is thrown across the C ABI.
template <typename Body>
FsStatus guarded(const char* operation, Body&& body) {
  try {
    return body();
  } catch (const NoRoom& found) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: a hop has %lld edges, which take %.1f GB, but %.1f GB of memory are free; pass smaller fanouts or "
                "batches",
                operation, found.num_edges, found.needed_gb, found.free_gb);
  } catch (const std::bad_alloc&) {
    return fail(FS_OUT_OF_MEMORY, "%s: out of memory", operation);
  }
}

// Calls body with a value of the C++ type behind id_type.
template <typename Body>
FsStatus with_id_type(const char* operation, int32_t id_type, Body&& body) {
  if (id_type == FS_INT32) return body(int32_t{});
  if (id_type == FS_INT64) return body(int64_t{});
  return fail(FS_INVALID_ARGUMENT, "%s: id type %d; expected int32 (0) or int64 (1)", operation, id_type);
}

}  // namespace fs

#endif  // FS_CPU_STATUS_H_
