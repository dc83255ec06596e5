// What the kernels of subgraph weights see: the law's numbers of a node side by side, and the rows of a subgraph.
#ifndef FS_CPU_INCLUSION_TASK_H_
#define FS_CPU_INCLUSION_TASK_H_

#include <stdint.h>

#include "fastsample_inclusion.h"

namespace fs {

// Of one node under FS_INCLUSION_DRAWS:
//   P(u, v) = hit[u] hit[v] + miss[u] miss[v] ((1 + linked) (1 + drawn) - 1),
//   linked = exp(k (link[u] + link[v])) - 1, drawn = (1 + k (share[u] + share[v]) factor[u] factor[v]
//            - odds[u] odds[v])^draws - 1
// with hit = 1 - miss, factor = 1 / (1 - chance), odds = chance / (1 - chance) and, for the usual case of k = 1,
// single = exp(link) - 1: P(u, v) of fastsample_inclusion.h without the cancellation of numbers near 1.
struct alignas(32) DrawnNode {
  double hit, miss, single, odds;
};
struct DrawnEnd {  // what parallel edges and draws of edges ask for besides
  double link, share, factor;
};

struct InclusionTask {
  const FsInclusionLaw* law;
  const FsSubgraphEdges* edges;
  const DrawnNode* drawn;  // [num_nodes] under FS_INCLUSION_DRAWS
  const DrawnEnd* ends;    // [num_nodes] the same
  bool same_odds;          // all nodes have
  void* out;
};

}  // namespace fs

#endif  // FS_CPU_INCLUSION_TASK_H_
