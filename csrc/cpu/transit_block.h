// A block of samples taken through the steps of an application together (fs_transit_sample).
//
// The stages of a step are apart: the transits; the order of the picks; the picks, by a step kernel or by the vector
// kernels; the check of the ids; the history, on which the next step stands. Rows are the samples that the block still
// has: of an application that runs until it is done, those that ended are taken out when they are half of all.
//
// Steps of few picks per sample, as of walks, stand in columns until the block is done: written to the rows at once
// they would be a few bytes in a cache line of its own per sample and step.
#ifndef FS_CPU_TRANSIT_BLOCK_H_
#define FS_CPU_TRANSIT_BLOCK_H_

#include <memory>
#include <vector>

#include "pick_buffer.h"
#include "transit_call.h"
#include "transit_order.h"
#include "transit_result.h"
#include "vertex_set.h"

namespace fs {

// The order in which picks are made.
struct PickOrder {
  bool grouped;    // by transit
  bool long_runs;  // the row of a transit of many picks is looked up once
};

// Ids of samples: `width` in each of `count` rows.
struct IdRows {
  const int64_t* data;
  int64_t stride, width, count;
};

// Whether something holds of all of them.
template <typename Holds>
bool all_of(IdRows ids, const Holds& holds) {
  if (ids.stride == ids.width) {
    ids.width *= ids.count;
    ids.count = 1;
  }
  for (int64_t row = 0; row < ids.count; ++row) {
    for (int64_t i = 0; i < ids.width; ++i) {
      if (!holds(ids.data[row * ids.stride + i])) return false;
    }
  }
  return true;
}

class TransitBlock {
 public:
  TransitBlock(TransitCall& call, PickOrder order);

  // Samples begin .. end - 1 of the call, to the rows of `fixed` [.., call.width], or to `ragged`.
  void run(int64_t begin, int64_t end, int64_t* fixed, RaggedBlock* ragged);

 private:
  // Vertices of all rows after a step (number 0: the roots).
  struct Level {
    int64_t* data;
    int64_t stride, width;
    std::vector<int64_t> own;  // where they are not in their place in the result
  };
  // The first slot of a step that something is wrong with.
  struct SlotFault {
    int64_t slot = INT64_MAX;
    int64_t node = FS_NULL_NODE;
    int32_t fault = FS_APP_FINE;
  };

  void start(int64_t begin, int64_t end, int64_t* fixed);
  void add_level(int64_t width);
  void write_rows() const;
  FsStepTask task_of(int64_t step, RandomDomain domain);
  void fail_at(int64_t row, int64_t step, const SlotFault& found, int32_t function);

  void call_initial();
  void find_transits(int64_t step);
  bool end_samples(int64_t step);
  void compact();
  void order_places(int64_t step);

  void make_picks(int64_t step);
  SlotFault pick_slots(FsStepTask& task, int64_t num_slots);
  SlotFault pick_by_kernel(FsStepTask& task, int64_t num_slots);
  bool pick_by_vectors(FsStepTask& task, int64_t num_slots);
  void add_places(const FsStepTask& task);
  SlotFault pick_distinct(FsStepTask& task);
  SlotFault first_bad_node(const FsStepTask& task, SlotFault found) const;
  void keep_distinct(const FsStepTask& task);

  void take_all(int64_t step);
  SlotFault take_row(FsStepTask& task, const TransitPlace& place, int64_t first_pick, int64_t* out);
  void copy_row(int64_t transit, int64_t* out) const;
  void note_picks(int64_t step);
  void emit(int64_t row);

  TransitCall& call_;
  const PickOrder order_;
  const FsTransitApp& app_;
  int64_t begin_ = 0, count_ = 0, num_live_ = 0;
  int64_t* fixed_ = nullptr;
  bool in_columns_ = false;     // levels of a fixed width are apart, and written to the rows in the end
  int64_t* columns_ = nullptr;  // memory for the levels that are to come
  RaggedBlock* ragged_ = nullptr;
  bool failed_ = false;

  std::vector<int64_t> rows_;       // [count] number of each row's sample in the block, ascending
  std::vector<int64_t> ids_;        // [count]
  std::vector<int64_t> state_;      // [count, state_words]
  std::vector<int64_t> num_kept_;   // [count] levels behind the roots up to the last that has a pick
  std::vector<uint8_t> has_ended_;  // [count]

  std::vector<Level> levels_;
  std::vector<const int64_t*> level_data_;
  std::vector<int64_t> level_strides_, level_widths_;

  std::vector<int64_t> own_transits_;
  const int64_t* transits_ = nullptr;  // of the step
  int64_t transit_stride_ = 0;
  bool is_full_ = false;                      // no transit of the step is FS_NULL_NODE
  std::vector<TransitPlace> places_, spare_;  // those that are not, where a list of them is needed
  std::vector<int64_t> slots_, open_;
  const bool by_vectors_;  // picks are made by the vector kernels
  std::unique_ptr<PickBuffer> buffer_;
  std::vector<int64_t> all_begins_, all_nodes_;  // of FS_ALL_NEIGHBORS: [count + 1], and the neighbours
  int64_t failed_slot_ = 0;
  VertexSet seen_;
};

}  // namespace fs

#endif  // FS_CPU_TRANSIT_BLOCK_H_
