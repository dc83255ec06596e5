// inclusion_probabilities: how probable it is that one hop of sampling reaches each node, given its destinations.
//
// A node's hazard is -ln(1 - p), p the probability that it is among a hop's nodes: hazards of independent ways add up.
// A destination v with probability p(v) picks its neighbour u with probability t(v, u), so u gains -ln(1 - t p(v)) from
// every row that lists it (SALIENT++, section 3.2: vertex-wise inclusion probabilities). A row is read by one thread,
// in order; what it adds to its neighbours is rounded to an integer first, so the sums do not depend on the order of
// the rows: not on threads, parts or numbering. Rows are in canonical order, so what is computed within one neither.
//
// t: uniform min(1, f / d); with replacement 1 - (1 - w / W)^f; weighted without replacement 1 - exp(-lambda w), lambda
// chosen by Newton's method so that the row's t add up to f (the sum is concave in lambda, so that from 0 every step
// stays below the root); rows of at most f neighbours 1.
//
// exp and log are those of core/elementary.h: the same bits on every processor.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "elementary.h"
#include "fastsample.h"
#include "platform.h"
#include "status.h"

namespace fs {
namespace {

constexpr double kUnit = 281474976710656.0;                   // 2^48, FS_HAZARD_BITS
constexpr double kMostNats = 32;                              // of one row: 1 - p is below 2^-46 and counts as 0
constexpr int64_t kMostTerm = int64_t{32} << FS_HAZARD_BITS;  // 2^53
constexpr int64_t kMostHazard = int64_t{1} << FS_MOST_HAZARD_BITS;
constexpr int kMostThreads = 512;  // so many times kMostTerm fit above kMostHazard
constexpr int kNewtonSteps = 200;
constexpr double kNewtonRest = 1e-12;  // relative step that ends it

static_assert(FS_HAZARD_BITS == 48, "kUnit");
static_assert(kMostHazard + kMostThreads * kMostTerm > 0, "sums of all threads must fit");

// -ln(1 - chance), at most kMostNats.
FS_INLINE double hazard_of(double chance) {
  const double rest = 1 - chance;
  if (!(rest > 0)) return kMostNats;
  const double nats = minus_log(rest);
  return nats < kMostNats ? nats : kMostNats;
}

FS_INLINE int64_t in_units(double nats) { return static_cast<int64_t>(nats * kUnit + 0.5); }

// What the threads add to. Saturates: a sum that has reached kMostHazard gets no more, and all sums are cut to it at
// the end, so that the order does not show.
class Sums {
 public:
  Sums(int64_t* sums, bool is_shared) : sums_(sums), is_shared_(is_shared) {}

  void add(int64_t node, int64_t term) const {
    if (!is_shared_) {
      sums_[node] = std::min(sums_[node] + term, kMostHazard);
    } else if (__atomic_load_n(sums_ + node, __ATOMIC_RELAXED) < kMostHazard) {
      __atomic_fetch_add(sums_ + node, term, __ATOMIC_RELAXED);
    }
  }

 private:
  int64_t* sums_;
  bool is_shared_;
};

// The weights of one row and what its picks follow from them; memory is kept from row to row.
class WeightedRow {
 public:
  // Takes a row's weights as shares of the largest one. False: one is negative, infinite or NaN, at bad().
  template <typename Weight>
  bool take(const Weight* weights, int64_t degree) {
    shares_.resize(static_cast<size_t>(degree));
    powers_.resize(static_cast<size_t>(degree));
    double most = 0;
    for (int64_t i = 0; i < degree; ++i) {
      const double weight = static_cast<double>(weights[i]);
      if (!(weight >= 0) || !std::isfinite(weight)) {
        bad_ = i;
        return false;
      }
      most = std::max(most, weight);
    }
    positive_ = 0;
    total_ = 0;
    for (int64_t i = 0; i < degree; ++i) {
      double& share = shares_[at(i)];
      share = most > 0 ? static_cast<double>(weights[i]) / most : 0;
      positive_ += share > 0;
      total_ += share;
    }
    return true;
  }

  // Gets ready for `chance`.
  void prepare(int64_t fanout, bool replace) {
    fanout_ = static_cast<double>(fanout);
    replace_ = replace;
    takes_all_ = !replace && (fanout < 0 || positive_ <= fanout);
    if (!replace && !takes_all_) rate_ = solve();
  }

  // Probability that neighbour i is picked.
  double chance(int64_t i) const {
    const double share = shares_[at(i)];
    if (!(share > 0)) return 0;
    if (takes_all_) return 1;
    return 1 - exp_negative(replace_ ? fanout_ * hazard_of(share / total_) : rate_ * share);
  }

  bool takes_all() const { return takes_all_; }
  bool is_possible(int64_t i) const { return shares_[at(i)] > 0; }
  int64_t bad() const { return bad_; }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  // The rate at which the row's chances add up to the fanout, which is below the number of positive weights.
  double solve() {
    double rate = fanout_ / total_;
    for (int step = 0; step < kNewtonSteps; ++step) {
      for (size_t i = 0; i < shares_.size(); ++i) powers_[i] = exp_negative(rate * shares_[i]);
      double picked = 0, slope = 0;
      for (size_t i = 0; i < shares_.size(); ++i) {
        picked += 1 - powers_[i];
        slope += shares_[i] * powers_[i];
      }
      const double more = (fanout_ - picked) / slope;
      if (!(more > rate * kNewtonRest) || !std::isfinite(rate + more)) break;
      rate += more;
    }
    return rate;
  }

  std::vector<double> shares_, powers_;
  double total_ = 0, fanout_ = 0, rate_ = 0;
  int64_t positive_ = 0, bad_ = 0;
  bool replace_ = false, takes_all_ = false;
};

// What is refused first, in the order of the edges: the same line whatever the number of threads.
struct Refused {
  int64_t edge = INT64_MAX;
  bool is_weight = false;
};

template <typename Id, typename Weight>
class Hop {
 public:
  Hop(const FsInclusion& spec, Sums sums)
      : spec_(spec),
        indices_(static_cast<const Id*>(spec.indices)),
        weights_(static_cast<const Weight*>(spec.weights)),
        sums_(sums) {}

  // The rows begin .. end - 1, up to the first refused edge.
  Refused run(int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end && refused_.edge == INT64_MAX; ++row) {
      const int64_t hazard = spec_.hazards[row];
      if (hazard > 0 && spec_.fanout != 0) {
        weights_ == nullptr ? uniform_row(row, hazard) : weighted_row(row, hazard);
      }
    }
    return refused_;
  }

 private:
  static double probability(int64_t hazard) { return 1 - exp_negative(static_cast<double>(hazard) / kUnit); }

  void uniform_row(int64_t row, int64_t hazard) {
    const int64_t first = spec_.indptr[row], last = spec_.indptr[row + 1], degree = last - first;
    if (degree == 0) return;
    const bool takes_all = spec_.fanout < 0 || degree <= (spec_.replace != 0 ? 1 : spec_.fanout);
    int64_t term = std::min(hazard, kMostTerm);
    if (!takes_all) {
      const double fanout = static_cast<double>(spec_.fanout), share = 1 / static_cast<double>(degree);
      const double chance = spec_.replace != 0 ? 1 - exp_negative(fanout * hazard_of(share)) : fanout * share;
      term = in_units(hazard_of(chance * probability(hazard)));
    }
    for (int64_t edge = first; edge < last; ++edge) add(edge, term);
  }

  void weighted_row(int64_t row, int64_t hazard) {
    const int64_t first = spec_.indptr[row], degree = spec_.indptr[row + 1] - first;
    if (!weighted_.take(weights_ + first, degree)) {
      refused_ = {first + weighted_.bad(), true};
      return;
    }
    weighted_.prepare(spec_.fanout, spec_.replace != 0);
    const double before = probability(hazard);
    for (int64_t i = 0; i < degree; ++i) {
      if (!weighted_.is_possible(i)) continue;
      const bool whole = weighted_.takes_all();
      add(first + i, whole ? std::min(hazard, kMostTerm) : in_units(hazard_of(weighted_.chance(i) * before)));
    }
  }

  void add(int64_t edge, int64_t term) {
    const uint64_t node = static_cast<uint64_t>(indices_[edge]);
    if (node < static_cast<uint64_t>(spec_.num_nodes)) {
      sums_.add(static_cast<int64_t>(node), term);
    } else if (refused_.edge == INT64_MAX) {
      refused_ = {edge, false};
    }
  }

  const FsInclusion& spec_;
  const Id* indices_;
  const Weight* weights_;
  Sums sums_;
  WeightedRow weighted_;
  Refused refused_;
};

FsStatus check(const FsInclusion& spec) {
  constexpr const char* kName = "inclusion_probabilities";
  FsStatus status = check_threads(kName, spec.num_threads);
  if (status == FS_OK) status = check_fanout(kName, spec.fanout, 0, spec.replace != 0);
  if (status == FS_OK && spec.weights != nullptr) status = check_weight_type(kName, spec.weight_type);
  if (status != FS_OK) return status;
  for (int64_t node = 0; node < spec.num_nodes; ++node) {
    const int64_t begin = spec.indptr[node], end = spec.indptr[node + 1], hazard = spec.hazards[node];
    if (begin < 0 || end < begin || end > spec.num_edges) {
      return refuse(FS_REFUSED_OFFSETS, kName, {{node, begin, end, spec.num_edges}});
    }
    if (hazard < 0 || hazard > kMostHazard) {
      return fail(FS_INVALID_ARGUMENT, "%s: the hazard of node %lld is %lld; expected 0 to %lld", kName,
                  static_cast<long long>(node), static_cast<long long>(hazard), static_cast<long long>(kMostHazard));
    }
  }
  return FS_OK;
}

template <typename Id, typename Weight>
FsStatus refuse_edge(const FsInclusion& spec, const Refused& found) {
  const long long edge = static_cast<long long>(found.edge);
  if (found.is_weight) {
    return fail(FS_INVALID_ARGUMENT,
                "inclusion_probabilities: the weight of edge %lld is %g; expected a finite number, 0 or more", edge,
                static_cast<double>(static_cast<const Weight*>(spec.weights)[found.edge]));
  }
  const int64_t id = static_cast<int64_t>(static_cast<const Id*>(spec.indices)[found.edge]);
  return refuse(FS_REFUSED_ID, "inclusion_probabilities", {{id, found.edge, 0, spec.num_nodes - 1}});
}

template <typename Id, typename Weight>
FsStatus add_up(const FsInclusion& spec, int64_t* out) {
  const FsStatus checked = check(spec);
  if (checked != FS_OK) return checked;
  std::fill(out, out + spec.num_nodes, int64_t{0});
  const int threads = std::min(spec.num_threads, kMostThreads);
  std::vector<Refused> refused(static_cast<size_t>(threads));
  int out_of_room = 0;
#pragma omp parallel num_threads(threads)
  {
    const int64_t count = omp_get_num_threads(), me = omp_get_thread_num();
    const int64_t* last = spec.indptr + spec.num_nodes;
    const auto first_row = [&](int64_t share) {  // threads share the edges, not the rows
      const int64_t edge = *last / count * share;
      return share == 0 ? 0 : share == count ? spec.num_nodes : std::upper_bound(spec.indptr, last, edge) - spec.indptr;
    };
    try {
      Hop<Id, Weight> hop(spec, Sums(out, count > 1));
      refused[static_cast<size_t>(me)] = hop.run(first_row(me), first_row(me + 1));
    } catch (const std::bad_alloc&) {  // must not leave the region
      __atomic_store_n(&out_of_room, 1, __ATOMIC_RELAXED);
    }
  }
  if (out_of_room != 0) return out_of_memory("inclusion_probabilities");
  for (const Refused& found : refused) {
    if (found.edge != INT64_MAX) return refuse_edge<Id, Weight>(spec, found);
  }
  for (int64_t node = 0; node < spec.num_nodes; ++node) out[node] = std::min(out[node], kMostHazard);
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_inclusion_probabilities(const FsInclusion* spec, int64_t* out_hazards) {
  return fs::guarded("inclusion_probabilities", [&] {
    return fs::with_id_type("inclusion_probabilities", spec->id_type, [&](auto id) {
      using Id = decltype(id);
      const bool is_double = spec->weight_type == FS_FLOAT64;
      return is_double ? fs::add_up<Id, double>(*spec, out_hazards) : fs::add_up<Id, float>(*spec, out_hazards);
    });
  });
}
