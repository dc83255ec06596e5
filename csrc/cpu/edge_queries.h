// Many membership queries at once: whether vertex v is in row r, for a list of pairs.
//
// A query reads a node's record and then a bucket, each at a random place. Pairs are taken in chunks, and a chunk goes
// through three loops: ask for the records, read them and ask for the buckets, look into the buckets.
#ifndef FS_CPU_EDGE_QUERIES_H_
#define FS_CPU_EDGE_QUERIES_H_

#include <stdint.h>

#include <algorithm>

#include "hashed_rows.h"

namespace fs {

constexpr int64_t kQueryChunk = 64;  // pairs that wait for memory together

// out[i] = whether vertices[i] is in row rows[i]. Rows exist, or are negative: then nothing is in them.
template <typename Id>
void has_edges(const HashedRows<Id>& table, const int64_t* rows, const int64_t* vertices, int64_t count, uint8_t* out) {
  for (int64_t first = 0; first < count; first += kQueryChunk) {
    const int64_t last = std::min(count, first + kQueryChunk);
    HashedNode nodes[kQueryChunk];
    for (int64_t i = first; i < last; ++i) __builtin_prefetch(table.nodes + std::max<int64_t>(rows[i], 0));
    for (int64_t i = first; i < last; ++i) {
      nodes[i - first] = rows[i] < 0 ? HashedNode{} : table.nodes[rows[i]];
      __builtin_prefetch(table.first_read(nodes[i - first], vertices[i]));
    }
    for (int64_t i = first; i < last; ++i) out[i] = table.has(nodes[i - first], vertices[i]);
  }
}

}  // namespace fs

#endif  // FS_CPU_EDGE_QUERIES_H_
