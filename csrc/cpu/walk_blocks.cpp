// Walks in lock step: see walk_blocks.h.
#include "walk_blocks.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "vector/vector_kernels.h"
#include "worker_pool.h"

namespace fs {
namespace {

constexpr int64_t kCountedSizes = 512;

// Walkers of one block. Those that go on come first; of drawn lengths, the longest first.
struct Walkers {
  std::vector<uint64_t> ids;  // sample ids, filled up to whole groups
  std::vector<int64_t> nodes, places, samples;
  std::vector<int64_t> lengths;  // picks that each makes at most

  void resize(int64_t count) {
    ids.assign(static_cast<size_t>(count + kGroupNodes), 0);
    for (std::vector<int64_t>* column : {&nodes, &places, &samples, &lengths})
      column->resize(static_cast<size_t>(count));
  }
  void move(size_t from, size_t to) {
    ids[to] = ids[from];
    nodes[to] = nodes[from];
    places[to] = places[from];
    samples[to] = samples[from];
    lengths[to] = lengths[from];
  }
};

class Walks {
 public:
  explicit Walks(TransitCall& call)
      : call_(call),
        kernel_(call.graph.id_type == FS_INT32 ? vector_kernels().pick_neighbors_32
                                               : vector_kernels().pick_neighbors_64),
        draws_lengths_(call.app.next_kind == FS_NEXT_PPR) {
    for (int64_t step = 0; step < call.app.num_steps; ++step) keys_.push_back(call.key(kTransit, step));
  }

  TransitResult* run(int64_t block_samples) {
    const int64_t count = call_.request.num_samples;
    if (draws_lengths_) {
      draw_lengths();
      result_.reset(TransitResult::of_lengths(sizes_, 0));
    } else {
      result_.reset(TransitResult::of_width(count, call_.app.num_steps, call_.width));
    }
    share_runs(count, block_samples, call_.request.num_threads, [&](int64_t begin, int64_t end) { walk(begin, end); });
    if (!call_.failures.is_empty()) return nullptr;
    if (draws_lengths_) finish_lengths();
    return result_.release();
  }

 private:
  // Vertices of each sample as if no walk came to a dead end.
  void draw_lengths() {
    const StageKey key = call_.key(kInitial, 0);
    sizes_.resize(static_cast<size_t>(call_.request.num_samples));
    share_runs(call_.request.num_samples, kWalkBlock, call_.request.num_threads, [&](int64_t begin, int64_t end) {
      uint64_t ids[kGroupNodes] = {};
      uint32_t words[4][kGroupNodes];  // of block 0 of each stream, as PickStream has them for pick 0
      for (int64_t first = begin; first < end; first += kGroupNodes) {
        const int64_t count = std::min<int64_t>(kGroupNodes, end - first);
        for (int64_t l = 0; l < count; ++l) ids[l] = static_cast<uint64_t>(call_.sample_id(first + l));
        vector_kernels().stream_words(key, ids, 1, 1, words[0]);
        for (int64_t l = 0; l < count; ++l) {
          const uint64_t word = words[0][l] | static_cast<uint64_t>(words[1][l]) << 32;
          const int64_t length = ppr_length(word, ppr_table(call_.app), call_.app.params[1]);
          const bool walks = call_.request.roots[first + l] >= 0;
          sizes_[static_cast<size_t>(first + l)] = 1 + (walks ? std::min(length, call_.app.num_steps) : 0);
        }
      }
    });
  }

  void walk(int64_t begin, int64_t end) {
    Walkers walkers;
    start(begin, end, walkers);
    int64_t count = end - begin;
    PickRun run = {};
    run.indptr = call_.graph.indptr;
    run.indices = call_.graph.indices;
    run.slots = call_.app.next_kind == FS_NEXT_UNIFORM ? nullptr : call_.tables.walk_slots;
    run.num_rows = static_cast<uint64_t>(call_.graph.num_rows);
    run.sample_ids = walkers.ids.data();
    run.transits = run.next = walkers.nodes.data();
    run.places = walkers.places.data();
    run.goes_on = true;
    for (int64_t step = 0; step < call_.app.num_steps; ++step) {
      while (count > 0 && walkers.lengths[static_cast<size_t>(count) - 1] <= step) --count;
      if (count == 0 || call_.failures.is_past(step)) break;
      run.key = keys_[static_cast<size_t>(step)];
      run.out = result_->vertices + 1 + step;
      run.count = count;
      const PickedRun picked = kernel_(run);
      if (picked.num_bad > 0) return report(walkers, count, step);
      if (picked.num_null > 0) count = drop_ended(walkers, count, step);
    }
    for (int64_t i = 0; draws_lengths_ && i < count; ++i) report_endless(walkers, i);
  }

  void start(int64_t begin, int64_t end, Walkers& walkers) {
    walkers.resize(end - begin);
    std::vector<int64_t> order(static_cast<size_t>(end - begin));
    if (draws_lengths_) {
      longest_first(begin, order);
    } else {
      for (size_t i = 0; i < order.size(); ++i) order[i] = begin + static_cast<int64_t>(i);
    }
    for (size_t i = 0; i < order.size(); ++i) {
      const int64_t sample = order[i];
      walkers.samples[i] = sample;
      walkers.ids[i] = static_cast<uint64_t>(call_.sample_id(sample));
      walkers.nodes[i] = call_.request.roots[sample];
      walkers.places[i] = draws_lengths_ ? result_->offsets[sample] : sample * call_.width;
      walkers.lengths[i] = draws_lengths_ ? size(sample) - 1 : call_.app.num_steps;
      result_->vertices[walkers.places[i]] = walkers.nodes[i];
      if (walkers.nodes[i] >= 0) __builtin_prefetch(call_.graph.indptr + walkers.nodes[i]);
    }
  }

  // The samples from `begin` on, by size, the largest first; of equals the first first. Counts sizes up to
  // kCountedSizes; the few walks that are longer are sorted among themselves.
  void longest_first(int64_t begin, std::vector<int64_t>& order) const {
    std::vector<int64_t> places(kCountedSizes + 2, 0);  // places[kCountedSizes - s]: samples of more than s vertices
    const auto rank = [&](int64_t sample) {
      return static_cast<size_t>(kCountedSizes - std::min(size(sample), kCountedSizes));
    };
    for (size_t i = 0; i < order.size(); ++i) ++places[rank(begin + static_cast<int64_t>(i)) + 1];
    const int64_t num_long = places[1];
    for (size_t r = 1; r < places.size(); ++r) places[r] += places[r - 1];
    for (size_t i = 0; i < order.size(); ++i) {
      const int64_t sample = begin + static_cast<int64_t>(i);
      order[static_cast<size_t>(places[rank(sample)]++)] = sample;
    }
    std::stable_sort(order.begin(), order.begin() + num_long, [&](int64_t a, int64_t b) { return size(a) > size(b); });
  }

  // Takes out the walkers that made no pick in this step: their walks are over.
  int64_t drop_ended(Walkers& walkers, int64_t count, int64_t step) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      const size_t from = static_cast<size_t>(i);
      if (walkers.nodes[from] >= 0) {
        walkers.move(from, static_cast<size_t>(kept++));
      } else if (draws_lengths_) {
        sizes_[static_cast<size_t>(walkers.samples[from])] = 1 + step;
        has_dead_ends_.store(true, std::memory_order_relaxed);
      } else {
        int64_t* picks = result_->vertices + walkers.places[from] + 1;
        std::fill(picks + step, picks + call_.app.num_steps, int64_t{FS_NULL_NODE});
      }
    }
    return kept;
  }

  void report(const Walkers& walkers, int64_t count, int64_t step) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t node = result_->vertices[walkers.places[static_cast<size_t>(i)] + 1 + step];
      if (node == FS_NULL_NODE || call_.has_node(node)) continue;
      const int64_t sample = walkers.samples[static_cast<size_t>(i)];
      call_.failures.report({sample, call_.sample_id(sample), step, node, FS_APP_BAD_NODE, FS_IN_NEXT});
    }
  }

  // A walker that made its last pick in the last step that is allowed.
  void report_endless(const Walkers& walkers, int64_t i) {
    const int64_t sample = walkers.samples[static_cast<size_t>(i)], limit = call_.app.num_steps;
    if (limit == 0 || walkers.lengths[static_cast<size_t>(i)] < limit) return;
    call_.failures.report({sample, call_.sample_id(sample), limit, FS_NULL_NODE, FS_APP_NEVER_ENDS, FS_IN_NEXT});
  }

  // Moves the samples together where dead ends have left gaps, and counts the steps: a walk takes one more than it has
  // picks, in which it ends.
  void finish_lengths() {
    int64_t longest = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (call_.request.roots[i] >= 0) longest = std::max(longest, sizes_[i]);
    }
    result_->num_steps = std::min(longest, call_.app.num_steps);
    if (!has_dead_ends_.load(std::memory_order_relaxed)) return;
    int64_t at = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const int64_t* from = result_->vertices + result_->offsets[i];
      std::copy(from, from + sizes_[i], result_->vertices + at);
      result_->offsets[i] = at;
      at += sizes_[i];
    }
    result_->offsets[sizes_.size()] = result_->num_vertices = at;
  }

  int64_t size(int64_t sample) const { return sizes_[static_cast<size_t>(sample)]; }

  TransitCall& call_;
  PickedRun (*const kernel_)(const PickRun&);
  const bool draws_lengths_;
  std::vector<StageKey> keys_;  // by step
  std::vector<int64_t> sizes_;  // of drawn lengths: vertices of each sample
  std::unique_ptr<TransitResult> result_;
  std::atomic<bool> has_dead_ends_{false};
};

}  // namespace

bool are_walks(const TransitCall& call) {
  const FsTransitApp& app = call.app;
  const bool draws_lengths = app.next_kind == FS_NEXT_PPR;
  if (vector_kernels().samples_plainly || app.num_roots != 1 || draws_lengths != (app.until_done != 0)) return false;
  if (app.next_kind != FS_NEXT_UNIFORM && app.next_kind != FS_NEXT_WEIGHTED && !draws_lengths) return false;
  if (!draws_lengths && (call.kernels.step_transits != nullptr || call.kernels.initial != nullptr)) return false;
  for (int64_t step = 0; step < app.num_steps; ++step) {
    if (call.picks[static_cast<size_t>(step)] != 1 || call.takes_all(step) || call.is_unique(step)) return false;
  }
  return true;
}

TransitResult* sample_walks(TransitCall& call, int64_t block_samples) { return Walks(call).run(block_samples); }

}  // namespace fs
