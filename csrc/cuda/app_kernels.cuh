// Kernels around the functions of a user's application (fastsample_cuda.h). nvcc makes LTO IR of them
// (lto/app_kernels.cu), in which the functions are not there yet; the emulator is given the CPU's.
//
// A pick is written by the function itself, and looked at here: what is no node is reported, by sample and step, and
// becomes FS_NULL_NODE, so that later steps read nodes alone. What was wrong is found by making the sample again in
// Python.
#ifndef FS_CUDA_APP_KERNELS_CUH_
#define FS_CUDA_APP_KERNELS_CUH_

#include "app_step.cuh"

#if defined(FS_EMULATED)
#define FS_APP_KERNEL static
#define FS_APP_STEP const fs::AppStep
#else
#define FS_APP_KERNEL extern "C" __global__
#define FS_APP_STEP const __grid_constant__ fs::AppStep
extern "C" {
__device__ int32_t fs_app_next(const FsStepTask* task, int64_t begin, int64_t end);
__device__ int32_t fs_app_step_transits(const FsStepTask* task, int64_t begin, int64_t end);
__device__ int32_t fs_app_initial(const FsStepTask* task, int64_t begin, int64_t end);
}
#endif

namespace fs {
namespace {

#if defined(FS_EMULATED)
FS_DEVICE int32_t call_next(const AppStep& step, const FsStepTask& task, int64_t slot) {
  return step.next(&task, slot, slot + 1);
}
FS_DEVICE int32_t call_step_transits(const AppStep& step, const FsStepTask& task, int64_t slot) {
  return step.step_transits(&task, slot, slot + 1);
}
FS_DEVICE int32_t call_initial(const AppStep& step, const FsStepTask& task, int64_t slot) {
  return step.initial(&task, slot, slot + 1);
}
#else
FS_DEVICE int32_t call_next(const AppStep&, const FsStepTask& task, int64_t slot) {
  return fs_app_next(&task, slot, slot + 1);
}
FS_DEVICE int32_t call_step_transits(const AppStep&, const FsStepTask& task, int64_t slot) {
  return fs_app_step_transits(&task, slot, slot + 1);
}
FS_DEVICE int32_t call_initial(const AppStep&, const FsStepTask& task, int64_t slot) {
  return fs_app_initial(&task, slot, slot + 1);
}
#endif

FS_DEVICE void set_key(FsStepTask* task, StageKey key) {
  task->key0 = key.k0;
  task->key1 = key.k1;
}

FS_DEVICE FsStepTask task_of(const AppStep& step) {
  FsStepTask task = step.task;
  if (step.keys != nullptr) set_key(&task, step.keys[0]);
  return task;
}

FS_DEVICE void report(const AppStep& step, const FsStepTask& task, int64_t sample) {
  atomic_min(step.failure,
             static_cast<uint64_t>(task.step_index) << FS_CUDA_SAMPLE_BITS | static_cast<uint64_t>(sample));
}

// What a function left in a slot's place, which it was called for.
FS_DEVICE void settle(const AppStep& step, const FsStepTask& task, int64_t sample, int64_t* place, int32_t raised) {
  if (raised == 0 && *place >= FS_NULL_NODE && *place < step.num_nodes) return;
  *place = FS_NULL_NODE;
  report(step, task, sample);
}

FS_DEVICE void make_pick(const AppStep& step, const FsStepTask& task, int64_t sample, int64_t n) {
  settle(step, task, sample, task.out + sample * task.out_stride + n, call_next(step, task, sample * task.picks + n));
}

// The step's picks that are to be distinct, as keep_distinct_picks takes them.
struct AppPicks {
  using Key = int64_t;

  const AppStep& step;

  FS_DEVICE int64_t num_samples() const { return step.task.num_samples; }
  FS_DEVICE int64_t num_picks() const { return step.task.picks; }
  FS_DEVICE bool is_node(int64_t id) const { return id >= 0 && id < step.num_nodes; }
  FS_DEVICE int64_t* place(int64_t sample, int64_t n) const {
    return step.task.out + sample * step.task.out_stride + n;
  }
  FS_DEVICE void pick(int64_t sample, int64_t round, int64_t n) const {
    FsStepTask task = task_of(step);
    task.attempt = round;
    make_pick(step, task, sample, n);
  }
};

// Samples of one transit and one pick in every step: a thread takes each through all steps.
// kChosen: by step_transits, a function that is not there otherwise.
template <bool kChosen>
FS_DEVICE void walk(const AppStep& step) {
  for (int64_t sample = thread_number(); sample < step.task.num_samples; sample += num_threads()) {
    bool has_ended = step.ended != nullptr && step.ended[sample] != 0;
    FsStepTask task = step.task;
    // As the task has them; written here, they are constants of the function that is linked in.
    task.num_transits = task.sample_size = task.picks = task.transit_stride = task.out_stride = 1;
    task.attempt = task.first_pick = 0;
    task.slots = nullptr;
    for (int64_t i = 0; i < step.num_steps; ++i, ++task.step_index) {
      task.transits = task.vertices[task.step_index];
      if (kChosen && !has_ended) {
        set_key(&task, step.keys[2 * i + 1]);
        task.out = step.transits;
        task.transits = step.transits;
        settle(step, task, sample, task.out + sample, call_step_transits(step, task, sample));
      }
      task.out = const_cast<int64_t*>(task.vertices[task.step_index + 1]);
      if (has_ended || task.transits[sample] == FS_NULL_NODE) {
        has_ended = has_ended || step.ended != nullptr;
        task.out[sample] = FS_NULL_NODE;
        continue;
      }
      if (step.live != nullptr) step.live[i] = 1;
      set_key(&task, step.keys[2 * i]);
      make_pick(step, task, sample, 0);
    }
    if (has_ended) step.ended[sample] = 1;
  }
}

}  // namespace
}  // namespace fs

FS_APP_KERNEL void fs_app_start_samples(FS_APP_STEP step) {
  using namespace fs;
  const FsStepTask task = task_of(step);
  for (int64_t sample = thread_number(); sample < task.num_samples; sample += num_threads()) {
    if (call_initial(step, task, sample) != 0) report(step, task, sample);
  }
}

FS_APP_KERNEL void fs_app_choose_transits(FS_APP_STEP step) {
  using namespace fs;
  const FsStepTask task = task_of(step);
  const int64_t width = task.picks;
  const int64_t run = task.state_words > 0 ? width : 1;  // calls see what those before left in a sample's state
  for (int64_t i = thread_number(); i < task.num_samples * (width / run); i += num_threads()) {
    for (int64_t slot = i * run; slot < (i + 1) * run; ++slot) {
      const int64_t sample = slot / width;
      if (step.ended != nullptr && step.ended[sample] != 0) {
        task.out[slot] = FS_NULL_NODE;
      } else {
        settle(step, task, sample, task.out + slot, call_step_transits(step, task, slot));
      }
    }
  }
}

FS_APP_KERNEL void fs_app_make_picks(FS_APP_STEP step) {
  using namespace fs;
  const FsStepTask task = task_of(step);
  const int64_t count = task.num_samples * task.picks;
  for (int64_t i = thread_number(); i < count; i += num_threads()) {
    int64_t slot = i;
    if (step.sorted != nullptr) {
      const int64_t place = static_cast<int64_t>(step.sorted[i / task.sample_size] & step.place_mask);
      slot = place * task.sample_size + i % task.sample_size;
    }
    const int64_t sample = slot / task.picks, n = slot - sample * task.picks;
    if (task.transits[sample * task.transit_stride + n / task.sample_size] == FS_NULL_NODE) {
      task.out[slot] = FS_NULL_NODE;
    } else {
      make_pick(step, task, sample, n);
    }
  }
}

FS_APP_KERNEL void fs_app_keep_distinct(FS_APP_STEP step) {
  using namespace fs;
  if (step.tables.by_warp()) {
    keep_distinct_picks<true>(AppPicks{step}, step.tables);
  } else {
    keep_distinct_picks<false>(AppPicks{step}, step.tables);
  }
}

// Picks of FS_ALL_NEIGHBORS: a block takes a sample, whose transits are one after another the only one of its task.
FS_APP_KERNEL void fs_app_take_rows(FS_APP_STEP step) {
  using namespace fs;
  for (int64_t sample = blockIdx.x; sample < step.task.num_samples; sample += gridDim.x) {
    FsStepTask task = task_of(step);
    task.num_transits = 1;
    for (int64_t index = 0; index < step.task.num_transits; ++index) {
      const int64_t transit = step.task.transits[sample * task.transit_stride + index];
      if (transit == FS_NULL_NODE) continue;
      const int64_t degree = task.graph->indptr[transit + 1] - task.graph->indptr[transit];
      task.transits = step.task.transits + index;
      task.sample_size = task.picks = task.out_stride = degree;
      task.out = step.task.out + step.offsets[sample] + task.first_pick - sample * degree;
      for (int64_t n = threadIdx.x; n < degree; n += kThreads) make_pick(step, task, sample, n);
      task.first_pick += degree;
    }
  }
}

// Picks of a collective application that are open. As a function sees a sample, its transits and their sums are row
// `sample` of matrices; here they lie behind those of the samples before.
FS_APP_KERNEL void fs_app_fill_slots(FS_APP_STEP step) {
  using namespace fs;
  const int64_t count = step.task.num_samples * step.task.picks;
  for (int64_t slot = thread_number(); slot < count; slot += num_threads()) {
    if (step.task.out[slot] != FS_CUDA_OPEN_SLOT) continue;
    FsStepTask task = step.task;
    const int64_t sample = slot / task.picks, begin = step.begins[sample];
    task.num_transits = task.transit_stride = step.begins[sample + 1] - begin;
    if (task.num_transits == 0) {
      task.out[slot] = FS_NULL_NODE;
      continue;
    }
    task.transits += begin - sample * task.transit_stride;
    task.combined += begin + sample - sample * (task.num_transits + 1);
    make_pick(step, task, sample, slot - sample * task.picks);
  }
}

FS_APP_KERNEL void fs_app_walk(FS_APP_STEP step) { fs::walk<false>(step); }

FS_APP_KERNEL void fs_app_chosen_walk(FS_APP_STEP step) { fs::walk<true>(step); }

#endif  // FS_CUDA_APP_KERNELS_CUH_
