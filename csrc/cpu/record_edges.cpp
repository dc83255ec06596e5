// Recorded edges of a collective sample: see record_edges.h.
#include "record_edges.h"

#include <algorithm>

#include "batch_memory.h"

namespace fs {
namespace {

// A row of more than so many neighbours per source is searched, not scanned: a search of one source takes about
// log2(degree) steps, a scan 1.5 ns per neighbour.
constexpr int64_t kSearchedShare = 32;

// Arrays in one block, one behind the other, each from a cache line on.
class Packing {
 public:
  template <typename T>
  void add(size_t count) {
    bytes_ += room_of(count * sizeof(T));
  }
  // After all were added.
  void take() { next_ = static_cast<char*>(take_block(bytes_)); }
  template <typename T>
  T* place(size_t count) {
    T* place = reinterpret_cast<T*>(next_);
    next_ += room_of(count * sizeof(T));
    return place;
  }
  template <typename T>
  T* copy(const std::vector<T>& values) {
    T* to = place<T>(values.size());
    std::copy(values.begin(), values.end(), to);
    return to;
  }

 private:
  static constexpr size_t kLine = 64;

  static size_t room_of(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

  size_t bytes_ = 0;
  char* next_ = nullptr;
};

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
  Before before;
  if (request.with_destinations && !hops_.empty()) {
    const FsRecordedHop& last = hops_.back();
    before = {last.num_dst, last.num_src, indices_.size() - static_cast<size_t>(last.num_edges),
              offsets_.size() - static_cast<size_t>(last.num_dst + 1)};
  }
  choose_sources(request, before.num_src);
  found_.clear();
  if (request.columns != nullptr && request.columns->has_rows(nodes_.data(), num_dst)) {
    follow_links(request, before.num_dst);
    const std::vector<int32_t>& rows = request.columns->long_rows();
    look_through(request, before.num_dst, static_cast<int64_t>(rows.size()),
                 [&](int64_t i) { return int64_t{rows[static_cast<size_t>(i)]}; });
  } else {
    look_through(request, before.num_dst, num_dst, [](int64_t i) { return i; });
  }
  group_by_row(num_dst);
  add_rows(request, before, num_dst);
}

// The sources of the hop, fresh ones first: those that no hop before had as a node.
template <typename Id>
void EdgeRecorder<Id>::choose_sources(const RecordRequest<Id>& request, int64_t num_known) {
  sources_.clear();
  for (int64_t i = 0; i < request.num_picks; ++i) {
    if (request.picks[i] >= 0) choose(request, member_of(static_cast<Id>(request.picks[i])), 1);
  }
  if (request.with_destinations) {
    for (const int32_t number : local_members_) choose(request, number, 0);
  }
  const auto known = std::partition(sources_.begin(), sources_.end(), [&](const Source& source) {
    const int64_t local = members_[static_cast<size_t>(source.member)].local;
    return local < 0 || local >= num_known;
  });
  num_fresh_ = static_cast<size_t>(known - sources_.begin());
}

template <typename Id>
void EdgeRecorder<Id>::choose(const RecordRequest<Id>& request, int32_t number, int64_t picks) {
  const int64_t hop = static_cast<int64_t>(hops_.size());
  Member& member = members_[static_cast<size_t>(number)];
  if (member.hop != hop) {
    const Id node = index_.node(number);
    const int32_t column = request.columns == nullptr ? -1 : request.columns->column_of(node);
    member.hop = hop;
    member.chosen = 0;
    if (request.spec.ranked != 0 && request.columns != nullptr) member.column = request.columns->sum_of(column);
    sources_.push_back({request.graph.orig_id(node), number, column});
  }
  member.chosen += picks;
}

// The edges that have links: from fresh sources all of them, from the others those of the rows from num_old on.
template <typename Id>
void EdgeRecorder<Id>::follow_links(const RecordRequest<Id>& request, int64_t num_old) {
  const ColumnSums<Id>& columns = *request.columns;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const int64_t first_row = i < num_fresh_ ? 0 : num_old;
    for (int32_t number = columns.first_link(sources_[i].column); number >= 0;) {
      const auto link = columns.link(number);
      if (link.row < first_row) break;
      found_.push_back({columns.edge_of(request.graph, number), link.row, sources_[i].member});
      number = link.next;
    }
  }
}

// The edges of num_rows rows that have none; their numbers ascend.
template <typename Id>
template <typename RowAt>
void EdgeRecorder<Id>::look_through(const RecordRequest<Id>& request, int64_t num_old, int64_t num_rows,
                                    const RowAt& row_at) {
  if (num_rows == 0) return;
  mark(0, num_fresh_);
  sought_ = num_fresh_;
  bool seeks_all = false;
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t row = row_at(i);
    if (row >= num_old && !seeks_all) {
      mark(num_fresh_, sources_.size());
      sought_ = sources_.size();
      seeks_all = true;
    }
    fetch_ahead(request.graph, i, num_rows, row_at);
    find_edges(request, nodes_[static_cast<size_t>(row)],
               [&](int32_t member, int64_t edge) { found_.push_back({edge, static_cast<int32_t>(row), member}); });
  }
  for (const Source& source : sources_) marked(index_.node(source.member)) = 0;
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
template <typename RowAt>
FS_INLINE void EdgeRecorder<Id>::fetch_ahead(const CscView<Id>& graph, int64_t i, int64_t num_rows,
                                             const RowAt& row_at) const {
  constexpr int64_t kRow = 6, kBegin = 12;
  constexpr int64_t kLine = 64 / sizeof(Id);
  const auto node_at = [&](int64_t later) { return nodes_[static_cast<size_t>(row_at(later))]; };
  if (i + kBegin < num_rows) __builtin_prefetch(graph.indptr + node_at(i + kBegin));
  if (i + kRow >= num_rows) return;
  const Id* row = graph.indices + graph.indptr[node_at(i + kRow)];
  for (int64_t line = 0; line < 4; ++line) __builtin_prefetch(row + line * kLine);
}

// Calls take(member, edge) for the edges of a row from the sources that are sought, by position.
template <typename Id>
template <typename Take>
void EdgeRecorder<Id>::find_edges(const RecordRequest<Id>& request, Id row, const Take& take) {
  const int64_t degree = request.graph.indptr[row + 1] - request.graph.indptr[row];
  if (degree > kSearchedShare * static_cast<int64_t>(sought_)) {
    search_row(request, row, take);
  } else {
    scan_row(request, row, take);
  }
}

template <typename Id>
template <typename Take>
FS_INLINE void EdgeRecorder<Id>::scan_row(const RecordRequest<Id>& request, Id row, const Take& take) {
  const CscView<Id>& graph = request.graph;
  const int64_t hop = static_cast<int64_t>(hops_.size());
  for (int64_t edge = graph.indptr[row]; edge < graph.indptr[row + 1]; ++edge) {
    const Id source = graph.indices[edge];
    if (marked(source) == 0) continue;
    if (!graph.has_row(source)) throw BadSource{static_cast<int64_t>(source)};
    const int32_t member = index_.find(source);
    if (member >= 0 && members_[static_cast<size_t>(member)].sought == hop) take(member, edge);
  }
}

// Searches for several sources go side by side, halving the row without a branch: they wait for memory together.
template <typename Id>
template <typename Take>
void EdgeRecorder<Id>::search_row(const RecordRequest<Id>& request, Id row, const Take& take) {
  constexpr size_t kTogether = 8;
  const CscView<Id>& graph = request.graph;
  const int64_t begin = graph.indptr[row], end = graph.indptr[row + 1];
  const auto orig_id_at = [&](int64_t edge) {
    const Id source = graph.indices[edge];
    if (!graph.has_row(source)) throw BadSource{static_cast<int64_t>(source)};
    return graph.orig_id(source);
  };
  for (size_t first = 0; first < sought_; first += kTogether) {
    const Source* sources = sources_.data() + first;
    const size_t count = std::min(kTogether, sought_ - first);
    int64_t low[kTogether];  // the first edge that is not smaller than source i is one of low[i] .. low[i] + length
    std::fill_n(low, kTogether, begin);
    for (int64_t length = end - begin; length > 1;) {
      const int64_t half = length / 2;
      for (size_t i = 0; i < count; ++i) {
        const bool is_smaller = orig_id_at(low[i] + half - 1) < sources[i].orig_id;
        low[i] += half & -static_cast<int64_t>(is_smaller);
      }
      length -= half;
    }
    for (size_t i = 0; i < count; ++i) {
      int64_t at = low[i] + (orig_id_at(low[i]) < sources[i].orig_id);
      for (; at < end && orig_id_at(at) == sources[i].orig_id; ++at) take(sources[i].member, at);
    }
  }
}

// What was found, row by row and by position.
template <typename Id>
void EdgeRecorder<Id>::group_by_row(int64_t num_dst) {
  row_ends_.assign(static_cast<size_t>(num_dst) + 2, 0);
  for (const Found& edge : found_) ++row_ends_[static_cast<size_t>(edge.row) + 2];
  for (size_t row = 2; row < row_ends_.size(); ++row) row_ends_[row] += row_ends_[row - 1];
  by_row_.resize(found_.size());
  for (const Found& edge : found_) by_row_[row_ends_[static_cast<size_t>(edge.row) + 1]++] = edge;
  for (size_t row = 0; row + 2 < row_ends_.size(); ++row) {
    const auto begin = by_row_.begin() + static_cast<int64_t>(row_ends_[row]);
    const auto end = by_row_.begin() + static_cast<int64_t>(row_ends_[row + 1]);
    if (!std::is_sorted(begin, end)) std::sort(begin, end);
  }
}

// A row that the last hop had, too, has the edges of that hop, whose sources are all nodes and so sources again, and
// those found, by position.
template <typename Id>
void EdgeRecorder<Id>::add_rows(const RecordRequest<Id>& request, const Before& before, int64_t num_dst) {
  const bool weighs = request.spec.edge_scale != FS_EDGES_UNWEIGHTED;
  const size_t first_edge = indices_.size();
  const size_t most = first_edge + found_.size() + static_cast<size_t>(num_dst) +
                      (before.num_dst > 0 ? first_edge - before.first_edge : 0);
  indices_.resize(most);
  edge_ids_.resize(most);
  if (weighs) weights_.resize(most);
  shares_.resize(static_cast<size_t>(num_nodes()) + sources_.size());
  for (const Source& source : sources_) {
    const Member& member = members_[static_cast<size_t>(source.member)];
    if (member.local >= 0) shares_[static_cast<size_t>(member.local)] = 1.0 / member.column;
  }
  size_t out = first_edge;
  const auto put = [&](Id local, int64_t edge) {
    indices_[out] = local;
    edge_ids_[out++] = edge;
  };
  offsets_.push_back(0);
  for (int64_t dst = 0; dst < num_dst; ++dst) {
    const size_t first = out;
    size_t old = 0, last_old = 0;
    if (dst < before.num_dst) {
      const int64_t* offsets = offsets_.data() + before.first_offset + dst;
      old = before.first_edge + static_cast<size_t>(offsets[0]);
      last_old = before.first_edge + static_cast<size_t>(offsets[1]);
    } else if (request.spec.self_edges != 0) {
      const int32_t own = local_members_[static_cast<size_t>(dst)];
      if (members_[static_cast<size_t>(own)].hop == static_cast<int64_t>(hops_.size())) put(static_cast<Id>(dst), -1);
    }
    for (size_t i = row_ends_[static_cast<size_t>(dst)]; i < row_ends_[static_cast<size_t>(dst) + 1]; ++i) {
      for (; old < last_old && edge_ids_[old] < by_row_[i].edge; ++old) put(indices_[old], edge_ids_[old]);
      put(static_cast<Id>(local_of(by_row_[i].member)), by_row_[i].edge);
    }
    for (; old < last_old; ++old) put(indices_[old], edge_ids_[old]);
    if (weighs) weigh_row(request, nodes_[static_cast<size_t>(dst)], first, out);
    offsets_.push_back(static_cast<int64_t>(out - first_edge));
  }
  indices_.resize(out);
  edge_ids_.resize(out);
  if (weighs) weights_.resize(out);
  hops_.push_back({num_dst, num_nodes(), static_cast<int64_t>(out - first_edge)});
}

template <typename Id>
int64_t EdgeRecorder<Id>::local_of(int32_t number) {
  Member& member = members_[static_cast<size_t>(number)];
  if (member.local < 0) {
    member.local = num_nodes();
    nodes_.push_back(index_.node(number));
    local_members_.push_back(number);
    shares_[static_cast<size_t>(member.local)] = 1.0 / member.column;
  }
  return member.local;
}

// Weights of the edges first .. last - 1, which are a row.
template <typename Id>
void EdgeRecorder<Id>::weigh_row(const RecordRequest<Id>& request, Id row, size_t first, size_t last) {
  double sum = 0;
  if (request.spec.edge_scale == FS_EDGES_BY_COLUMN && request.values.all_one()) {
    for (size_t i = first; i < last; ++i) weights_[i] = shares_[static_cast<size_t>(indices_[i])];
  } else {
    for (size_t i = first; i < last; ++i) {
      weights_[i] = weight_of(request, row, local_members_[static_cast<size_t>(indices_[i])], edge_ids_[i]);
    }
  }
  if (request.spec.edge_scale != FS_EDGES_BY_COLUMN) return;
  for (size_t i = first; i < last; ++i) sum += weights_[i];
  for (size_t i = first; i < last && sum > 0; ++i) weights_[i] /= sum;
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

template <typename Id>
FsRecordedEdges EdgeRecorder<Id>::finish(FsEdgeScale scale) {
  FsRecordedEdges edges = {};
  size_t num_ids = indices_.size();
  for (const FsRecordedHop& hop : hops_) num_ids += static_cast<size_t>(hop.num_src);
  edges.num_hops = static_cast<int64_t>(hops_.size());
  edges.num_nodes = static_cast<int64_t>(num_ids - indices_.size());
  edges.num_edges = static_cast<int64_t>(indices_.size());
  edges.num_weights = static_cast<int64_t>(weights_.size());
  Packing packing;
  packing.add<FsRecordedHop>(hops_.size());
  packing.add<Id>(num_ids);
  packing.add<int64_t>(offsets_.size());
  packing.add<int64_t>(edge_ids_.size());
  packing.add<double>(weights_.size());
  packing.take();
  edges.hops = packing.copy(hops_);
  Id* ids = packing.place<Id>(num_ids);
  edges.nodes = ids;
  for (const FsRecordedHop& hop : hops_) ids = std::copy_n(nodes_.begin(), hop.num_src, ids);
  edges.indices = ids;
  std::copy(indices_.begin(), indices_.end(), ids);
  edges.offsets = packing.copy(offsets_);
  edges.edge_ids = packing.copy(edge_ids_);
  if (scale == FS_EDGES_COLUMNS) {
    edges.edge_weights = packing.copy(weights_);
  } else {
    float* floats = packing.place<float>(weights_.size());
    edges.edge_weights = floats;
    for (size_t i = 0; i < weights_.size(); ++i) floats[i] = static_cast<float>(weights_[i]);
  }
  return edges;
}

template <typename Id>
size_t EdgeRecorder<Id>::bytes() const {
  return index_.bytes() + members_.capacity() * sizeof(Member) + nodes_.capacity() * sizeof(Id) +
         sources_.capacity() * sizeof(Source) + local_members_.capacity() * sizeof(int32_t) +
         (offsets_.capacity() + edge_ids_.capacity()) * sizeof(int64_t) + indices_.capacity() * sizeof(Id) +
         (weights_.capacity() + shares_.capacity()) * sizeof(double) + hops_.capacity() * sizeof(FsRecordedHop) +
         (found_.capacity() + by_row_.capacity()) * sizeof(Found) + row_ends_.capacity() * sizeof(size_t) +
         marks_.size();
}

template class EdgeRecorder<int32_t>;
template class EdgeRecorder<int64_t>;

}  // namespace fs
