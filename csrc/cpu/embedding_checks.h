// Checks that the operators of embedding training share.
#ifndef FS_CPU_EMBEDDING_CHECKS_H_
#define FS_CPU_EMBEDDING_CHECKS_H_

#include "fastsample_embedding.h"
#include "status.h"

namespace fs {

inline FsStatus check_real_type(const char* operation, int32_t type) {
  if (type == FS_FLOAT32 || type == FS_FLOAT64) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: element type %d; expected float32 (2) or float64 (3)", operation, type);
}

}  // namespace fs

#endif  // FS_CPU_EMBEDDING_CHECKS_H_
