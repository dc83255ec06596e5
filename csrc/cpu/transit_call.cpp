// What fs_transit_sample refuses, and what it reports of an application.
#include "transit_call.h"

#include <algorithm>

namespace fs {
namespace {

constexpr const char* kOperation = "transit_sample";
constexpr int64_t kMaxPickNumber = int64_t{1} << 32;  // it is the upper half of a block number

const char* name_of(int32_t function) {
  return function == FS_IN_NEXT ? "next" : function == FS_IN_STEP_TRANSITS ? "step_transits" : "initial";
}

FsStatus refuse_step(const char* format, int64_t step, int64_t value, int64_t expected) {
  return fail(FS_INVALID_ARGUMENT, format, kOperation, static_cast<long long>(step), static_cast<long long>(value),
              static_cast<long long>(expected));
}

// The position of the first value outside low .. high, or count. Looks at all of them together first: this is the part
// of a call that one thread does alone.
int64_t first_outside(const int64_t* values, int64_t count, int64_t low, int64_t high) {
  const auto is_outside = [&](int64_t value) { return value < low || value > high; };
  bool any = false;
  for (int64_t i = 0; i < count; ++i) any |= is_outside(values[i]);
  return any ? std::find_if(values, values + count, is_outside) - values : count;
}

}  // namespace

void FailureBoard::report(const FsTransitFailure& failure) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const bool is_first =
      is_empty() || failure.step < first_.step || (failure.step == first_.step && failure.sample < first_.sample);
  if (!is_first) return;
  first_ = failure;
  first_step_.store(failure.step, std::memory_order_relaxed);
}

FsStatus app_failed(const FsTransitFailure& failure, int64_t num_rows) {
  const long long id = failure.sample_id, step = failure.step;
  if (failure.fault == FS_APP_RAISED) {
    return fail(FS_APP_ERROR, "%s raised in sample %lld at step %lld", name_of(failure.function), id, step);
  }
  if (failure.fault == FS_APP_BAD_NODE) {
    return fail(FS_APP_ERROR,
                "%s returned node %lld for sample %lld at step %lld; expected 0 to %lld or transit.NULL (-1)",
                name_of(failure.function), static_cast<long long>(failure.node), id, step,
                static_cast<long long>(num_rows - 1));
  }
  return fail(FS_APP_ERROR,
              "sample %lld has not ended after %lld steps; return transit.NULL in the end, or raise the application's "
              "max_steps",
              id, step);
}

FsStatus TransitCall::refuse_failure(FsTransitFailure* failure) const {
  *failure = failures.first();
  return app_failed(*failure, graph.num_rows);
}

FsStatus TransitCall::check() {
  FsStatus status = check_threads(kOperation, request.num_threads);
  if (status == FS_OK) status = check_id_type(kOperation, graph.id_type);
  if (status == FS_OK) status = check_app();
  if (status == FS_OK) status = check_steps();
  return status == FS_OK ? check_request() : status;
}

FsStatus TransitCall::check_app() const {
  if (app.sampling_type != FS_INDIVIDUAL) {
    return fail(FS_INVALID_ARGUMENT, "%s: sampling type %d; expected 0 (individual)", kOperation, app.sampling_type);
  }
  if (kernels.next == nullptr) {
    return fail(FS_INVALID_ARGUMENT, "%s: no step kernel of kind %d for individual applications", kOperation,
                app.next_kind);
  }
  if (app.next_kind == FS_NEXT_WEIGHTED && tables.walk_slots == nullptr) {
    return fail(FS_INVALID_ARGUMENT, "%s: picks by weight without walk slots; build them (fs_walk_slots)", kOperation);
  }
  if (app.next_kind == FS_NEXT_NODE2VEC) {
    const FsStatus status = check_node2vec();
    if (status != FS_OK) return status;
  }
  const int64_t state_words = app.next_kind == FS_NEXT_PPR        ? 1
                              : app.next_kind == FS_NEXT_MULTI_RW ? app.num_roots + 1
                                                                  : app.state_words;
  if (app.num_steps < 0 || app.num_roots < 0 || app.state_words < 0 || app.state_words != state_words) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: %lld steps, %lld roots and %lld words of state; expected 0 or more, and %lld words", kOperation,
                static_cast<long long>(app.num_steps), static_cast<long long>(app.num_roots),
                static_cast<long long>(app.state_words), static_cast<long long>(state_words < 0 ? 0 : state_words));
  }
  return FS_OK;
}

FsStatus TransitCall::check_node2vec() const {
  if (tables.hashed_nodes == nullptr) {
    return fail(FS_INVALID_ARGUMENT, "%s: edge queries without hashed rows; build them (fs_hashed_rows)", kOperation);
  }
  for (int i = 0; i < 3; ++i) {
    if (app.params[i] < 1 || app.params[i] > int64_t{1} << 32) {  // a pick that is never accepted would never end
      return fail(FS_INVALID_ARGUMENT, "%s: threshold %lld of node2vec; expected 1 to 2^32", kOperation,
                  static_cast<long long>(app.params[i]));
    }
  }
  return FS_OK;
}

FsStatus TransitCall::check_steps() {
  int64_t before = app.num_roots, total = app.num_roots;
  picks.assign(static_cast<size_t>(app.num_steps), 0);
  for (int64_t step = 0; step < app.num_steps; ++step) {
    const int64_t transits = app.num_transits[step], size = app.sample_sizes[step];
    if (transits < 0 || size < FS_ALL_NEIGHBORS) {
      return refuse_step("%s: step %lld has a number of transits or a sample size of %lld; expected %lld or more", step,
                         transits < 0 ? transits : size, transits < 0 ? 0 : FS_ALL_NEIGHBORS);
    }
    if (kernels.step_transits == nullptr && transits != before) {
      return refuse_step("%s: step %lld has %lld transits; expected %lld, the vertices before it, or step_transits",
                         step, transits, before);
    }
    const bool is_last = step == app.num_steps - 1 && app.until_done == 0 && !is_unique(step);
    if ((takes_all(step) && !is_last) || (app.next_kind == FS_NEXT_ALL && !takes_all(step))) {
      return refuse_step(
          "%s: step %lld has a sample size of %lld; expected %lld (all neighbours) in the last of a "
          "number of steps without unique, of this kind there alone",
          step, size, FS_ALL_NEIGHBORS);
    }
    const int64_t attempts = is_unique(step) ? app.max_attempts : 1;
    if (!takes_all(step) && size > 0 && transits > (kMaxPickNumber - 1) / size / (attempts > 0 ? attempts : 1)) {
      return refuse_step("%s: step %lld makes %lld picks or more per sample and attempt; expected fewer than %lld",
                         step, transits, kMaxPickNumber);
    }
    before = takes_all(step) ? 0 : transits * size;
    if (app.state_words > 0 && (before > 1 || (takes_all(step) && transits > 0))) {
      return refuse_step("%s: step %lld makes %lld picks per sample with state; expected %lld", step, before, 1);
    }
    picks[static_cast<size_t>(step)] = before;
    total += before;
    if (takes_all(step)) total = -1;
  }
  width = app.until_done != 0 ? -1 : total;
  return FS_OK;
}

FsStatus TransitCall::check_request() const {
  if (request.num_samples < 0 || request.block_samples < 0 || request.schedule < FS_SCHEDULE_AUTO ||
      request.schedule > FS_SCHEDULE_TRANSIT_FLAT) {
    return fail(FS_INVALID_ARGUMENT, "%s: %lld samples in blocks of %lld by schedule %d; expected 0 or more, by 0 to 3",
                kOperation, static_cast<long long>(request.num_samples), static_cast<long long>(request.block_samples),
                request.schedule);
  }
  const int64_t num_roots = request.num_samples * app.num_roots;
  const int64_t root = first_outside(request.roots, num_roots, FS_NULL_NODE, graph.num_rows - 1);
  if (root < num_roots) {
    return fail(FS_INVALID_ARGUMENT, "%s: root %lld of sample %lld; expected 0 to %lld, or -1 for none", kOperation,
                static_cast<long long>(request.roots[root]), static_cast<long long>(root / app.num_roots),
                static_cast<long long>(graph.num_rows - 1));
  }
  const int64_t num_ids = request.sample_ids == nullptr ? 0 : request.num_samples;
  const int64_t id = first_outside(request.sample_ids, num_ids, 0, INT64_MAX);
  if (id < num_ids) {
    return fail(FS_INVALID_ARGUMENT, "%s: sample id %lld at position %lld is negative", kOperation,
                static_cast<long long>(request.sample_ids[id]), static_cast<long long>(id));
  }
  return FS_OK;
}

}  // namespace fs
