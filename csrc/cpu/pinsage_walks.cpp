// Neighbourhoods of PinSAGE: see pinsage_walks.h.
//
// visit_plainly is the definition: walk by walk, step by step. visit_in_blocks gives the same bits: it draws the
// lengths of the walks of a block of rows, takes them in lock step by the vector kernels of the walk engine
// (vector/walk_steps.h), the longest first so that those that go on come first, and sorts each row's few visits.
#include "pinsage_walks.h"

#include <map>
#include <utility>
#include <vector>

#include "hop_spec.h"
#include "transit_draw.h"
#include "transit_steps.h"
#include "vector/vector_kernels.h"
#include "walk_blocks.h"

namespace fs {
namespace {

constexpr const char* kOperation = "sample_pinsage";
constexpr int64_t kWalkBlock = 1024;  // walkers of a block: their state and the lines they write fit the second cache
constexpr int64_t kFewVisits = 16;
constexpr int kOrderBits = 58;  // of an original id, below the number of visits

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

// Walks of a block of rows in lock step.
template <typename Id>
class WalkBlock {
 public:
  WalkBlock(const PinsageTask<Id>& task, int64_t most_rows)
      : task_(task), num_walks_(task.spec.num_walks), length_(task.spec.walk_length) {
    const int64_t most = most_rows * num_walks_, padded = most + kGroupNodes;
    int64_t* words =
        thread_walks().require_array<int64_t>(2 * padded + (4 + length_) * most + length_ + 1 + task.most_edges());
    const auto cut = [&words](int64_t count) { return std::exchange(words, words + count); };
    drawn_ids_ = reinterpret_cast<uint64_t*>(cut(padded));
    ids_ = reinterpret_cast<uint64_t*>(cut(padded));
    std::fill(drawn_ids_, drawn_ids_ + padded, 0);
    std::fill(ids_, ids_ + padded, 0);
    drawn_lengths_ = cut(most);
    lengths_ = cut(most);
    nodes_ = cut(most);
    places_ = cut(most);
    visits_ = cut(most * length_);
    first_ = cut(length_ + 1);
    counts_ = cut(task.most_edges());
    keys_.reserve(static_cast<size_t>(length_));
    for (int64_t step = 0; step < length_; ++step) keys_.push_back(key_of(task.spec, kTransit, step));
  }

  // Walks from rows begin .. end, at most most_rows. Returns an id that is no row, or 0.
  Id walk(int64_t begin, int64_t end) {
    int64_t count = (end - begin) * num_walks_;
    start(begin, count);
    std::fill(visits_, visits_ + count * length_, int64_t{FS_NULL_NODE});
    PickRun run = {};
    run.rows = {task_.graph.indptr, task_.graph.indices, nullptr, static_cast<uint64_t>(task_.graph.num_rows)};
    run.sample_ids = ids_;
    run.transits = run.next = nodes_;
    run.places = places_;
    const auto pick = sizeof(Id) == 4 ? vector_kernels().pick_neighbors_32 : vector_kernels().pick_neighbors_64;
    for (int64_t step = 0; step < length_; ++step) {
      while (count > 0 && lengths_[count - 1] <= step) --count;
      if (count == 0) break;
      run.key = keys_[static_cast<size_t>(step)];
      run.out = visits_ + step;
      run.count = count;
      run.goes_on = step + 1 < length_;
      const PickedRun picked = pick(run);
      if (picked.num_bad > 0) return first_bad(run);
      ask_for_orig_ids(count);
      if (picked.num_null > 0) count = drop_ended(count);
    }
    return 0;
  }

  // The neighbours of a row, whose walks are those of row `at` of the block.
  void rank(int64_t row, int64_t at) {
    int64_t* visits = visits_ + at * num_walks_ * length_;
    const int64_t start = static_cast<int64_t>(task_.rows[row]);
    int64_t count = 0;
    for (int64_t i = 0; i < num_walks_ * length_; ++i) {
      const int64_t node = visits[i];
      visits[count] = node;
      count += static_cast<int64_t>(node != FS_NULL_NODE) & static_cast<int64_t>(node != start);
    }
    if (count <= kFewVisits && rank_few(row, visits, count)) return;
    int64_t* end = visits + count;
    std::sort(visits, end, [&](int64_t a, int64_t b) { return task_.graph.orig_id(a) < task_.graph.orig_id(b); });
    const int64_t first = row * task_.most_edges();
    MostVisited<Id> found(task_.most_edges(), counts_, task_.neighbors + first);
    for (int64_t* run = visits; run < end;) {
      int64_t* next = run + 1;
      while (next < end && *next == *run) ++next;
      found.add(static_cast<Id>(*run), next - run);
      run = next;
    }
    task_.counts[row] = found.write_weights(task_.weights + first);
  }

 private:
  // Ranks few visits at once: every pair is compared, first for the number of visits of each node, then for the order
  // by (most visits, original id), and nothing is branched on: the order is a coin flip to a branch. A repeated visit
  // comes behind all first ones. False: original ids are too long for it.
  bool rank_few(int64_t row, const int64_t* visits, int64_t count) const {
    uint64_t keys[kFewVisits], order[kFewVisits], all = 0;
    uint32_t numbers[kFewVisits], repeats[kFewVisits], places[kFewVisits];
    uint32_t num_repeats = 0;
    for (int64_t i = 0; i < count; ++i) {
      keys[i] = task_.graph.orig_id(visits[i]);
      all |= keys[i];
      uint32_t number = 1;
      for (int64_t j = 0; j < i; ++j) {
        const uint32_t is_same = keys[i] == keys[j];
        numbers[j] += is_same;
        number += is_same;
      }
      numbers[i] = number;
      repeats[i] = number > 1;
      num_repeats += repeats[i];
    }
    if (all >> kOrderBits != 0) return false;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t key = static_cast<uint64_t>(kFewVisits - numbers[i]) << kOrderBits | keys[i];
      order[i] = key | -static_cast<uint64_t>(repeats[i]);
      uint32_t place = 0;
      for (int64_t j = 0; j < i; ++j) {
        const uint32_t is_before = order[i] < order[j];
        places[j] += is_before;
        place += 1 - is_before;
      }
      places[i] = place;
    }
    int64_t nodes[kFewVisits];
    uint32_t ranked[kFewVisits];
    for (int64_t i = 0; i < count; ++i) {
      nodes[places[i]] = visits[i];
      ranked[places[i]] = numbers[i];
    }
    const int64_t kept = std::min(count - num_repeats, task_.most_edges()), first = row * task_.most_edges();
    uint32_t sum = 0;
    for (int64_t i = 0; i < kept; ++i) sum += ranked[i];
    for (int64_t i = 0; i < kept; ++i) {
      task_.neighbors[first + i] = static_cast<Id>(nodes[i]);
      task_.weights[first + i] = static_cast<float>(ranked[i]) / static_cast<float>(sum);
    }
    task_.counts[row] = kept;
    return true;
  }

  // Puts the walks of rows begin .. to their starts, the longest first, of equally long ones the first first.
  void start(int64_t begin, int64_t count) {
    for (int64_t i = 0, j = 0; j < count; ++i) {
      for (int64_t walk = 0; walk < num_walks_; ++walk) drawn_ids_[j++] = task_.sample_id(task_.rows[begin + i], walk);
    }
    draw_lengths(count);
    std::fill(first_, first_ + length_ + 1, 0);
    for (int64_t j = 0; j < count; ++j) ++first_[length_ - drawn_lengths_[j] + 1];
    for (int64_t k = 1; k <= length_; ++k) first_[k] += first_[k - 1];
    for (int64_t i = 0, j = 0; j < count; ++i) {
      const int64_t node = task_.rows[begin + i];
      __builtin_prefetch(task_.graph.indptr + node);
      for (int64_t walk = 0; walk < num_walks_; ++walk, ++j) {
        const int64_t to = first_[length_ - drawn_lengths_[j]]++;
        ids_[to] = drawn_ids_[j];
        lengths_[to] = drawn_lengths_[j];
        nodes_[to] = node;
        places_[to] = j * length_;
      }
    }
  }

  void draw_lengths(int64_t count) {
    if (task_.spec.survival == nullptr) {
      std::fill(drawn_lengths_, drawn_lengths_ + count, length_);
      return;
    }
    const StageKey key = key_of(task_.spec, kInitial, 0);
    uint32_t words[4][kGroupNodes];  // of block 0 of each stream, as PickStream has them for pick 0
    for (int64_t first = 0; first < count; first += kGroupNodes) {
      vector_kernels().stream_words(key, drawn_ids_ + first, 1, 1, words[0]);
      for (int64_t l = 0; l < std::min<int64_t>(kGroupNodes, count - first); ++l) {
        const uint64_t word = words[0][l] | static_cast<uint64_t>(words[1][l]) << 32;
        drawn_lengths_[first + l] = ppr_length(word, task_.spec.survival, length_ - 1);
      }
    }
  }

  // Nodes are ranked by them soon.
  void ask_for_orig_ids(int64_t count) const {
    if (task_.graph.orig_ids == nullptr) return;
    for (int64_t i = 0; i < count; ++i) __builtin_prefetch(task_.graph.orig_ids + nodes_[i]);
  }

  // Takes out the walkers that found no neighbour.
  int64_t drop_ended(int64_t count) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (nodes_[i] < 0) continue;
      ids_[kept] = ids_[i];
      lengths_[kept] = lengths_[i];
      nodes_[kept] = nodes_[i];
      places_[kept++] = places_[i];
    }
    return kept;
  }

  Id first_bad(const PickRun& run) const {
    int64_t i = 0;
    for (;; ++i) {
      const int64_t node = run.out[run.places[i]];
      if (node != FS_NULL_NODE && !task_.graph.has_row(node)) return static_cast<Id>(node);
    }
  }

  const PinsageTask<Id>& task_;
  const int64_t num_walks_, length_;
  uint64_t* drawn_ids_;  // sample ids of all walks of the block, filled up to whole groups
  uint64_t* ids_;        // of those under way, as what follows
  int64_t *drawn_lengths_, *lengths_, *nodes_, *places_;
  int64_t* visits_;             // [rows, walks, steps]; FS_NULL_NODE: none
  int64_t* first_;              // where walks of each length begin, the longest first
  int64_t* counts_;             // visits of a row's neighbours
  std::vector<StageKey> keys_;  // by step
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
    const int64_t first = row * task.most_edges();
    MostVisited<Id> found(task.most_edges(), counts.data(), task.neighbors + first);
    for (const auto& [orig_id, visit] : visits) found.add(visit.first, visit.second);
    task.counts[row] = found.write_weights(task.weights + first);
  }
  return FS_OK;
}

template <typename Id>
FsStatus visit_in_blocks(const PinsageTask<Id>& task, int64_t begin, int64_t end) {
  const int64_t most_rows = std::max<int64_t>(1, kWalkBlock / task.spec.num_walks);
  WalkBlock<Id> block(task, std::min(most_rows, end - begin));
  for (int64_t first = begin; first < end; first += most_rows) {
    const int64_t last = std::min(end, first + most_rows);
    const Id bad = block.walk(first, last);
    if (bad != 0) return refuse_visit(task, begin, end, bad);
    for (int64_t row = first; row < last; ++row) block.rank(row, row - first);
  }
  return FS_OK;
}

template FsStatus visit_plainly(const PinsageTask<int32_t>&, int64_t, int64_t);
template FsStatus visit_plainly(const PinsageTask<int64_t>&, int64_t, int64_t);
template FsStatus visit_in_blocks(const PinsageTask<int32_t>&, int64_t, int64_t);
template FsStatus visit_in_blocks(const PinsageTask<int64_t>&, int64_t, int64_t);

}  // namespace fs
