// One hop of neighbour sampling as it is defined: row by row, draw by draw, without vectors, threads or prefetching.
//
// fs_set_isa("scalar") samples by this file, and tests/ops/test_scalar_hop.py compares every instruction set with it,
// bit for bit. Beyond it lie only the numbers themselves, in core/: a node's stream of random words (philox.h), a draw
// from an alias table (alias.h) or a tree of sums (weighted_pick.h), a source's variate (layer_pick.h).
#include <stdint.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hop_spec.h"
#include "layer_pick.h"
#include "pick.h"
#include "weighted_pick.h"

namespace fs {
namespace {

template <typename Id>
class PlainHop {
 public:
  explicit PlainHop(const HopRequest& request)
      : operation_(request.operation), raw_(request.graph), graph_(view_of<Id>(raw_)), spec_(request.spec) {}

  FsStatus run(const HopRows<Id>& hop, Relabeling<Id>* ids, const AllocateHop<Id>& allocate) {
    for (int64_t i = 0; i < hop.num_rows; ++i) {  // 1. where every row lies
      const int64_t row = hop.rows[i];
      if (!graph_.has_row(row)) return refuse_row(operation_, graph_, hop.rows[i]);
      const int64_t begin = graph_.indptr[row], end = graph_.indptr[row + 1];
      if (begin < 0 || end < begin || end > graph_.num_edges) return refuse_row(operation_, graph_, hop.rows[i]);
      hop.edges[i] = {begin, end - begin};
    }
    hop.offsets[0] = 0;
    for (int64_t i = 0; i < hop.num_rows; ++i) {  // 2. the edges that each row takes
      pick(hop.rows[i], hop.edges[i]);
      if (bad_source_ >= 0) return refuse_source(operation_, graph_, graph_.indices[bad_source_]);
      hop.offsets[i + 1] = static_cast<int64_t>(taken_.size());
    }
    const HopTask<Id> task = allocate(graph_, spec_, hop);
    for (size_t k = 0; k < taken_.size(); ++k) {  // 3. the sources of these edges
      task.neighbors[k] = graph_.indices[taken_[k]];
      if (task.edge_ids != nullptr) task.edge_ids[k] = taken_[k];
    }
    return ids == nullptr ? FS_OK : relabel(task.neighbors, ids);
  }

 private:
  // Appends the edges that a row takes, as positions in graph_.indices.
  void pick(Id row, RowEdges edges) {
    NodeStream stream(spec_.key, graph_.orig_id(row));
    if (spec_.method == FS_UNIFORM) {
      pick_uniform(stream, edges);
    } else if (spec_.method == FS_LABOR) {
      pick_layer(edges);
    } else if (raw_.weights->weight_type == FS_FLOAT32) {
      pick_weighted(stream, edges, static_cast<const float*>(raw_.weights->weights) + edges.begin);
    } else {
      pick_weighted(stream, edges, static_cast<const double*>(raw_.weights->weights) + edges.begin);
    }
  }

  // Floyd's selection: for j = degree - fanout .. degree - 1 draw t out of 0 .. j; take t, or j where t is taken.
  void pick_uniform(NodeStream& stream, RowEdges edges) {
    const int64_t degree = edges.degree, fanout = spec_.fanout;
    if (takes_all(degree, fanout, spec_.replace)) {
      for (int64_t position = 0; position < degree; ++position) taken_.push_back(edges.begin + position);
      return;
    }
    if (degree == 0) return;
    std::unordered_set<int64_t> seen;
    for (int64_t i = 0; i < fanout; ++i) {
      const int64_t last = spec_.replace ? degree - 1 : degree - fanout + i;
      int64_t position = static_cast<int64_t>(stream.below(static_cast<uint64_t>(last) + 1));
      if (!spec_.replace && !seen.insert(position).second) seen.insert(position = last);
      taken_.push_back(edges.begin + position);
    }
  }

  // Alias draws; without replacement a repeat is thrown away, and after 4 * fanout draws the rest is drawn from a tree
  // of the weights that are left. Edges of weight 0 are not there.
  template <typename Weight>
  void pick_weighted(NodeStream& stream, RowEdges edges, const Weight* weights) {
    const AliasEntry* table = reinterpret_cast<const AliasEntry*>(raw_.weights->alias_table) + edges.begin;
    std::vector<int64_t> positive;
    for (int64_t position = 0; position < edges.degree; ++position) {
      if (weights[position] > 0) positive.push_back(edges.begin + position);
    }
    if (positive.empty() || takes_all(static_cast<int64_t>(positive.size()), spec_.fanout, spec_.replace)) {
      taken_.insert(taken_.end(), positive.begin(), positive.end());
      return;
    }
    std::vector<int64_t> drawn;
    std::unordered_set<int64_t> seen;
    const int64_t most_draws = spec_.replace ? spec_.fanout : kAliasDrawsPerPick * spec_.fanout;
    for (int64_t draw = 0; draw < most_draws && static_cast<int64_t>(drawn.size()) < spec_.fanout; ++draw) {
      const int64_t position = alias_draw(stream, table, edges.degree);
      if (spec_.replace || seen.insert(position).second) drawn.push_back(position);
    }
    if (static_cast<int64_t>(drawn.size()) < spec_.fanout) {
      std::vector<double> nodes(static_cast<size_t>(SumTree::size(edges.degree)));
      SumTree left(weights, edges.degree, nodes.data());
      for (const int64_t position : drawn) left.leave_out(position);
      left.sum_up();
      while (static_cast<int64_t>(drawn.size()) < spec_.fanout) drawn.push_back(left.take(stream));
    }
    for (const int64_t position : drawn) taken_.push_back(edges.begin + position);
  }

  // LABOR-0: an edge is taken where its source's variate is below fanout / degree.
  void pick_layer(RowEdges edges) {
    const bool all = takes_all(edges.degree, spec_.fanout, false);
    for (int64_t edge = edges.begin; edge < edges.begin + edges.degree; ++edge) {
      const int64_t source = graph_.indices[edge];
      if (!all && !graph_.has_source(source)) {
        bad_source_ = edge;
        return;
      }
      if (all || layer_takes(variate(spec_.key, graph_.src_orig_id(source)), edges.degree, spec_.fanout)) {
        taken_.push_back(edge);
      }
    }
  }

  // 4. Local ids, in place: the nodes known so far keep theirs, new ones follow in order of first appearance.
  FsStatus relabel(Id* neighbors, Relabeling<Id>* ids) {
    std::unordered_map<Id, Id> locals;
    for (int64_t i = 0; i < ids->num_nodes; ++i) locals.emplace(ids->nodes[i], static_cast<Id>(i));
    for (size_t k = 0; k < taken_.size(); ++k) {
      const Id node = neighbors[k];
      if (node < 0 || static_cast<uint64_t>(node) >= ids->num_ids) return refuse_source(operation_, graph_, node);
      const auto [known, is_new] = locals.emplace(node, static_cast<Id>(ids->num_nodes));
      if (is_new) ids->nodes[ids->num_nodes++] = node;
      neighbors[k] = known->second;
    }
    return FS_OK;
  }

  const char* operation_;
  const FsGraph& raw_;
  CscView<Id> graph_;
  HopSpec spec_;
  std::vector<int64_t> taken_;  // edges of all rows so far, as positions in graph_.indices
  int64_t bad_source_ = -1;     // position of a source that does not exist
};

}  // namespace

template <typename Id>
FsStatus sample_plainly(const HopRequest& request, const HopRows<Id>& hop, Relabeling<Id>* ids,
                        const AllocateHop<Id>& allocate) {
  return PlainHop<Id>(request).run(hop, ids, allocate);
}

template FsStatus sample_plainly(const HopRequest&, const HopRows<int32_t>&, Relabeling<int32_t>*,
                                 const AllocateHop<int32_t>&);
template FsStatus sample_plainly(const HopRequest&, const HopRows<int64_t>&, Relabeling<int64_t>*,
                                 const AllocateHop<int64_t>&);

}  // namespace fs
