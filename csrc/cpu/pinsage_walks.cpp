// Neighbourhoods of PinSAGE: see pinsage_walks.h.
//
// visit_plainly is the definition: walk by walk, step by step. visit_in_blocks gives the same bits: it draws the
// lengths of the walks of a block of rows, takes them in lock step and ranks each row's few visits by vector kernels
// (vector/visit_rows.h); many visits are sorted.
#include "pinsage_walks.h"

#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "hop_spec.h"
#include "transit_draw.h"
#include "vector/vector_kernels.h"
#include "walk_blocks.h"

namespace fs {
namespace {

constexpr const char* kOperation = "sample_pinsage";
constexpr int64_t kWalkBlock = 1024;  // walkers of a block: their state and visits fit the first cache

StageKey key_of(const FsPinsageSpec& spec, RandomDomain domain, int64_t step) {
  return transit_key(spec.rng_seed, domain, step, spec.step);
}

// The most visited nodes of a row, of nodes that come in the order of their original ids.
template <typename Id>
class MostVisited {
 public:
  MostVisited(int64_t most, int64_t* visits, Id* nodes) : most_(most), visits_(visits), nodes_(nodes) {}

  void add(Id node, int64_t visits) {
    int64_t at = count_;
    while (at > 0 && visits_[at - 1] < visits) --at;
    if (at == most_) return;
    count_ = std::min(count_ + 1, most_);
    for (int64_t i = count_ - 1; i > at; --i) {
      visits_[i] = visits_[i - 1];
      nodes_[i] = nodes_[i - 1];
    }
    visits_[at] = visits;
    nodes_[at] = node;
  }

  // Of the nodes that are left; returns how many these are.
  int64_t write_weights(float* weights) const {
    int64_t sum = 0;
    for (int64_t i = 0; i < count_; ++i) sum += visits_[i];
    for (int64_t i = 0; i < count_; ++i) weights[i] = static_cast<float>(visits_[i]) / static_cast<float>(sum);
    return count_;
  }

 private:
  int64_t most_;
  int64_t* visits_;  // [most] of nodes_, descending
  Id* nodes_;        // [most]
  int64_t count_ = 0;
};

// Walks of a block of rows in lock step, walk by walk: walker w * stride + i is walk w of row i.
template <typename Id>
class WalkBlock {
 public:
  WalkBlock(const PinsageTask<Id>& task, int64_t most_rows)
      : task_(task), num_walks_(task.spec.num_walks), length_(task.spec.walk_length) {
    ranks_together_ = num_visits() <= kRankedVisits;
    stride_ = ranks_together_ ? (most_rows + kRankedRows - 1) / kRankedRows * kRankedRows : most_rows;
    const int64_t most = stride_ * num_walks_, padded = (most + kGroupNodes) * 8,
                  own = num_visits() + task.most_edges();
    char* bytes =
        thread_walks().require_array<char>(padded + 8 * (most + stride_ + own) + 4 * most +
                                           static_cast<int64_t>(sizeof(Id)) * (stride_ + most * (1 + length_)));
    const auto cut = [&bytes](auto*& array, int64_t count) {
      array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(bytes);
      bytes += count * static_cast<int64_t>(sizeof(*array));
    };
    cut(ids_, most + kGroupNodes);
    cut(lengths_, most);
    cut(row_ids_, stride_);
    cut(own_visits_, num_visits());
    cut(own_counts_, task.most_edges());
    cut(starts_, stride_);
    cut(nodes_, most);
    cut(visits_, most * length_);
    cut(places_, most);
    std::fill(ids_, ids_ + most + kGroupNodes, 0);
    keys_.reserve(static_cast<size_t>(length_));
    for (int64_t step = 0; step < length_; ++step) keys_.push_back(key_of(task.spec, kTransit, step));
  }

  // Walks from rows begin .. end, at most most_rows. Returns an id that is no row, or 0.
  Id walk(int64_t begin, int64_t end) {
    start(begin, end);
    const int64_t count = stride_ * num_walks_;
    std::fill(visits_ + count, visits_ + count * length_, Id{FS_NULL_NODE});  // all have a first step
    VisitRun run = {};
    run.rows = {task_.graph.indptr, task_.graph.indices, nullptr, static_cast<uint64_t>(task_.graph.num_rows),
                task_.graph.num_edges};
    run.orig_ids = task_.graph.orig_ids;
    run.keys = keys_.data();
    run.sample_ids = ids_;
    run.nodes = nodes_;
    run.places = places_;
    run.lengths = lengths_;
    run.visits = visits_;
    run.num_walkers = count;
    run.walk_length = length_;
    const auto kernel = sizeof(Id) == 4 ? vector_kernels().walk_visits_32 : vector_kernels().walk_visits_64;
    return kernel(run) == 0 ? Id{0} : first_bad();
  }

  // Writes the neighbours of rows begin .. end, which have walked, behind the `written` edges before; returns how many
  // there are then.
  int64_t rank(int64_t begin, int64_t end, int64_t written) {
    if (ranks_together_) {
      RankRun run = {};
      run.visits = visits_;
      run.starts = starts_;
      run.orig_ids = task_.graph.orig_ids;
      run.num_rows = end - begin;
      run.num_visits = num_visits();
      run.stride = stride_;
      run.most_edges = task_.most_edges();
      run.neighbors = task_.neighbors + written;
      run.weights = task_.weights + written;
      run.counts = task_.counts + begin;
      const auto kernel = sizeof(Id) == 4 ? vector_kernels().rank_visits_32 : vector_kernels().rank_visits_64;
      const int64_t found = kernel(run);
      if (found >= 0) return written + found;
    }
    for (int64_t row = begin; row < end; ++row) written = rank_row(row, row - begin, written);
    return written;
  }

 private:
  int64_t num_visits() const { return num_walks_ * length_; }

  // The neighbours of a row whose walks are those of row `at` of the block.
  int64_t rank_row(int64_t row, int64_t at, int64_t written) {
    int64_t* end = own_visits_;
    for (int64_t v = 0; v < num_visits(); ++v) {
      const Id node = visits_[v * stride_ + at];
      *end = node;
      end += static_cast<int64_t>(node != FS_NULL_NODE) & static_cast<int64_t>(node != starts_[at]);
    }
    std::sort(own_visits_, end, [&](int64_t a, int64_t b) { return task_.graph.orig_id(a) < task_.graph.orig_id(b); });
    MostVisited<Id> found(task_.most_edges(), own_counts_, task_.neighbors + written);
    for (int64_t* run = own_visits_; run < end;) {
      int64_t* next = run + 1;
      while (next < end && *next == *run) ++next;
      found.add(static_cast<Id>(*run), next - run);
      run = next;
    }
    task_.counts[row] = found.write_weights(task_.weights + written);
    return written + task_.counts[row];
  }

  // Puts the walks of rows begin .. end to their starts; places of the block behind them repeat the last row.
  void start(int64_t begin, int64_t end) {
    const Id* rows = task_.rows + begin;
    std::copy(rows, rows + (end - begin), starts_);
    std::fill(starts_ + (end - begin), starts_ + stride_, rows[end - begin - 1]);
    for (int64_t i = 0; i < stride_; ++i) {
      __builtin_prefetch(task_.graph.indptr + starts_[i]);
      row_ids_[i] = task_.sample_id(starts_[i], 0);
    }
    for (int64_t walk = 0; walk < num_walks_; ++walk) {
      const uint64_t apart = static_cast<uint64_t>(task_.graph.num_rows) * static_cast<uint64_t>(walk);
      for (int64_t i = 0; i < stride_; ++i) ids_[walk * stride_ + i] = row_ids_[i] + apart;
      std::copy(starts_, starts_ + stride_, nodes_ + walk * stride_);
    }
    const int64_t count = stride_ * num_walks_;
    if (task_.spec.survival == nullptr) {
      std::fill(lengths_, lengths_ + count, length_);
    } else {
      vector_kernels().walk_lengths(key_of(task_.spec, kInitial, 0), ids_, count, task_.spec.survival, length_ - 1,
                                    lengths_);
    }
  }

  Id first_bad() const {
    const Id* visit = visits_;
    while (*visit == FS_NULL_NODE || task_.graph.has_row(*visit)) ++visit;
    return *visit;
  }

  const PinsageTask<Id>& task_;
  const int64_t num_walks_, length_;
  int64_t stride_;  // rows of a block, and places that repeat one
  bool ranks_together_;
  uint64_t *ids_, *row_ids_;           // sample ids of the walkers under way, filled up to whole groups; of first walks
  int64_t* lengths_;                   // [walks, stride]
  Id *starts_, *nodes_;                // [stride]; of the walkers under way
  Id* visits_;                         // [steps, walks, stride]; FS_NULL_NODE: none
  int32_t* places_;                    // of the walkers under way, among all
  int64_t *own_visits_, *own_counts_;  // of a row: its visits; those of its neighbours
  std::vector<StageKey> keys_;         // by step
};

template <typename Id>
FsStatus refuse_visit(const PinsageTask<Id>& task, int64_t begin, int64_t end, Id node) {
  std::fill(task.counts + begin, task.counts + end, 0);
  return refuse_source(kOperation, task.graph, node);
}

}  // namespace

template <typename Id>
FsStatus visit_plainly(const PinsageTask<Id>& task, int64_t begin, int64_t end) {
  const FsPinsageSpec& spec = task.spec;
  const CscView<Id>& graph = task.graph;
  std::vector<int64_t> counts(static_cast<size_t>(task.most_edges()));
  int64_t written = begin * task.most_edges();
  for (int64_t row = begin; row < end; ++row) {
    std::map<uint64_t, std::pair<Id, int64_t>> visits;  // by original id: node and number
    for (int64_t walk = 0; walk < spec.num_walks; ++walk) {
      const int64_t id = static_cast<int64_t>(task.sample_id(task.rows[row], walk));
      PickStream start(key_of(spec, kInitial, 0), id, 0);
      int64_t length = spec.walk_length;
      if (spec.survival != nullptr) length = ppr_length(start.word64(), spec.survival, spec.walk_length - 1);
      int64_t node = task.rows[row];
      for (int64_t step = 0; step < length; ++step) {
        const int64_t degree = graph.indptr[node + 1] - graph.indptr[node];
        if (degree == 0) break;
        PickStream stream(key_of(spec, kTransit, step), id, 0);
        node = graph.indices[graph.indptr[node] + static_cast<int64_t>(stream.below(static_cast<uint64_t>(degree)))];
        if (!graph.has_row(node)) return refuse_visit(task, begin, end, static_cast<Id>(node));
        if (node == static_cast<int64_t>(task.rows[row])) continue;
        auto& [visited, number] = visits[graph.orig_id(node)];
        visited = static_cast<Id>(node);
        ++number;
      }
    }
    MostVisited<Id> found(task.most_edges(), counts.data(), task.neighbors + written);
    for (const auto& [orig_id, visit] : visits) found.add(visit.first, visit.second);
    task.counts[row] = found.write_weights(task.weights + written);
    written += task.counts[row];
  }
  return FS_OK;
}

template <typename Id>
FsStatus visit_in_blocks(const PinsageTask<Id>& task, int64_t begin, int64_t end) {
  const int64_t most_rows = std::max<int64_t>(1, kWalkBlock / task.spec.num_walks);
  WalkBlock<Id> block(task, std::min(most_rows, end - begin));
  int64_t written = begin * task.most_edges();
  for (int64_t first = begin; first < end; first += most_rows) {
    const int64_t last = std::min(end, first + most_rows);
    const Id bad = block.walk(first, last);
    if (bad != 0) return refuse_visit(task, begin, end, bad);
    written = block.rank(first, last, written);
  }
  return FS_OK;
}

template FsStatus visit_plainly(const PinsageTask<int32_t>&, int64_t, int64_t);
template FsStatus visit_plainly(const PinsageTask<int64_t>&, int64_t, int64_t);
template FsStatus visit_in_blocks(const PinsageTask<int32_t>&, int64_t, int64_t);
template FsStatus visit_in_blocks(const PinsageTask<int64_t>&, int64_t, int64_t);

}  // namespace fs
