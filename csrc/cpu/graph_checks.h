// Refusals of graphs that are partitioned, worded once.
#ifndef FS_CPU_GRAPH_CHECKS_H_
#define FS_CPU_GRAPH_CHECKS_H_

#include "requests.h"

namespace fs {

// The row of `node` has an id that is no node.
inline FsStatus refuse_neighbour(const char* operation, int64_t node, int64_t num_nodes) {
  return fail(FS_INVALID_ARGUMENT, "%s: node %lld has a neighbour outside 0 to %lld", operation,
              static_cast<long long>(node), static_cast<long long>(num_nodes) - 1);
}

}  // namespace fs

#endif  // FS_CPU_GRAPH_CHECKS_H_
