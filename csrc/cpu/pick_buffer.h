// Uniform and weighted picks of a step by the vector kernels: picks are put down one by one, and made a buffer at a
// time.
#ifndef FS_CPU_PICK_BUFFER_H_
#define FS_CPU_PICK_BUFFER_H_

#include "transit_call.h"
#include "vector/vector_kernels.h"

namespace fs {

class PickBuffer {
 public:
  // Begins with the picks of a step: `task` as for a step kernel, and kept while picks are added.
  void start(const TransitCall& call, const FsStepTask& task, bool by_weight) {
    kernel_ = call.graph.id_type == FS_INT32 ? vector_kernels().pick_neighbors_32 : vector_kernels().pick_neighbors_64;
    task_ = &task;
    count_ = num_bad_ = 0;
    run_ = {};
    run_.rows = call.rows_to_pick_from(by_weight);
    run_.key = {task.key0, task.key1};
    run_.sample_ids = ids_;
    run_.pick_numbers = numbers_;
    run_.transits = transits_;
    run_.places = places_;
    run_.out = task.out;
    run_.next = next_;
  }

  // Pick `number` of a sample, counted inside the sample and step.
  void add(int64_t sample, int64_t number, int64_t transit) {
    ids_[count_] = static_cast<uint64_t>(task_->sample_ids[sample]);
    numbers_[count_] = static_cast<uint64_t>(task_->attempt * task_->picks + number);
    transits_[count_] = transit;
    places_[count_] = sample * task_->out_stride + number;
    if (++count_ == kCapacity) make();
  }
  // Makes the picks that were added.
  void make() {
    if (count_ == 0) return;
    run_.count = count_;
    num_bad_ += kernel_(run_).num_bad;
    count_ = 0;
  }
  // The picks that follow are all of one transit, or of any.
  void expect(bool one_transit) {
    if (one_transit == run_.one_transit && !one_transit) return;
    make();
    run_.one_transit = one_transit;
  }
  // Picks so far whose id is not a node; they stand in `out` as they are.
  int64_t num_bad() const { return num_bad_; }

 private:
  static constexpr int64_t kCapacity = 1024;

  PickedRun (*kernel_)(const PickRun&) = nullptr;
  const FsStepTask* task_ = nullptr;
  PickRun run_ = {};
  int64_t count_ = 0, num_bad_ = 0;
  alignas(64) uint64_t ids_[kCapacity] = {}, numbers_[kCapacity] = {};
  int64_t transits_[kCapacity], places_[kCapacity], next_[kCapacity];
};

}  // namespace fs

#endif  // FS_CPU_PICK_BUFFER_H_
