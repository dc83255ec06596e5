// What the vector kernels need to draw the visits of one subgraph, in plain pointers: a frontier
// (vector/frontier_walk.h), and walkers and draws that do not wait for each other (vector/lone_walkers.h).
#ifndef FS_CPU_WALKER_TASKS_H_
#define FS_CPU_WALKER_TASKS_H_

#include <stdint.h>

#include "csc_view.h"
#include "philox.h"

namespace fs {

constexpr int kSlotWords = 16;  // of the stream of a frontier's slot that are at hand: few slots use more
constexpr int kWalkWords = 8;   // of a walker of more than 4 hops
constexpr int kFanOut = 32;     // of the sums over a frontier's slots

// A list of nodes that are drawn uniformly: draw i by the first words of stream i.
template <typename Id>
struct RootList {
  const Id* nodes;
  uint64_t count;
  StageKey key;
};

// A slot of a frontier: where its walker is, and where it goes next. Which slot advances depends on the pops, where its
// walker goes does not, so its next nodes are read ahead.
template <typename Id>
struct FrontierSlot {
  uint64_t weight;      // of the node where it is
  uint64_t weights[2];  // of the next nodes; kBadWeight: not a node
  int64_t position;     // in `indices`, of the node behind the last known one
  uint64_t words_used;  // of its stream
  Id nodes[2];          // the next nodes
  Id found;             // indices[position]
  uint32_t num_known;   // of the next nodes (a word: what is stored in a byte might be anything to a compiler)
  uint32_t stage;       // FlightStage
};
constexpr uint64_t kBadWeight = ~uint64_t{0};

// How far the node behind the last known one is.
enum FlightStage : uint32_t {
  kAtPosition = 0,  // `position` is drawn, its line requested
  kAtNode = 1,      // `found` is read, its offsets are requested
  kAtEnd = 2        // there is none: no in-edges, or not a node
};

template <typename Id>
struct FrontierTask {
  CscView<Id> graph;
  RootList<Id> roots;
  int64_t size, budget;
  uint64_t max_degree;  // weights are cut to it
  StageKey pops_key, hops_key;
  Id* visits;               // [budget]
  FrontierSlot<Id>* slots;  // [size]
  uint32_t* words;   // [size rounded up to whole groups of kGroupNodes][kSlotWords], a group's words side by side
  int64_t* changes;  // [size] of a slot's weight when it advances
  void* sums;        // sums_bytes(size), aligned to 64
};

// Draws or walkers that do not wait for each other.
template <typename Id>
struct LoneTask {
  int32_t method;  // FsSubgraphMethod: node, edge or walk
  CscView<Id> graph;
  RootList<Id> roots;          // of edges: the connected ones, and the key of the draws
  const int64_t* degree_sums;  // of nodes: [roots.count + 1]
  int64_t count;               // draws or walkers
  int64_t walk_length;
  StageKey hops_key;  // of walks
  Id* visits;         // room for all
};

// Bytes of all levels of the sums over `size` slots: groups of kFanOut sums, each level as many as the one below has
// groups.
inline int64_t sums_bytes(int64_t size) {
  int64_t bytes = 0;
  do {
    size = (size + kFanOut - 1) / kFanOut;
    bytes += size * kFanOut * 8;
  } while (size > 1);
  return bytes;
}

// What a kernel has drawn.
struct DrawnVisits {
  int64_t count;  // -1: something is refused, which the definition finds and words
  int64_t steps;
};

}  // namespace fs

#endif  // FS_CPU_WALKER_TASKS_H_
