// Walks in lock step: see walk_blocks.h.
#include "walk_blocks.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "vector/vector_kernels.h"
#include "worker_pool.h"

namespace fs {
namespace {

constexpr int64_t kLockStep = 256;      // walkers that go together: what they write and read next fits the first cache
constexpr int64_t kColumnGap = 16;      // ids, so that neighbouring columns are not in the same lines of that cache
constexpr int64_t kColumns = 64;        // steps after which the columns are written to the walks
constexpr int64_t kSortedWalks = 8192;  // of drawn lengths, ordered together, so that those that go together are alike
constexpr int64_t kCountedLengths = 512;

// The walkers of a run of samples, the longest walks first, and the columns of those that go together.
struct Walkers {
  Walkers(int64_t first_sample, int64_t most, int64_t id_bytes) : begin(first_sample), count(most) {
    const int64_t column_words = (kColumns + 1) * kStride * id_bytes / static_cast<int64_t>(sizeof(int64_t));
    const int64_t padded = most + kGroupNodes;
    int64_t* words = thread_walks().require_array<int64_t>(column_words + 3 * most + padded);
    const auto cut = [&words](int64_t number) { return std::exchange(words, words + number); };
    columns = cut(column_words);
    ids = reinterpret_cast<uint64_t*>(cut(padded));
    std::fill(ids + most, ids + padded, 0);
    roots = cut(most);
    places = cut(most);
    lengths = cut(most);
  }

  static constexpr int64_t kStride = kLockStep + kColumnGap;

  const int64_t begin, count;  // samples
  void* columns;               // [kColumns + 1, kStride] as of WalkRun
  uint64_t* ids;               // [count and padding] as what follows, of WalkRun
  int64_t *roots, *places, *lengths;
};

class Walks {
 public:
  explicit Walks(TransitCall& call)
      : call_(call), draws_lengths_(call.app.next_kind == FS_NEXT_PPR), longest_(call.app.num_steps) {}

  TransitResult* run() {
    const int64_t count = call_.request.num_samples, size = samples_of_run();
    if (draws_lengths_) {
      result_.reset(TransitResult::of_offsets(count, 0));
      draw_lengths(size);
    } else {
      result_.reset(TransitResult::of_width(count, call_.app.num_steps, call_.width));
    }
    for (int64_t step = 0; step < longest_; ++step) keys_.push_back(call_.key(kTransit, step));
    share_runs(count, size, call_.request.num_threads, [&](int64_t begin, int64_t end) {
      if (call_.graph.id_type == FS_INT32) {
        walk_run<int32_t>(begin, end, begin / size);
      } else {
        walk_run<int64_t>(begin, end, begin / size);
      }
    });
    if (!call_.failures.is_empty()) return nullptr;
    if (draws_lengths_) finish_lengths();
    return result_.release();
  }

 private:
  // A run of samples whose lengths are drawn.
  struct RunTotals {
    int64_t vertices;  // of the run; once all are drawn, of those before it
    int64_t longest;   // vertices of a walk
  };

  struct LongWalk {
    int64_t size, place, sample;
  };

  int64_t samples_of_run() const {
    const FsTransitRequest& request = call_.request;
    if (request.block_samples > 0) return request.block_samples;
    if (!draws_lengths_) return kLockStep;
    return std::clamp(request.num_samples / (8 * request.num_threads), 4 * kLockStep, kSortedWalks);
  }

  // Makes room for walks as if none came to a dead end. offsets[i + 1] has the vertices of sample i.
  void draw_lengths(int64_t run_samples) {
    const int64_t count = call_.request.num_samples;
    totals_.resize(static_cast<size_t>((count + run_samples - 1) / run_samples));
    share_runs(count, run_samples, call_.request.num_threads, [&](int64_t begin, int64_t end) {
      totals_[static_cast<size_t>(begin / run_samples)] = draw_lengths(begin, end);
    });
    int64_t before = 0, longest = 0;
    for (RunTotals& run : totals_) {
      before += std::exchange(run.vertices, before);
      longest = std::max(longest, run.longest);
    }
    result_->take_vertices(before);
    longest_ = result_->num_steps = std::min(longest, call_.app.num_steps);
  }

  RunTotals draw_lengths(int64_t begin, int64_t end) {
    const StageKey key = call_.key(kInitial, 0);
    RunTotals totals = {0, 0};
    uint64_t ids[kLockStep] = {};
    int64_t lengths[kLockStep];
    for (int64_t first = begin; first < end; first += kLockStep) {
      const int64_t count = std::min(kLockStep, end - first);
      for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<uint64_t>(call_.sample_id(first + i));
      vector_kernels().walk_lengths(key, ids, count, ppr_table(call_.app), call_.app.params[1], lengths);
      for (int64_t i = 0; i < count; ++i) {
        const bool walks = call_.request.roots[first + i] >= 0;
        const int64_t size = 1 + (walks ? std::min(lengths[i], call_.app.num_steps) : 0);
        result_->offsets[first + i + 1] = size;
        totals.vertices += size;
        totals.longest = std::max(totals.longest, walks ? size : 0);
      }
    }
    return totals;
  }

  // Makes the samples begin .. end - 1, which are run `number`.
  template <typename Id>
  void walk_run(int64_t begin, int64_t end, int64_t number) {
    Walkers walkers(begin, end - begin, sizeof(Id));
    if (draws_lengths_) {
      start_longest_first(totals_[static_cast<size_t>(number)].vertices, walkers);
    } else {
      for (int64_t i = 0; i < walkers.count; ++i) {
        start(begin + i, (begin + i) * call_.width, call_.app.num_steps, i, walkers);
      }
    }
    for (int64_t first = 0; first < walkers.count; first += kLockStep) {
      walk<Id>(first, std::min(kLockStep, walkers.count - first), walkers);
    }
  }

  // Puts a sample, whose vertices begin at `place`, to its root.
  void start(int64_t sample, int64_t place, int64_t length, int64_t walker, Walkers& walkers) {
    walkers.ids[walker] = static_cast<uint64_t>(call_.sample_id(sample));
    walkers.roots[walker] = result_->vertices[place] = call_.request.roots[sample];
    walkers.places[walker] = place + 1;
    walkers.lengths[walker] = length;
  }

  // Turns the sizes of samples into offsets, and starts them by length, the longest first; of equals the first first.
  // Counts lengths up to kCountedLengths; the few walks that are longer are sorted among themselves.
  void start_longest_first(int64_t place, Walkers& walkers) {
    int64_t* sizes = result_->offsets + walkers.begin + 1;
    int32_t walkers_of[kCountedLengths + 2] = {};  // [kCountedLengths - l]: where those of l steps begin
    const auto rank = [](int64_t size) { return kCountedLengths - std::min(size - 1, kCountedLengths); };
    for (int64_t i = 0; i < walkers.count; ++i) ++walkers_of[rank(sizes[i]) + 1];
    std::vector<LongWalk> long_walks;
    long_walks.reserve(static_cast<size_t>(walkers_of[1]));
    for (int64_t r = 1; r <= kCountedLengths; ++r) walkers_of[r] += walkers_of[r - 1];
    for (int64_t i = 0; i < walkers.count; ++i) {
      const int64_t size = sizes[i];
      if (rank(size) == 0) {
        long_walks.push_back({size, place, walkers.begin + i});
      } else {
        start(walkers.begin + i, place, size - 1, walkers_of[rank(size)]++, walkers);
      }
      place += size;
      sizes[i] = place;
    }
    std::stable_sort(long_walks.begin(), long_walks.end(),
                     [](const LongWalk& a, const LongWalk& b) { return a.size > b.size; });
    for (size_t i = 0; i < long_walks.size(); ++i) {
      start(long_walks[i].sample, long_walks[i].place, long_walks[i].size - 1, static_cast<int64_t>(i), walkers);
    }
  }

  // Takes `count` walkers from `first` on through their steps.
  template <typename Id>
  void walk(int64_t first, int64_t count, Walkers& walkers) {
    Id* nodes = static_cast<Id*>(walkers.columns);
    for (int64_t i = 0; i < count; ++i) {
      nodes[i] = static_cast<Id>(walkers.roots[first + i]);
      __builtin_prefetch(call_.graph.indptr + nodes[i]);
    }
    const auto kernel = sizeof(Id) == 4 ? vector_kernels().walk_32 : vector_kernels().walk_64;
    WalkRun run = {};
    run.rows = call_.rows_to_pick_from(call_.app.next_kind != FS_NEXT_UNIFORM);
    run.keys = keys_.data();
    run.sample_ids = walkers.ids + first;
    run.lengths = walkers.lengths + first;
    run.places = walkers.places + first;
    run.vertices = result_->vertices;
    run.columns = nodes;
    run.stride = Walkers::kStride;
    while (run.first_step < longest_ && !call_.failures.is_past(run.first_step)) {
      while (count > 0 && run.lengths[count - 1] <= run.first_step) --count;
      if (count == 0) return;
      run.count = count;
      run.num_steps = std::min(kColumns, longest_ - run.first_step);
      const WalkedRun walked = kernel(run);
      run.first_step += walked.num_steps;
      while (count > 0 && run.lengths[count - 1] < run.first_step) --count;
      if (walked.num_bad > 0) return report(run, walkers, count);
      const Id* last = nodes + walked.num_steps * run.stride;
      std::copy(last, last + count, nodes);
      if (walked.num_null > 0) count = drop_ended<Id>(run, walkers, first, count);
    }
    if (run.first_step == call_.app.num_steps && draws_lengths_) report_endless(run, walkers, count);
  }

  // Takes out the walkers, of `count` from `first` on, that found no neighbour: their walks are over.
  template <typename Id>
  int64_t drop_ended(const WalkRun& run, Walkers& walkers, int64_t first, int64_t count) {
    if (draws_lengths_) has_dead_ends_.store(true, std::memory_order_relaxed);
    Id* nodes = static_cast<Id*>(walkers.columns);
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (nodes[i] < 0) {
        int64_t* picks = run.vertices + run.places[i];
        std::fill(picks + run.first_step, picks + run.lengths[i], int64_t{FS_NULL_NODE});
        continue;
      }
      nodes[kept] = nodes[i];
      walkers.ids[first + kept] = walkers.ids[first + i];
      walkers.places[first + kept] = walkers.places[first + i];
      walkers.lengths[first + kept++] = walkers.lengths[first + i];
    }
    return kept;
  }

  // The ids that are no nodes in the last step of a run.
  void report(const WalkRun& run, const Walkers& walkers, int64_t count) {
    const int64_t step = run.first_step - 1;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t node = run.vertices[run.places[i] + step];
      if (node == FS_NULL_NODE || call_.has_node(node)) continue;
      const int64_t sample = sample_at(walkers, run.places[i] - 1);
      call_.failures.report({sample, call_.sample_id(sample), step, node, FS_APP_BAD_NODE, FS_IN_NEXT});
    }
  }

  // Walkers that made their last pick in the last step that is allowed.
  void report_endless(const WalkRun& run, const Walkers& walkers, int64_t count) {
    const int64_t limit = call_.app.num_steps;
    for (int64_t i = 0; i < count && limit > 0; ++i) {
      const int64_t sample = sample_at(walkers, run.places[i] - 1);
      call_.failures.report({sample, call_.sample_id(sample), limit, FS_NULL_NODE, FS_APP_NEVER_ENDS, FS_IN_NEXT});
    }
  }

  // The sample of a run whose vertices begin at `place`.
  int64_t sample_at(const Walkers& walkers, int64_t place) const {
    if (!draws_lengths_) return place / call_.width;
    const int64_t* ends = result_->offsets + walkers.begin + 1;
    return walkers.begin + (std::upper_bound(ends, ends + walkers.count, place) - ends);
  }

  // Where walks came to dead ends, moves the samples together and counts the steps again: a walk takes one more than it
  // has picks, in which it ends.
  void finish_lengths() {
    if (!has_dead_ends_.load(std::memory_order_relaxed)) return;
    int64_t longest = 0, begin = 0, at = 0;
    for (int64_t i = 0; i < result_->num_samples; ++i) {
      const int64_t* vertices = result_->vertices + begin;
      const int64_t drawn = result_->offsets[i + 1] - begin;
      int64_t size = 1;
      while (size < drawn && vertices[size] != FS_NULL_NODE) ++size;
      if (call_.request.roots[i] >= 0) longest = std::max(longest, size);
      std::copy(vertices, vertices + size, result_->vertices + at);
      begin += drawn;
      at += size;
      result_->offsets[i + 1] = at;
    }
    result_->num_vertices = at;
    result_->num_steps = std::min(longest, call_.app.num_steps);
  }

  TransitCall& call_;
  const bool draws_lengths_;
  int64_t longest_;             // steps of a walk, at most
  std::vector<StageKey> keys_;  // by step
  std::vector<RunTotals> totals_;
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
  if (call.graph.id_type == FS_INT32 && call.graph.num_rows > INT32_MAX) return false;  // roots that are no such ids
  for (int64_t step = 0; step < app.num_steps; ++step) {
    if (call.picks[static_cast<size_t>(step)] != 1 || call.takes_all(step) || call.is_unique(step)) return false;
  }
  return true;
}

TransitResult* sample_walks(TransitCall& call) { return Walks(call).run(); }

__attribute__((noinline)) Buffer& thread_walks() {
  static thread_local Buffer walks;
  return walks;
}

}  // namespace fs
