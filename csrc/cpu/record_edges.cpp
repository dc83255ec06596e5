// Recorded edges of a collective sample: see record_edges.h.
#include "record_edges.h"

#include <string.h>

#include <algorithm>

#include "batch_memory.h"

namespace fs {
namespace {

// A row of more than so many neighbours per source is searched, not scanned: a search of one source takes about
// 2 log2(degree / sources) unpredictable steps, a scan 1.5 ns per neighbour.
constexpr int64_t kSearchedShare = 32;

template <typename T>
T* copied(const std::vector<T>& values) {
  T* copy = take_array<T>(static_cast<int64_t>(values.size()));
  if (!values.empty()) memcpy(copy, values.data(), values.size() * sizeof(T));
  return copy;
}

}  // namespace

template <typename Id>
void EdgeRecorder<Id>::start(int64_t num_rows) {
  index_.start(num_rows);
  members_.clear();
  nodes_.clear();
  local_members_.clear();
  hops_.clear();
  offsets_.clear();
  edge_ids_.clear();
  indices_.clear();
  weights_.clear();
}

template <typename Id>
int32_t EdgeRecorder<Id>::member_of(Id node) {
  const int32_t member = index_.enter(node);
  if (member == static_cast<int32_t>(members_.size())) members_.push_back({-1, -1, -1, 0, 0});
  return member;
}

template <typename Id>
void EdgeRecorder<Id>::add_node(Id node) {
  const int32_t number = member_of(node);
  Member& member = members_[static_cast<size_t>(number)];
  if (member.local >= 0) return;
  member.local = num_nodes();
  nodes_.push_back(node);
  local_members_.push_back(number);
}

template <typename Id>
void EdgeRecorder<Id>::record(const RecordRequest<Id>& request) {
  const int64_t num_dst = num_nodes();
  const bool extends = request.with_destinations && !hops_.empty();
  const int64_t num_old = extends ? hops_.back().num_dst : 0;
  num_known_ = extends ? hops_.back().num_src : 0;
  const size_t first_edge = indices_.size(), old_edges = first_edge - (extends ? hops_.back().num_edges : 0);
  const size_t old_offsets = offsets_.size() - static_cast<size_t>(extends ? num_old + 1 : 0);
  choose_sources(request);
  offsets_.push_back(0);
  mark(0, num_fresh_);
  sought_ = num_fresh_;
  for (int64_t dst = 0; dst < num_dst; ++dst) {
    if (dst == num_old) {
      mark(num_fresh_, sources_.size());
      sought_ = sources_.size();
      is_sorted_ = false;
    }
    const size_t first = weights_.size();
    const Id row = nodes_[static_cast<size_t>(dst)];
    fetch_ahead(request.graph, dst, num_dst);
    if (dst < num_old) {
      const size_t at = old_offsets + static_cast<size_t>(dst);
      extend_row(request, row, old_edges + static_cast<size_t>(offsets_[at]),
                 old_edges + static_cast<size_t>(offsets_[at + 1]));
    } else {
      record_row(request, row);
    }
    if (request.spec.edge_scale == FS_EDGES_BY_COLUMN) normalise(first);
    offsets_.push_back(static_cast<int64_t>(indices_.size() - first_edge));
  }
  for (const Source& source : sources_) marked(index_.node(source.member)) = 0;
  hops_.push_back({num_dst, num_nodes(), static_cast<int64_t>(indices_.size() - first_edge)});
}

// The sources of the hop, fresh ones first: those that no hop before had as a node.
template <typename Id>
void EdgeRecorder<Id>::choose_sources(const RecordRequest<Id>& request) {
  const int64_t hop = static_cast<int64_t>(hops_.size());
  sources_.clear();
  is_sorted_ = false;
  const auto choose = [&](Id node, int64_t picks) {
    const int32_t number = member_of(node);
    Member& member = members_[static_cast<size_t>(number)];
    if (member.hop != hop) {
      member.hop = hop;
      member.chosen = 0;
      if (request.columns != nullptr) member.column = request.columns->sum_of(node);
      sources_.push_back({request.graph.orig_id(node), number});
    }
    member.chosen += picks;
  };
  for (int64_t i = 0; i < request.num_picks; ++i) {
    if (request.picks[i] >= 0) choose(static_cast<Id>(request.picks[i]), 1);
  }
  if (request.with_destinations) {
    for (int64_t i = 0; i < num_nodes(); ++i) choose(nodes_[static_cast<size_t>(i)], 0);
  }
  const auto known = std::partition(sources_.begin(), sources_.end(), [&](const Source& source) {
    const int64_t local = members_[static_cast<size_t>(source.member)].local;
    return local < 0 || local >= num_known_;
  });
  num_fresh_ = static_cast<size_t>(known - sources_.begin());
}

template <typename Id>
void EdgeRecorder<Id>::mark(size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) {
    const int32_t member = sources_[i].member;
    members_[static_cast<size_t>(member)].sought = static_cast<int64_t>(hops_.size());
    marked(index_.node(member)) = 1;
  }
}

// Rows lie anywhere: asks early for where those to come begin, and then for their first neighbours.
template <typename Id>
FS_INLINE void EdgeRecorder<Id>::fetch_ahead(const CscView<Id>& graph, int64_t dst, int64_t num_dst) const {
  constexpr int64_t kRow = 6, kBegin = 12;
  constexpr int64_t kLine = 64 / sizeof(Id);
  if (dst + kBegin < num_dst) __builtin_prefetch(graph.indptr + nodes_[static_cast<size_t>(dst + kBegin)]);
  if (dst + kRow >= num_dst) return;
  const Id* row = graph.indices + graph.indptr[nodes_[static_cast<size_t>(dst + kRow)]];
  for (int64_t line = 0; line < 4; ++line) __builtin_prefetch(row + line * kLine);
}

template <typename Id>
void EdgeRecorder<Id>::record_row(const RecordRequest<Id>& request, Id row) {
  const int32_t own = index_.find(row);
  if (request.spec.self_edges != 0 && members_[static_cast<size_t>(own)].hop == static_cast<int64_t>(hops_.size())) {
    add_edge(request, row, own, -1);
  }
  find_edges(request, row, [&](int32_t member, int64_t edge) { add_edge(request, row, member, edge); });
}

// A row that the last hop had, too: its edges `first` .. `last` - 1 of that hop, whose sources are all nodes and so
// sources again, and those from fresh sources, by position.
template <typename Id>
void EdgeRecorder<Id>::extend_row(const RecordRequest<Id>& request, Id row, size_t first, size_t last) {
  const auto add_old = [&](size_t at) {
    add_edge(request, row, local_members_[static_cast<size_t>(indices_[at])], edge_ids_[at]);
  };
  find_edges(request, row, [&](int32_t member, int64_t edge) {
    while (first < last && edge_ids_[first] < edge) add_old(first++);
    add_edge(request, row, member, edge);
  });
  while (first < last) add_old(first++);
}

// Calls found(member, edge) for the edges of a row from the sources that are sought, by position.
template <typename Id>
template <typename Found>
void EdgeRecorder<Id>::find_edges(const RecordRequest<Id>& request, Id row, const Found& found) {
  const int64_t degree = request.graph.indptr[row + 1] - request.graph.indptr[row];
  if (degree > kSearchedShare * static_cast<int64_t>(sought_)) {
    search_row(request, row, found);
  } else {
    scan_row(request, row, found);
  }
}

template <typename Id>
template <typename Found>
FS_INLINE void EdgeRecorder<Id>::scan_row(const RecordRequest<Id>& request, Id row, const Found& found) {
  const CscView<Id>& graph = request.graph;
  const int64_t hop = static_cast<int64_t>(hops_.size());
  for (int64_t edge = graph.indptr[row]; edge < graph.indptr[row + 1]; ++edge) {
    const Id source = graph.indices[edge];
    if (marked(source) == 0) continue;
    if (!graph.has_row(source)) throw BadSource{static_cast<int64_t>(source)};
    const int32_t member = index_.find(source);
    if (member >= 0 && members_[static_cast<size_t>(member)].sought == hop) found(member, edge);
  }
}

template <typename Id>
template <typename Found>
void EdgeRecorder<Id>::search_row(const RecordRequest<Id>& request, Id row, const Found& found) {
  const CscView<Id>& graph = request.graph;
  if (!is_sorted_) {
    std::sort(sources_.begin(), sources_.begin() + static_cast<int64_t>(sought_),
              [](const Source& a, const Source& b) { return a.orig_id < b.orig_id; });
    is_sorted_ = true;
  }
  const int64_t end = graph.indptr[row + 1];
  const auto orig_id_at = [&](int64_t edge) {
    const Id source = graph.indices[edge];
    if (!graph.has_row(source)) throw BadSource{static_cast<int64_t>(source)};
    return graph.orig_id(source);
  };
  int64_t at = graph.indptr[row];
  for (size_t i = 0; i < sought_; ++i) {
    const Source source = sources_[i];
    int64_t low = at, stride = 1;  // all edges before `low` have smaller ids
    while (low + stride <= end && orig_id_at(low + stride - 1) < source.orig_id) {
      low += stride;
      stride *= 2;
    }
    int64_t high = std::min(low + stride - 1, end);  // the first edge that is not smaller is in low .. high
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (orig_id_at(middle) < source.orig_id) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (at = low; at < end && orig_id_at(at) == source.orig_id; ++at) found(source.member, at);
    if (at == end) return;
  }
}

template <typename Id>
void EdgeRecorder<Id>::add_edge(const RecordRequest<Id>& request, Id row, int32_t number, int64_t edge) {
  Member& member = members_[static_cast<size_t>(number)];
  if (member.local < 0) {
    member.local = num_nodes();
    nodes_.push_back(index_.node(number));
    local_members_.push_back(number);
  }
  indices_.push_back(static_cast<Id>(member.local));
  edge_ids_.push_back(edge);
  if (request.spec.edge_scale != FS_EDGES_UNWEIGHTED) weights_.push_back(weight_of(request, row, number, edge));
}

template <typename Id>
double EdgeRecorder<Id>::weight_of(const RecordRequest<Id>& request, Id row, int32_t number, int64_t edge) const {
  const double value = edge < 0 ? 1.0 : request.values[edge];
  const Id source = index_.node(number);
  if (request.spec.edge_scale == FS_EDGES_SCALED) {
    const int64_t chosen = std::max<int64_t>(1, members_[static_cast<size_t>(number)].chosen);
    const double scaled = value * request.spec.row_scale[row] * request.spec.column_scale[source];
    return scaled * static_cast<double>(chosen) / static_cast<double>(request.num_picks);
  }
  const double column = members_[static_cast<size_t>(number)].column;
  if (request.spec.edge_scale == FS_EDGES_COLUMNS) return column;
  return value == 0 ? 0 : value / column;
}

// Makes the weights of a row, from `first` on, shares of their sum.
template <typename Id>
void EdgeRecorder<Id>::normalise(size_t first) {
  double sum = 0;
  for (size_t i = first; i < weights_.size(); ++i) sum += weights_[i];
  for (size_t i = first; i < weights_.size() && sum > 0; ++i) weights_[i] /= sum;
}

template <typename Id>
FsRecordedEdges EdgeRecorder<Id>::finish() {
  FsRecordedEdges edges = {};
  edges.num_hops = static_cast<int64_t>(hops_.size());
  edges.num_nodes = num_nodes();
  edges.num_edges = static_cast<int64_t>(indices_.size());
  edges.num_weights = static_cast<int64_t>(weights_.size());
  edges.hops = copied(hops_);
  edges.nodes = copied(nodes_);
  edges.offsets = copied(offsets_);
  edges.indices = copied(indices_);
  edges.edge_ids = copied(edge_ids_);
  edges.edge_weights = copied(weights_);
  return edges;
}

template <typename Id>
size_t EdgeRecorder<Id>::bytes() const {
  return index_.bytes() + members_.capacity() * sizeof(Member) + nodes_.capacity() * sizeof(Id) +
         sources_.capacity() * sizeof(Source) + local_members_.capacity() * sizeof(int32_t) +
         (offsets_.capacity() + edge_ids_.capacity()) * sizeof(int64_t) + indices_.capacity() * sizeof(Id) +
         weights_.capacity() * sizeof(double) + hops_.capacity() * sizeof(FsRecordedHop) + marks_.size();
}

template class EdgeRecorder<int32_t>;
template class EdgeRecorder<int64_t>;

}  // namespace fs
