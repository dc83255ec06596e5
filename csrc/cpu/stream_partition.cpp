// stream_partition: one pass over the nodes, each put into the part that scores best when its row is read.
//
// A node's score of a part needs the number of its neighbours there and the part's fill, which is kept per part and
// changes for one or two parts per node. Memory: a few words per part besides the caller's arrays. A node that has a
// part already is taken out of it first, so that further passes improve on the first.
//
// Stanton and Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012 (linear deterministic
// greedy); Tsourakakis et al., "Fennel", WSDM 2014 (gamma 1.5); Nishimura and Ugander, KDD 2013 (further passes).
#include <algorithm>
#include <cmath>
#include <vector>

#include "fastsample.h"
#include "graph_checks.h"
#include "philox.h"
#include "status.h"

namespace fs {
namespace {

constexpr int kKindBits = FS_STREAM_LIMITS - 2;
constexpr int64_t kAhead = 32;  // neighbours whose part is asked for before it is read
constexpr double kGamma = 1.5;  // Fennel's exponent: marginal cost alpha * gamma * size^(gamma - 1)

// What the parts hold and how that weighs on their scores.
class Parts {
 public:
  explicit Parts(const FsStream& spec)
      : spec_(spec),
        loads_(static_cast<size_t>(spec.num_parts) * FS_STREAM_LIMITS, 0),
        fill_(static_cast<size_t>(spec.num_parts), 0.0),
        penalty_(fill_) {
    for (int64_t part = 0; part < spec.num_parts; ++part) weigh(part);
  }

  void add(int64_t node, int64_t part, int64_t sign) {
    int64_t* load = &loads_[static_cast<size_t>(part) * FS_STREAM_LIMITS];
    load[0] += sign;
    load[1] += sign * in_edges(node);
    for (int bit = 0; bit < kKindBits && spec_.kinds != nullptr; ++bit) load[2 + bit] += sign * has_kind(node, bit);
    weigh(part);
  }

  // The part for `node`, links[p] of whose neighbours are in part p.
  int64_t best(int64_t node, const int64_t* links) const {
    const int64_t first = first_part(node);
    int64_t best = -1, least_full = -1;
    double best_score = 0, least = 0;
    for (int64_t turn = 0; turn < spec_.num_parts; ++turn) {
      const int64_t part = first + turn < spec_.num_parts ? first + turn : first + turn - spec_.num_parts;
      const double after = fill_with(node, part);
      if (least_full < 0 || after < least) {
        least_full = part;
        least = after;
      }
      if (after > 1) continue;
      const double mine = score(links[part], part);
      if (best < 0 || mine > best_score || (mine == best_score && fill_[at(part)] < fill_[at(best)])) {
        best = part;
        best_score = mine;
      }
    }
    return best < 0 ? least_full : best;
  }

 private:
  static size_t at(int64_t part) { return static_cast<size_t>(part); }

  int64_t in_edges(int64_t node) const {
    return spec_.in_edges != nullptr ? spec_.in_edges[node] : spec_.indptr[node + 1] - spec_.indptr[node];
  }

  int64_t has_kind(int64_t node, int bit) const { return spec_.kinds[node] >> bit & 1; }

  // Largest load as a share of its capacity once `node` is in the part, of what the node adds to: what it has none of
  // does not get fuller by it and cannot refuse it.
  double fill_with(int64_t node, int64_t part) const {
    const int64_t* load = &loads_[at(part) * FS_STREAM_LIMITS];
    double fill = static_cast<double>(load[0] + 1) / static_cast<double>(spec_.capacities[0]);
    const int64_t edges = in_edges(node);
    if (edges > 0) {
      fill = std::max(fill, static_cast<double>(load[1] + edges) / static_cast<double>(spec_.capacities[1]));
    }
    for (int bit = 0; bit < kKindBits && spec_.kinds != nullptr; ++bit) {
      if (has_kind(node, bit)) {
        fill = std::max(fill, static_cast<double>(load[2 + bit] + 1) / static_cast<double>(spec_.capacities[2 + bit]));
      }
    }
    return fill;
  }

  void weigh(int64_t part) {
    const int64_t* load = &loads_[at(part) * FS_STREAM_LIMITS];
    double fill = 0;
    for (int limit = 0; limit < FS_STREAM_LIMITS; ++limit) {
      fill = std::max(fill, static_cast<double>(load[limit]) / static_cast<double>(spec_.capacities[limit]));
    }
    fill_[at(part)] = fill;
    if (spec_.score == FS_LDG) {
      penalty_[at(part)] = 1 - fill;
    } else {
      penalty_[at(part)] = spec_.alpha * kGamma * std::sqrt(fill * static_cast<double>(spec_.capacities[0]));
    }
  }

  double score(int64_t links, int64_t part) const {
    const double neighbours = static_cast<double>(links);
    return spec_.score == FS_LDG ? neighbours * penalty_[at(part)] : neighbours - penalty_[at(part)];
  }

  // Where the search for the best part begins: of equals the first one found wins.
  int64_t first_part(int64_t node) const {
    const uint64_t id = static_cast<uint64_t>(node);
    uint32_t block[4] = {static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32), 0, 0};
    philox_block({static_cast<uint32_t>(spec_.rng_seed), static_cast<uint32_t>(spec_.rng_seed >> 32)}, block);
    return static_cast<int64_t>(static_cast<uint64_t>(block[0]) * static_cast<uint64_t>(spec_.num_parts) >> 32);
  }

  const FsStream& spec_;
  std::vector<int64_t> loads_;  // [num_parts, FS_STREAM_LIMITS]
  std::vector<double> fill_;    // [num_parts] largest load over capacity
  std::vector<double> penalty_;
};

FsStatus check(const FsStream& spec, const int32_t* parts) {
  const FsStatus parts_status = check_parts("stream_partition", spec.num_parts);
  if (parts_status != FS_OK) return parts_status;
  if (spec.score != FS_LDG && spec.score != FS_FENNEL) {
    return fail(FS_INVALID_ARGUMENT, "stream_partition: score %d; expected LDG (0) or Fennel (1)", spec.score);
  }
  for (int limit = 0; limit < FS_STREAM_LIMITS; ++limit) {
    if (spec.capacities[limit] < 1) {
      return refuse_capacity("stream_partition", limit, spec.capacities[limit]);
    }
  }
  for (int64_t node = 0; node < spec.num_nodes; ++node) {
    const int64_t begin = spec.indptr[node], end = spec.indptr[node + 1];
    if (begin < 0 || end < begin || end > spec.num_edges) {
      return refuse(FS_REFUSED_OFFSETS, "stream_partition", {{node, begin, end, spec.num_edges}});
    }
    if (parts[node] < -1 || parts[node] >= spec.num_parts) {
      return fail(FS_INVALID_ARGUMENT, "stream_partition: node %lld is in part %d; expected -1 to %d",
                  static_cast<long long>(node), parts[node], spec.num_parts - 1);
    }
  }
  return FS_OK;
}

// links[p] += neighbours in part p, of the row indices[begin .. end). False: the id of a neighbour is outside the
// graph.
template <typename Id>
bool count_links(const FsStream& spec, const int32_t* parts, int64_t begin, int64_t end, int64_t* links) {
  const Id* indices = static_cast<const Id*>(spec.indices);
  for (int64_t edge = begin; edge < end; ++edge) {
    if (edge + kAhead < spec.num_edges) {
      const uint64_t later = static_cast<uint64_t>(indices[edge + kAhead]);
      if (later < static_cast<uint64_t>(spec.num_nodes)) __builtin_prefetch(parts + later);
    }
    const uint64_t neighbour = static_cast<uint64_t>(indices[edge]);
    if (neighbour >= static_cast<uint64_t>(spec.num_nodes)) return false;
    const int32_t part = parts[neighbour];
    if (part >= 0) ++links[part];
  }
  return true;
}

template <typename Id>
FsStatus stream(const FsStream& spec, int32_t* parts) {
  const FsStatus checked = check(spec, parts);
  if (checked != FS_OK) return checked;
  Parts state(spec);
  for (int64_t node = 0; node < spec.num_nodes; ++node) {
    if (parts[node] >= 0) state.add(node, parts[node], 1);
  }
  std::vector<int64_t> links(static_cast<size_t>(spec.num_parts), 0);
  int64_t end = 0;  // of the row before, where rows lie in the order of the turns
  for (int64_t turn = 0; turn < spec.num_nodes; ++turn) {
    const int64_t node = spec.order == nullptr ? turn : spec.order[turn];
    if (node < 0 || node >= spec.num_nodes) {
      return refuse_order("stream_partition", node, spec.num_nodes);
    }
    if (parts[node] >= 0) state.add(node, parts[node], -1);
    parts[node] = -1;  // a self-loop does not count
    const int64_t begin = spec.rows_by_turn != 0 ? end : spec.indptr[node];
    end = begin + spec.indptr[node + 1] - spec.indptr[node];
    if (end > spec.num_edges) {
      return fail(FS_INVALID_ARGUMENT,
                  "stream_partition: %lld turns have more than the %lld edges; expected each node once",
                  static_cast<long long>(turn) + 1, static_cast<long long>(spec.num_edges));
    }
    if (!count_links<Id>(spec, parts, begin, end, links.data())) {
      return refuse_neighbour("stream_partition", node, spec.num_nodes);
    }
    const int64_t part = state.best(node, links.data());
    std::fill(links.begin(), links.end(), int64_t{0});
    parts[node] = static_cast<int32_t>(part);
    state.add(node, part, 1);
  }
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_stream_partition(const FsStream* spec, int32_t* parts) {
  return fs::guarded("stream_partition", [&] {
    return fs::with_id_type("stream_partition", spec->id_type,
                            [&](auto zero) { return fs::stream<decltype(zero)>(*spec, parts); });
  });
}
