// The frame of a step, transits and history; the picks are in transit_picks.cpp.
#include "transit_block.h"

#include <algorithm>

#include "walk_blocks.h"

namespace fs {

namespace {

constexpr int64_t kLineIds = 8;           // of a row's cache line
constexpr int64_t kColumnIds = 1 << 19;   // of a block's columns: more than 4 MB do not stay in a cache
constexpr int64_t kColumnGap = kLineIds;  // ids, so that neighbouring columns are not in the same lines of a cache

bool has_vector_kernel(int32_t next_kind) {
  return next_kind == FS_NEXT_UNIFORM || next_kind == FS_NEXT_WEIGHTED || next_kind == FS_NEXT_PPR ||
         next_kind == FS_NEXT_MULTI_RW;
}

// Whether picks of several steps share a cache line in a row of the result.
bool has_narrow_steps(const TransitCall& call) {
  return std::all_of(call.picks.begin(), call.picks.end(), [](int64_t picks) { return picks < kLineIds; });
}

}  // namespace

TransitBlock::TransitBlock(TransitCall& call, PickOrder order)
    : call_(call),
      order_(order),
      app_(call.app),
      by_vectors_(has_vector_kernel(call.app.next_kind) && !vector_kernels().samples_plainly) {
  if (by_vectors_) buffer_.reset(new PickBuffer);
}

void TransitBlock::run(int64_t begin, int64_t end, int64_t* fixed, RaggedBlock* ragged) {
  ragged_ = ragged;
  start(begin, end, fixed);
  if (call_.kernels.initial != nullptr) call_initial();
  for (int64_t step = 0; step < app_.num_steps; ++step) {
    if (call_.failures.is_past(step) || failed_) return;
    find_transits(step);
    if (app_.until_done != 0 && !end_samples(step)) break;
    order_places(step);
    if (call_.takes_all(step)) {
      take_all(step);
    } else {
      add_level(call_.picks[static_cast<size_t>(step)]);
      make_picks(step);
      note_picks(step);
    }
    if (ragged != nullptr) ragged->num_steps = step + 1;
    if (failed_) return;
  }
  if (in_columns_) write_rows();
  for (int64_t row = 0; ragged != nullptr && row < count_; ++row) {
    const bool goes_on = app_.until_done != 0 && has_ended_[static_cast<size_t>(row)] == 0 &&
                         num_kept_[static_cast<size_t>(row)] == app_.num_steps;
    if (goes_on) {
      fail_at(row, app_.num_steps, {0, FS_NULL_NODE, FS_APP_NEVER_ENDS}, FS_IN_NEXT);
      return;
    }
    emit(row);
  }
}

void TransitBlock::start(int64_t begin, int64_t end, int64_t* fixed) {
  begin_ = begin;
  count_ = num_live_ = end - begin;
  fixed_ = fixed;
  in_columns_ = fixed != nullptr && has_narrow_steps(call_) && count_ * call_.width <= kColumnIds;
  failed_ = false;
  const size_t count = static_cast<size_t>(count_);
  rows_.resize(count);
  ids_.resize(count);
  for (int64_t row = 0; row < count_; ++row) {
    rows_[static_cast<size_t>(row)] = row;
    ids_[static_cast<size_t>(row)] = call_.sample_id(begin + row);
  }
  state_.assign(count * static_cast<size_t>(app_.state_words), 0);
  num_kept_.assign(count, 0);
  has_ended_.assign(count, 0);
  levels_.clear();
  if (in_columns_) {  // in the memory that the walk blocks keep, which do not run on this thread meanwhile
    const int64_t num_columns = app_.num_steps + 1;
    columns_ = thread_walks().require_array<int64_t>(count_ * call_.width + num_columns * kColumnGap);
  }
  level_data_.clear();
  level_strides_.clear();
  level_widths_.clear();
  add_level(app_.num_roots);
  const int64_t* roots = call_.request.roots + begin * app_.num_roots;
  for (int64_t row = 0; row < count_; ++row) {
    std::copy(roots + row * app_.num_roots, roots + (row + 1) * app_.num_roots,
              levels_[0].data + row * levels_[0].stride);
  }
  if (ragged_ != nullptr) {
    ragged_->starts.assign(count, 0);
    ragged_->lengths.assign(count, 0);
    ragged_->nodes.clear();
    ragged_->num_steps = 0;
  }
}

// Vertices of the next step, in their places in the result where these are known.
void TransitBlock::add_level(int64_t width) {
  Level level = {nullptr, width, width, {}};
  if (in_columns_) {
    level.data = columns_;
    columns_ += count_ * width + kColumnGap;
  } else if (fixed_ != nullptr) {
    int64_t column = 0;
    for (const Level& before : levels_) column += before.width;
    level.data = fixed_ + begin_ * call_.width + column;
    level.stride = call_.width;
  } else {
    level.own.resize(static_cast<size_t>(count_ * width));
    level.data = level.own.data();
  }
  level_data_.push_back(level.data);
  level_strides_.push_back(level.stride);
  level_widths_.push_back(level.width);
  levels_.push_back(std::move(level));
}

// The levels, side by side: of few rows at a time, so that a cache line of a column is read once.
void TransitBlock::write_rows() const {
  for (int64_t first = 0; first < count_; first += kLineIds) {
    const int64_t end = std::min(first + kLineIds, count_);
    int64_t* out = fixed_ + (begin_ + first) * call_.width;
    for (const Level& level : levels_) {
      const int64_t* from = level.data + first * level.width;
      for (int64_t row = first; row < end; ++row) {
        int64_t* to = out + (row - first) * call_.width;
        for (int64_t i = 0; i < level.width; ++i) to[i] = *from++;
      }
      out += level.width;
    }
  }
}

FsStepTask TransitBlock::task_of(int64_t step, RandomDomain domain) {
  const StageKey key = call_.key(domain, step);
  FsStepTask task = {};
  task.graph = &call_.graph;
  task.tables = &call_.tables;
  task.params = app_.params;
  task.sample_ids = ids_.data();
  task.vertices = level_data_.data();
  task.strides = level_strides_.data();
  task.widths = level_widths_.data();
  task.transits = transits_;
  task.transit_stride = transit_stride_;
  task.state = state_.data();
  task.state_words = app_.state_words;
  task.failed_slot = &failed_slot_;
  task.rng_seed = call_.request.rng_seed;
  task.step = call_.request.step;
  task.step_index = step;
  task.num_samples = count_;
  task.num_roots = app_.num_roots;
  task.key0 = key.k0;
  task.key1 = key.k1;
  return task;
}

// Reports a row; those before it are taken to the end of the step, because one of them may fail in it as well.
void TransitBlock::fail_at(int64_t row, int64_t step, const SlotFault& found, int32_t function) {
  call_.failures.report({begin_ + rows_[static_cast<size_t>(row)], ids_[static_cast<size_t>(row)], step, found.node,
                         found.fault, function});
  failed_ = true;
  count_ = row;
}

void TransitBlock::call_initial() {
  FsStepTask task = task_of(0, kInitial);
  task.num_transits = task.sample_size = task.picks = 1;
  if (call_.kernels.initial(&task, 0, count_) != 0) {
    fail_at(failed_slot_, 0, {failed_slot_, FS_NULL_NODE, FS_APP_RAISED}, FS_IN_INITIAL);
  }
}

// Sets transits_: those that the application names, else the vertices of the step before.
void TransitBlock::find_transits(int64_t step) {
  const int64_t width = app_.num_transits[step];
  if (call_.kernels.step_transits == nullptr) {
    transits_ = levels_.back().data;
    transit_stride_ = levels_.back().stride;
    return;
  }
  own_transits_.assign(static_cast<size_t>(count_ * width), FS_NULL_NODE);
  transits_ = own_transits_.data();
  transit_stride_ = width;
  if (width == 0) return;
  FsStepTask task = task_of(step, kStepTransits);
  task.num_transits = task.picks = task.out_stride = width;
  task.sample_size = 1;
  task.out = own_transits_.data();
  slots_.clear();
  for (int64_t row = 0; row < count_; ++row) {
    for (int64_t i = 0; i < width && has_ended_[static_cast<size_t>(row)] == 0; ++i) slots_.push_back(row * width + i);
  }
  task.slots = slots_.data();
  SlotFault found;
  if (call_.kernels.step_transits(&task, 0, static_cast<int64_t>(slots_.size())) != 0) {
    found = {failed_slot_, FS_NULL_NODE, FS_APP_RAISED};
  }
  found = first_bad_node(task, found);
  if (found.fault != FS_APP_FINE) fail_at(found.slot / width, step, found, FS_IN_STEP_TRANSITS);
}

// Marks the samples that have no transit left; whether any has.
bool TransitBlock::end_samples(int64_t step) {
  const int64_t width = app_.num_transits[step];
  num_live_ = 0;
  for (int64_t row = 0; row < count_; ++row) {
    const int64_t* transits = transits_ + row * transit_stride_;
    bool has_transit = false;
    for (int64_t i = 0; i < width; ++i) has_transit |= transits[i] >= 0;
    has_ended_[static_cast<size_t>(row)] = !has_transit;
    num_live_ += has_transit;
  }
  if (num_live_ > 0 && num_live_ * 2 <= count_) compact();
  return num_live_ > 0;
}

// Hands over the samples that have ended, and moves the others together.
void TransitBlock::compact() {
  int64_t kept = 0;
  const bool has_own_transits = call_.kernels.step_transits != nullptr;
  for (int64_t row = 0; row < count_; ++row) {
    const size_t from = static_cast<size_t>(row), to = static_cast<size_t>(kept);
    if (has_ended_[from] != 0) {
      emit(row);
      continue;
    }
    rows_[to] = rows_[from];
    ids_[to] = ids_[from];
    num_kept_[to] = num_kept_[from];
    has_ended_[to] = 0;
    const auto move = [&](int64_t* data, int64_t width) {
      std::copy(data + row * width, data + (row + 1) * width, data + kept * width);
    };
    move(state_.data(), app_.state_words);
    for (Level& level : levels_) move(level.data, level.width);
    if (has_own_transits) move(own_transits_.data(), transit_stride_);
    ++kept;
  }
  count_ = kept;
  for (size_t i = 0; i < levels_.size(); ++i) {
    Level& level = levels_[i];
    level.own.resize(static_cast<size_t>(kept * level.width));
    level.own.shrink_to_fit();
    level_data_[i] = level.data = level.own.data();
  }
  if (!has_own_transits) transits_ = levels_.back().data;
}

// The transits of the step that there are, in the order in which picks are made. A kernel that makes all picks of a
// step in the order of the samples needs no list of them.
void TransitBlock::order_places(int64_t step) {
  const int64_t width = app_.num_transits[step];
  places_.clear();
  const bool has_length = app_.next_kind == FS_NEXT_PPR;
  const bool needs_list = has_length || by_vectors_ || order_.grouped || call_.is_unique(step) || call_.takes_all(step);
  const IdRows transits = {transits_, transit_stride_, width, count_};
  is_full_ = !needs_list && all_of(transits, [](int64_t id) { return id >= 0; });
  if (is_full_) return;
  for (int64_t row = 0; row < count_; ++row) {
    if (has_length && step >= state_[static_cast<size_t>(row)]) continue;  // `next` would return FS_NULL_NODE
    const int64_t* own = transits_ + row * transit_stride_;
    for (int64_t i = 0; i < width; ++i) {
      if (own[i] >= 0) places_.push_back({own[i], row * width + i});
    }
  }
  is_full_ = static_cast<int64_t>(places_.size()) == count_ * width;
  if (order_.grouped) group_by_transit(places_, spare_, call_.graph.num_rows);
}

// Remembers which samples made a pick in this step.
void TransitBlock::note_picks(int64_t step) {
  if (ragged_ == nullptr || app_.until_done == 0) return;
  const Level& level = levels_.back();
  for (int64_t row = 0; row < count_; ++row) {
    bool has_pick = false;
    for (int64_t i = 0; i < level.width; ++i) has_pick |= level.data[row * level.stride + i] >= 0;
    if (has_pick) num_kept_[static_cast<size_t>(row)] = step + 1;
  }
}

// Hands a sample's vertices over.
void TransitBlock::emit(int64_t row) {
  std::vector<int64_t>& nodes = ragged_->nodes;
  const size_t sample = static_cast<size_t>(rows_[static_cast<size_t>(row)]), start = nodes.size();
  const size_t last =
      app_.until_done != 0 ? static_cast<size_t>(num_kept_[static_cast<size_t>(row)]) : levels_.size() - 1;
  for (size_t number = 0; number <= last; ++number) {
    const Level& level = levels_[number];
    nodes.insert(nodes.end(), level.data + row * level.stride, level.data + row * level.stride + level.width);
  }
  if (app_.num_steps > 0 && call_.takes_all(app_.num_steps - 1)) {
    nodes.insert(nodes.end(), all_nodes_.begin() + all_begins_[static_cast<size_t>(row)],
                 all_nodes_.begin() + all_begins_[static_cast<size_t>(row) + 1]);
  }
  ragged_->starts[sample] = static_cast<int64_t>(start);
  ragged_->lengths[sample] = static_cast<int64_t>(nodes.size() - start);
}

}  // namespace fs
