// Where subgraphs that become one lie in it: loss nodes of the first, of the second, ..., then the others in the same
// order.
#ifndef FS_CPU_UNION_PLACES_H_
#define FS_CPU_UNION_PLACES_H_

#include <limits>
#include <vector>

#include "fastsample_subgraph.h"
#include "requests.h"

namespace fs {

// Rows and edges of a part's loss nodes, and of its other nodes.
struct Placement {
  int64_t loss_row, other_row, loss_edge, other_edge;
};

class UnionPlaces {
 public:
  UnionPlaces(const FsSubgraph* parts, int64_t count) : places_(static_cast<size_t>(count)) {
    int64_t loss_edges = 0;
    for (int64_t i = 0; i < count; ++i) {
      places_[static_cast<size_t>(i)] = {num_loss_, 0, loss_edges, 0};
      num_loss_ += parts[i].num_loss;
      loss_edges += parts[i].edges.indptr[parts[i].num_loss];
    }
    num_nodes_ = num_loss_;
    num_edges_ = loss_edges;
    for (int64_t i = 0; i < count; ++i) {
      Placement& place = places_[static_cast<size_t>(i)];
      place.other_row = num_nodes_;
      place.other_edge = num_edges_;
      num_nodes_ += parts[i].drawn.num_nodes - parts[i].num_loss;
      num_edges_ += parts[i].edges.num_edges - parts[i].edges.indptr[parts[i].num_loss];
    }
  }

  // Refuses more nodes than ids of this type can number.
  template <typename Id>
  FsStatus check(const char* operation) const {
    if (num_nodes_ <= std::numeric_limits<Id>::max()) return FS_OK;
    return fail(FS_INVALID_ARGUMENT,
                "%s: %lld nodes in one union, more than ids of 32 bits can number; pass fewer numbers", operation,
                static_cast<long long>(num_nodes_));
  }

  const Placement& operator[](int64_t i) const { return places_[static_cast<size_t>(i)]; }
  int64_t num_loss() const { return num_loss_; }
  int64_t num_nodes() const { return num_nodes_; }
  int64_t num_edges() const { return num_edges_; }

 private:
  std::vector<Placement> places_;
  int64_t num_loss_ = 0, num_nodes_ = 0, num_edges_ = 0;
};

}  // namespace fs

#endif  // FS_CPU_UNION_PLACES_H_
