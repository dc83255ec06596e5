// One sample of a collective application: see collective_engine.h.
#include "collective_engine.h"

#include <algorithm>

namespace fs {
namespace {

// Arrays of FS_NEXT_GLOBAL: where a slot leads to.
struct GlobalTable {
  const int64_t* node;
  const uint32_t* threshold;
  const int64_t* other;
  int64_t length;

  explicit GlobalTable(const int64_t* params)
      : node(reinterpret_cast<const int64_t*>(params[0])),
        threshold(reinterpret_cast<const uint32_t*>(params[2])),
        other(reinterpret_cast<const int64_t*>(params[4])),
        length(params[1]) {}
};

}  // namespace

template <typename Id>
int64_t CollectiveEngine<Id>::sample_id() const {
  const int64_t* ids = call_->request.sample_ids;
  return ids == nullptr ? position_ : ids[position_];
}

template <typename Id>
void CollectiveEngine<Id>::fail_with(FsAppFault fault, FsAppFunction function, int64_t k, int64_t node) const {
  throw AppFailure{{position_, sample_id(), k, node, fault, function}};
}

template <typename Id>
typename CollectiveEngine<Id>::Grown CollectiveEngine<Id>::grow(const CollectiveCall& call, int64_t position) {
  call_ = &call;
  graph_ = view_of<Id>(call.graph);
  position_ = position;
  const int64_t num_roots = call.app.num_roots;
  const int64_t* roots = call.request.roots + position * num_roots;
  vertices_.assign(roots, roots + num_roots);
  begins_.assign({0, num_roots});
  bases_.clear();
  filled_ = num_roots - std::count(vertices_.begin(), vertices_.end(), FS_NULL_NODE);
  state_.assign(static_cast<size_t>(call.app.state_words), 0);
  columns_.start(graph_.num_rows);
  recorder_.start(graph_.num_rows);
  if (call.app.initial != nullptr) {
    FsStepTask task = task_of(0, kInitial);
    task.picks = 1;
    this->call(call.app.initial, FS_IN_INITIAL, task, 1);
  }
  run_steps();
  FsRecordedEdges edges = {};
  const FsCollectiveSpec& spec = call.spec;
  if (spec.record == FS_RECORD_WITHIN) {
    for (const int64_t vertex : vertices_) {
      if (vertex >= 0) recorder_.add_node(static_cast<Id>(vertex));
    }
    const EdgeValues values(call.graph.weights);
    recorder_.record({graph_, values, spec, nullptr, nullptr, 0, true});
  }
  if (spec.record != FS_RECORD_NONE) edges = recorder_.finish(static_cast<FsEdgeScale>(spec.edge_scale));
  return {vertices_, edges};
}

template <typename Id>
void CollectiveEngine<Id>::run_steps() {
  const FsTransitApp& app = call_->app;
  const FsCollectiveSpec& spec = call_->spec;
  const bool records_steps = spec.record == FS_RECORD_TO_NEW || spec.record == FS_RECORD_TO_UNION;
  for (int64_t k = 0; k < app.num_steps; ++k) {
    find_transits(k);
    if (app.until_done != 0 && !has_transit()) return;
    const int64_t size = app.sample_sizes[k];
    const bool follows = records_steps && k > 0 && app.step_transits == nullptr;  // transits are the recorded nodes
    combined_.start(graph_, transits_.data(), static_cast<int64_t>(transits_.size()));
    if (spec.ranked != 0) rank(k);
    const size_t begin = vertices_.size();
    vertices_.resize(begin + static_cast<size_t>(size), FS_NULL_NODE);
    begins_.push_back(static_cast<int64_t>(vertices_.size()));
    if (combined_.count() > 0 && size > 0) {
      key_ = transit_key(call_->request.rng_seed, kTransit, k, call_->request.step);
      if (app.unique != nullptr && app.unique[k] != 0) {
        make_distinct_picks(k);
      } else {
        fill_slots(k, 0, nullptr);
      }
    }
    filled_ += size - std::count(vertices_.begin() + static_cast<int64_t>(begin), vertices_.end(), FS_NULL_NODE);
    if (records_steps) {
      for (int64_t i = 0; !follows && i < combined_.count(); ++i) recorder_.add_node(combined_.transit(i));
      const EdgeValues values(call_->graph.weights);
      if (spec.ranked == 0) columns_.follow(graph_, values, recorder_.nodes(), recorder_.num_nodes(), false);
      recorder_.record({graph_, values, spec, &columns_, picks_of(k + 1), size, spec.record == FS_RECORD_TO_UNION});
    }
  }
  if (app.until_done == 0) return;
  const int64_t* last = picks_of(app.num_steps);
  if (std::any_of(last, picks_of(app.num_steps + 1), [](int64_t node) { return node >= 0; })) {
    fail_with(FS_APP_NEVER_ENDS, FS_IN_NEXT, app.num_steps);
  }
}

template <typename Id>
bool CollectiveEngine<Id>::has_transit() const {
  return std::any_of(transits_.begin(), transits_.end(), [](int64_t node) { return node >= 0; });
}

// The transits of step k: what the application says, else the nodes that are recorded, else the picks of the step
// before.
template <typename Id>
void CollectiveEngine<Id>::find_transits(int64_t k) {
  const FsTransitApp& app = call_->app;
  const bool is_recorded = call_->spec.record == FS_RECORD_TO_NEW || call_->spec.record == FS_RECORD_TO_UNION;
  if (app.step_transits != nullptr) {
    const int64_t count = app.num_transits[k];
    transits_.assign(static_cast<size_t>(count), FS_NULL_NODE);
    FsStepTask task = task_of(k, kStepTransits);
    task.sample_size = 1;
    task.picks = task.num_transits = task.out_stride = count;
    task.out = transits_.data();
    call(app.step_transits, FS_IN_STEP_TRANSITS, task, count);
  } else if (k > 0 && is_recorded) {
    transits_.assign(recorder_.nodes(), recorder_.nodes() + recorder_.num_nodes());
  } else {
    transits_.assign(picks_of(k), picks_of(k + 1));
  }
}

// The first sample_size vertices of the combined neighbourhood by the race, FS_NULL_NODE behind the last.
template <typename Id>
void CollectiveEngine<Id>::rank(int64_t k) {
  columns_.follow(graph_, EdgeValues(call_->graph.weights), combined_.transits(), combined_.count(), true);
  const StageKey key = transit_key(call_->request.rng_seed, kRace, k, call_->request.step);
  const uint64_t sample = static_cast<uint64_t>(sample_id());
  const int64_t size = call_->app.sample_sizes[k];
  ranked_.assign(static_cast<size_t>(size), FS_NULL_NODE);
  const auto run = [&](const auto* orig_ids) {
    const RaceField field{columns_.sums(), orig_ids, columns_.count()};
    size_t place = 0;
    for (const int64_t column : race_.run(key, sample, field, size, k)) ranked_[place++] = columns_.node(column);
  };
  if constexpr (sizeof(Id) == sizeof(uint32_t)) {
    if (graph_.orig_ids == nullptr) return run(reinterpret_cast<const uint32_t*>(columns_.nodes()));
  }
  run(columns_.orig_ids(graph_));
}

// Rounds: every empty slot is filled anew; of equal picks the first stays, by round and slot. FS_NULL_NODE is final.
template <typename Id>
void CollectiveEngine<Id>::make_distinct_picks(int64_t k) {
  const int64_t begin = begins_[static_cast<size_t>(k) + 1], size = call_->app.sample_sizes[k];
  taken_.start(graph_.num_rows);
  slots_.resize(static_cast<size_t>(size));
  for (int64_t slot = 0; slot < size; ++slot) slots_[static_cast<size_t>(slot)] = slot;
  for (int64_t attempt = 0; attempt < call_->app.max_attempts && !slots_.empty(); ++attempt) {
    fill_slots(k, attempt, &slots_);
    left_.clear();
    for (const int64_t slot : slots_) {
      int64_t& pick = vertices_[static_cast<size_t>(begin + slot)];
      if (pick < 0) continue;
      const int64_t before = taken_.count();
      taken_.enter(static_cast<Id>(pick));
      if (taken_.count() > before) continue;
      pick = FS_NULL_NODE;
      left_.push_back(slot);
    }
    slots_.swap(left_);
  }
}

template <typename Id>
void CollectiveEngine<Id>::fill_slots(int64_t k, int64_t attempt, const std::vector<int64_t>* slots) {
  const int64_t size = call_->app.sample_sizes[k];
  const int64_t count = slots == nullptr ? size : static_cast<int64_t>(slots->size());
  int64_t* out = vertices_.data() + begins_[static_cast<size_t>(k) + 1];
  if (call_->app.next_kind == FS_NEXT_CALLBACK) {
    FsStepTask task = task_of(k, kTransit);
    task.slots = slots == nullptr ? nullptr : slots->data();
    task.out = out;
    task.sample_size = task.picks = task.out_stride = size;
    task.attempt = attempt;
    call(call_->app.next, FS_IN_NEXT, task, count);
    return;
  }
  const int64_t first_pick = attempt * size;
  if (call_->app.next_kind == FS_NEXT_GLOBAL) return make_global_picks(slots, count, first_pick, out);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = slots == nullptr ? i : (*slots)[static_cast<size_t>(i)];
    if (call_->app.next_kind == FS_NEXT_RANKED) {
      out[slot] = ranked_[static_cast<size_t>(slot)];
    } else {
      PickStream draw(key_, sample_id(), first_pick + slot);
      out[slot] = layer_pick(slot, draw);
    }
  }
}

template <typename Id>
int64_t CollectiveEngine<Id>::layer_pick(int64_t slot, PickStream& draw) const {
  const int64_t num_edges = combined_.num_edges();
  if (num_edges == 0 || filled_ + slot >= call_->app.params[0]) return FS_NULL_NODE;
  const Id source = combined_.source(graph_, static_cast<int64_t>(draw.below(static_cast<uint64_t>(num_edges))));
  if (!graph_.has_row(source)) throw BadSource{static_cast<int64_t>(source)};
  return source;
}

// Entries of the table lie anywhere in it: those of many picks are asked for before the first is read.
template <typename Id>
void CollectiveEngine<Id>::make_global_picks(const std::vector<int64_t>* slots, int64_t count, int64_t first_pick,
                                             int64_t* out) const {
  constexpr int64_t kGroups = 4, kTogether = kGroups * kGroupNodes;
  const GlobalTable table(call_->app.params);
  const uint64_t length = static_cast<uint64_t>(table.length);
  uint64_t entries[kTogether], samples[kTogether], numbers[kTogether] = {};
  uint32_t coins[kTogether], words[2 * kTogether];
  std::fill_n(samples, kTogether, static_cast<uint64_t>(sample_id()));
  const auto slot_at = [&](int64_t i) { return slots == nullptr ? i : (*slots)[static_cast<size_t>(i)]; };
  for (int64_t begin = 0; begin < count; begin += kTogether) {
    const int64_t together = std::min(kTogether, count - begin);
    for (int64_t i = 0; i < together; ++i) numbers[i] = static_cast<uint64_t>(first_pick + slot_at(begin + i));
    vector_kernels().pick_words(key_, samples, numbers, (together + kGroupNodes - 1) / kGroupNodes, words);
    for (int64_t i = 0; i < together; ++i) {
      const uint32_t* own = words + i / kGroupNodes * (2 * kGroupNodes) + i % kGroupNodes;
      const uint64_t product = own[0] * length;
      entries[i] = product >> 32;
      coins[i] = own[kGroupNodes];
      if (static_cast<uint32_t>(product) < length) {  // the first word may have to be drawn again, or is not enough
        PickStream draw(key_, sample_id(), static_cast<int64_t>(numbers[i]));
        entries[i] = draw.below(length);
        coins[i] = draw.next();
      }
      __builtin_prefetch(table.threshold + entries[i]);
      __builtin_prefetch(table.node + entries[i]);
      __builtin_prefetch(table.other + entries[i]);
    }
    for (int64_t i = 0; i < together; ++i) {
      const uint64_t entry = entries[i];
      out[slot_at(begin + i)] = coins[i] < table.threshold[entry] ? table.node[entry] : table.other[entry];
    }
  }
}

template <typename Id>
FsStepTask CollectiveEngine<Id>::task_of(int64_t k, RandomDomain domain) {
  const FsTransitRequest& request = call_->request;
  const StageKey key = transit_key(request.rng_seed, domain, k, request.step);
  // Only what begins_ has: picks of earlier steps (and of this one, whose slots are being filled).
  const size_t known = static_cast<size_t>(k) + 1;
  if (bases_.size() != known || bases_[0] != vertices_.data()) {
    bases_.resize(known);
    widths_.resize(known);
    for (size_t j = 0; j < known; ++j) {
      bases_[j] = vertices_.data() + begins_[j];
      widths_[j] = begins_[j + 1] - begins_[j];
    }
  }
  FsStepTask task = {};
  task.graph = &call_->graph;
  task.tables = &call_->tables;
  task.params = call_->app.params;
  task.vertices = bases_.data();
  task.strides = task.widths = widths_.data();
  task.state = state_.data();
  task.rng_seed = request.rng_seed;
  task.step = request.step;
  task.step_index = k;
  task.num_samples = 1;
  task.num_roots = call_->app.num_roots;
  task.state_words = call_->app.state_words;
  task.key0 = key.k0;
  task.key1 = key.k1;
  if (domain != kTransit) return task;
  distinct_.assign(combined_.transits(), combined_.transits() + combined_.count());
  task.transits = distinct_.data();
  task.num_transits = task.transit_stride = combined_.count();
  task.combined = combined_.ends();
  task.ranked = call_->spec.ranked != 0 ? ranked_.data() : nullptr;
  task.ranked_stride = static_cast<int64_t>(ranked_.size());
  return task;
}

// Calls slots 0 .. count - 1 of the task, or of its list; what comes back is a node or FS_NULL_NODE.
template <typename Id>
void CollectiveEngine<Id>::call(FsStepKernel kernel, FsAppFunction function, FsStepTask& task, int64_t count) {
  const int64_t id = sample_id();
  int64_t failed = -1;
  task.sample_ids = &id;
  task.num_distinct = &task.num_transits;
  task.failed_slot = &failed;
  const bool raised = kernel(&task, 0, count) != 0;
  for (int64_t i = 0; i < count && task.out != nullptr; ++i) {
    const int64_t slot = task.slots == nullptr ? i : task.slots[i];
    if (raised && slot == failed) break;
    const int64_t node = task.out[slot];
    if (node < FS_NULL_NODE || node >= graph_.num_rows) fail_with(FS_APP_BAD_NODE, function, task.step_index, node);
  }
  if (raised) fail_with(FS_APP_RAISED, function, task.step_index);
}

template <typename Id>
size_t CollectiveEngine<Id>::bytes() const {
  const size_t words = vertices_.capacity() + begins_.capacity() + transits_.capacity() + distinct_.capacity() +
                       ranked_.capacity() + state_.capacity() + slots_.capacity() + left_.capacity() +
                       bases_.capacity() + widths_.capacity();
  return words * sizeof(int64_t) + combined_.bytes() + columns_.bytes() + race_.bytes() + taken_.bytes() +
         recorder_.bytes();
}

template class CollectiveEngine<int32_t>;
template class CollectiveEngine<int64_t>;

}  // namespace fs
