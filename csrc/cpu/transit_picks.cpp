// The picks of a step: see transit_block.h.
#include <algorithm>

#include "room.h"
#include "transit_block.h"

namespace fs {

void TransitBlock::make_picks(int64_t step) {
  FsStepTask task = task_of(step, kTransit);
  Level& level = levels_.back();
  task.num_transits = app_.num_transits[step];
  task.sample_size = app_.sample_sizes[step];
  task.picks = call_.picks[static_cast<size_t>(step)];
  task.out = level.data;
  task.out_stride = level.stride;
  if (task.picks == 0) return;
  const bool is_unique = call_.is_unique(step);
  if (is_unique || !is_full_) {
    for (int64_t row = 0; row < count_; ++row) {
      std::fill_n(level.data + row * level.stride, level.width, int64_t{FS_NULL_NODE});
    }
  }
  const SlotFault found = is_unique ? pick_distinct(task) : pick_slots(task, 0);
  if (found.fault != FS_APP_FINE) {
    fail_at(found.slot / task.picks, step, found, FS_IN_NEXT);
  } else if (app_.next_kind == FS_NEXT_MULTI_RW && by_vectors_) {
    for (int64_t row = 0; row < count_; ++row) {
      int64_t* roots = state_.data() + row * app_.state_words;
      const int64_t node = level.data[row * level.stride];
      if (node >= 0) roots[roots[app_.num_roots]] = node;
    }
  }
}

// Fills the slots of task.slots, or, where that is null, all that have a transit.
TransitBlock::SlotFault TransitBlock::pick_slots(FsStepTask& task, int64_t num_slots) {
  if (!by_vectors_) return pick_by_kernel(task, num_slots);
  return pick_by_vectors(task, num_slots) ? SlotFault() : first_bad_node(task, {});
}

TransitBlock::SlotFault TransitBlock::pick_by_kernel(FsStepTask& task, int64_t num_slots) {
  if (task.slots == nullptr && is_full_ && !order_.grouped) {
    num_slots = count_ * task.picks;
  } else if (task.slots == nullptr) {
    slots_.clear();
    for (const TransitPlace& place : places_) {
      for (int64_t i = 0; i < task.sample_size; ++i) slots_.push_back(place.place * task.sample_size + i);
    }
    task.slots = slots_.data();
    num_slots = static_cast<int64_t>(slots_.size());
  }
  SlotFault found;
  std::vector<int64_t> left;  // slots before the one that raised, which were to come after it
  while (call_.kernels.next(&task, 0, num_slots) != 0) {
    found = {failed_slot_, FS_NULL_NODE, FS_APP_RAISED};
    if (task.slots == nullptr) break;
    const int64_t* end = task.slots + num_slots;
    const int64_t* at = std::find(task.slots, end, failed_slot_);
    std::vector<int64_t> earlier;
    std::copy_if(at, end, std::back_inserter(earlier), [&](int64_t slot) { return slot < found.slot; });
    left.swap(earlier);
    task.slots = left.data();
    num_slots = static_cast<int64_t>(left.size());
  }
  task.slots = nullptr;
  return first_bad_node(task, found);
}

// The same by the vector kernels. Whether all picks are nodes or FS_NULL_NODE.
bool TransitBlock::pick_by_vectors(FsStepTask& task, int64_t num_slots) {
  const bool by_weight =
      app_.next_kind == FS_NEXT_WEIGHTED || (app_.next_kind == FS_NEXT_PPR && call_.tables.walk_slots != nullptr);
  buffer_->start(call_, task, by_weight);
  if (task.slots == nullptr) {
    add_places(task);
  } else {
    for (int64_t i = 0; i < num_slots; ++i) {
      const int64_t row = task.slots[i] / task.picks, number = task.slots[i] % task.picks;
      buffer_->add(row, number, transits_[row * transit_stride_ + number / task.sample_size]);
    }
  }
  buffer_->make();
  task.slots = nullptr;
  return buffer_->num_bad() == 0;
}

void TransitBlock::add_places(const FsStepTask& task) {
  const auto add = [&](const TransitPlace& place) {
    const int64_t row = task.num_transits == 1 ? place.place : place.place / task.num_transits;
    const int64_t first = (place.place - row * task.num_transits) * task.sample_size;
    for (int64_t i = 0; i < task.sample_size; ++i) buffer_->add(row, first + i, place.transit);
  };
  const size_t count = places_.size();
  for (size_t begin = 0, end; begin < count; begin = end) {
    end = begin + 1;
    while (order_.long_runs && end < count && places_[end].transit == places_[begin].transit) ++end;
    const bool is_long = order_.long_runs && static_cast<int64_t>(end - begin) * task.sample_size >= kLongRun;
    buffer_->expect(is_long);
    for (size_t i = begin; i < end; ++i) add(places_[i]);
  }
}

// Picks that are distinct in a sample, in rounds (see FsTransitApp.unique): a slot whose vertex the sample has already
// is left for the next round.
TransitBlock::SlotFault TransitBlock::pick_distinct(FsStepTask& task) {
  open_.clear();
  for (const TransitPlace& place : places_) {
    for (int64_t i = 0; i < task.sample_size; ++i) open_.push_back(place.place * task.sample_size + i);
  }
  if (order_.grouped) std::sort(open_.begin(), open_.end());
  SlotFault found;
  for (task.attempt = 0; task.attempt < app_.max_attempts && !open_.empty(); ++task.attempt) {
    task.slots = task.attempt == 0 ? nullptr : open_.data();
    const SlotFault now = pick_slots(task, static_cast<int64_t>(open_.size()));
    if (now.fault != FS_APP_FINE) {  // rows before it go on, because they may fail in a later round
      found = now;
      const int64_t row_begin = now.slot / task.picks * task.picks;
      open_.erase(std::lower_bound(open_.begin(), open_.end(), row_begin), open_.end());
      count_ = now.slot / task.picks;
    }
    keep_distinct(task);
  }
  return found;
}

// Takes out of open_ what this round has filled for good, and empties the slots of repeated vertices.
void TransitBlock::keep_distinct(const FsStepTask& task) {
  size_t left = 0;
  for (size_t begin = 0, end; begin < open_.size(); begin = end) {
    const int64_t row = open_[begin] / task.picks;
    for (end = begin; end < open_.size() && open_[end] < (row + 1) * task.picks;) ++end;
    int64_t* out = task.out + row * task.out_stride;
    seen_.start(task.picks);
    size_t next = begin;
    for (int64_t n = 0; n < task.picks; ++n) {
      if (next < end && open_[next] == row * task.picks + n) {
        ++next;
      } else if (out[n] >= 0) {
        seen_.insert(out[n]);
      }
    }
    for (size_t i = begin; i < end; ++i) {
      const int64_t n = open_[i] - row * task.picks;
      if (out[n] < 0 || seen_.insert(out[n])) continue;
      out[n] = FS_NULL_NODE;
      open_[left++] = open_[i];
    }
  }
  open_.resize(left);
}

// The first slot before `found` whose id is not a node, else `found`.
TransitBlock::SlotFault TransitBlock::first_bad_node(const FsStepTask& task, SlotFault found) const {
  const auto is_fine = [this](int64_t id) { return id == FS_NULL_NODE || call_.has_node(id); };
  const IdRows made = {task.out, task.out_stride, task.picks, count_};
  if (found.fault == FS_APP_FINE && all_of(made, is_fine)) return found;
  for (int64_t row = 0; row < count_; ++row) {
    const int64_t* out = task.out + row * task.out_stride;
    const int64_t end = std::min(task.picks, found.slot - row * task.picks);
    for (int64_t n = 0; n < end; ++n) {
      if (is_fine(out[n])) continue;
      return {row * task.picks + n, out[n], FS_APP_BAD_NODE};
    }
    if (end < task.picks) break;
  }
  return found;
}

// One pick per neighbour of every transit.
void TransitBlock::take_all(int64_t step) {
  const int64_t width = app_.num_transits[step];
  std::vector<int64_t> starts(static_cast<size_t>(count_ * width));
  all_begins_.assign(static_cast<size_t>(count_) + 1, 0);
  int64_t total = 0;
  for (int64_t row = 0; row < count_; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      const int64_t transit = transits_[row * transit_stride_ + i];
      starts[static_cast<size_t>(row * width + i)] = total;
      if (transit >= 0) total += call_.graph.indptr[transit + 1] - call_.graph.indptr[transit];
    }
    all_begins_[static_cast<size_t>(row) + 1] = total;
  }
  require_sample_room(total);
  all_nodes_.resize(static_cast<size_t>(total));
  FsStepTask task = task_of(step, kTransit);
  task.num_transits = 1;
  for (const TransitPlace& place : places_) {
    const int64_t row = place.place / width, start = starts[static_cast<size_t>(place.place)];
    if (row >= count_) continue;  // a row before it has failed
    const SlotFault found =
        take_row(task, place, start - all_begins_[static_cast<size_t>(row)], all_nodes_.data() + start);
    if (found.fault != FS_APP_FINE) fail_at(row, step, found, FS_IN_NEXT);
  }
}

TransitBlock::SlotFault TransitBlock::take_row(FsStepTask& task, const TransitPlace& place, int64_t first_pick,
                                               int64_t* out) {
  const int64_t degree = call_.graph.indptr[place.transit + 1] - call_.graph.indptr[place.transit];
  if (degree == 0) return {};
  SlotFault found;
  if (app_.next_kind == FS_NEXT_ALL && !vector_kernels().samples_plainly) {
    copy_row(place.transit, out);
  } else {
    const int64_t width = app_.num_transits[task.step_index], row = place.place / width;
    task.transits = transits_ + place.place % width;
    task.sample_size = task.picks = task.out_stride = degree;
    task.first_pick = first_pick;
    task.out = out - row * degree;
    const int32_t raised = call_.kernels.next(&task, row * degree, (row + 1) * degree);
    if (raised != 0) found = {failed_slot_ - row * degree, FS_NULL_NODE, FS_APP_RAISED};
  }
  const int64_t end = std::min(degree, found.slot);
  for (int64_t i = 0; i < end; ++i) {
    if (out[i] != FS_NULL_NODE && !call_.has_node(out[i])) return {i, out[i], FS_APP_BAD_NODE};
  }
  return found;
}

void TransitBlock::copy_row(int64_t transit, int64_t* out) const {
  const int64_t begin = call_.graph.indptr[transit], end = call_.graph.indptr[transit + 1];
  if (call_.graph.id_type == FS_INT32) {
    const int32_t* ids = static_cast<const int32_t*>(call_.graph.indices);
    std::copy(ids + begin, ids + end, out);
  } else {
    const int64_t* ids = static_cast<const int64_t*>(call_.graph.indices);
    std::copy(ids + begin, ids + end, out);
  }
}

}  // namespace fs
