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

// The nodes are to be visited in an order that has an id that is no node.
inline FsStatus refuse_order(const char* operation, int64_t node, int64_t num_nodes) {
  return fail(FS_INVALID_ARGUMENT, "%s: order has node %lld; expected 0 to %lld", operation,
              static_cast<long long>(node), static_cast<long long>(num_nodes) - 1);
}

// Capacity `limit` of the parts is none.
inline FsStatus refuse_capacity(const char* operation, int limit, int64_t capacity) {
  return fail(FS_INVALID_ARGUMENT, "%s: capacity %d is %lld; expected at least 1", operation, limit,
              static_cast<long long>(capacity));
}

}  // namespace fs

#endif  // FS_CPU_GRAPH_CHECKS_H_
