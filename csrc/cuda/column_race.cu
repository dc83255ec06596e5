// The race of FS_NEXT_RANKED on CUDA: the columns of many samples' rows, their weights, and when each of them arrives.
//
//   sum_rows        once per graph, a thread a row: what the row's entries are divided by
//   list_entries    a thread an entry: its column and its square, in the order of the rows
//   rank_columns    a thread a column, whose entries the caller has put side by side without changing their order: the
//                   sum from the left, which is the weight of cpu/combined_rows.h bit for bit, and the time of arrival
//
// Between the latter two entries are sorted by column, stably, so no order of threads enters a sum.
#include <string.h>

#include "device.cuh"
#include "edge_values.cuh"
#include "exponential_race.h"
#include "sorted_keys.cuh"
#include "transit_draw.h"

namespace fs {
namespace {

constexpr const char* kOperation = "column_race";

template <typename Id>
FS_KERNEL void sum_rows(const int64_t* indptr, const Id* indices, DeviceEdgeValues values, int64_t num_rows,
                        double* totals, double* own) {
  for (int64_t row = thread_number(); row < num_rows; row += num_threads()) {
    double sum = 0, loops = 0;
    for (int64_t edge = indptr[row]; edge < indptr[row + 1]; ++edge) {
      const double value = values[edge];
      sum += value;
      if (indices[edge] == row) loops += value;
    }
    totals[row] = sum + 1;
    own[row] = 1 + loops;
  }
}

// The edge at `at` of a row, as an entry: parallel edges are one, that of the first of them.
template <typename Id>
struct EntryTask {
  const int64_t* indptr;
  const Id* indices;
  DeviceEdgeValues values;
  int64_t num_nodes;
  FsCudaEntries entries;

  FS_DEVICE void put(int64_t place, int64_t sample, int64_t column, double share) const {
    entries.out_keys[place] = sample * num_nodes + column;
    entries.out_squares[place] = share * share;
  }

  FS_DEVICE void list(int64_t place) const {
    const int64_t number = bound_in<true>(entries.offsets, entries.num_rows + 1, place) - 1;
    const int64_t row = entries.nodes[number], sample = entries.samples[number], at = place - entries.offsets[number];
    const int64_t begin = indptr[row], end = indptr[row + 1];
    const double total = entries.totals[row];
    int64_t edge = begin + at;
    if (edge == end) return put(place, sample, row, entries.own[row] / total);
    const Id source = indices[edge];
    entries.out_keys[place] = FS_CUDA_NO_ENTRY;
    if (source < 0 || source >= num_nodes) {
      atomic_min(entries.bad, static_cast<uint64_t>(sample));
    } else if (source != row && (at == 0 || indices[edge - 1] != source)) {
      double value = values[edge];
      for (++edge; edge < end && indices[edge] == source; ++edge) value += values[edge];
      put(place, sample, source, value / total);
    }
  }
};

template <typename Id>
FS_KERNEL void list_entries(EntryTask<Id> task) {
  for (int64_t i = thread_number(); i < task.entries.num_entries; i += num_threads()) task.list(i);
}

FS_KERNEL void rank_columns(FsCudaColumns columns, int64_t num_nodes, const int64_t* orig_ids, StageKey key) {
  for (int64_t column = thread_number(); column < columns.num_columns; column += num_threads()) {
    const int64_t last = columns.begins[column + 1];
    double sum = 0;
    for (int64_t i = columns.begins[column]; i < last; ++i) sum += columns.squares[columns.order[i]];
    columns.out_sums[column] = sum;
    const int64_t member = columns.keys[column], sample = member / num_nodes, node = member % num_nodes;
    const int64_t orig_id = orig_ids == nullptr ? node : orig_ids[node];
    int64_t arrival = FS_CUDA_NEVER;
    if (sum > 0) {
      const uint64_t sample_id = static_cast<uint64_t>(columns.sample_ids[sample]);
      const double time = race_time(race_log(race_word(key, static_cast<uint64_t>(orig_id), sample_id)), sum);
      memcpy(&arrival, &time, sizeof(arrival));
    }
    columns.out_times[column] = arrival;
    columns.out_orig_ids[column] = orig_id;
  }
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_row_totals(const FsGraph* graph, double* out_totals, double* out_own, void* stream) {
  const auto sum = [&](auto id) {
    using Id = decltype(id);
    fs::launch(fs::sum_rows<Id>, fs::blocks_for(graph->num_rows), static_cast<cudaStream_t>(stream), graph->indptr,
               static_cast<const Id*>(graph->indices), fs::DeviceEdgeValues(graph->weights), graph->num_rows,
               out_totals, out_own);
  };
  graph->id_type == FS_INT32 ? sum(int32_t{}) : sum(int64_t{});
  return fs::launch_status(fs::kOperation);
}

FsStatus fs_cuda_column_entries(const FsGraph* graph, const FsCudaEntries* entries, void* stream) {
  const auto list = [&](auto id) {
    using Id = decltype(id);
    const fs::EntryTask<Id> task = {graph->indptr, static_cast<const Id*>(graph->indices),
                                    fs::DeviceEdgeValues(graph->weights), graph->num_rows, *entries};
    fs::launch(fs::list_entries<Id>, fs::blocks_for(entries->num_entries), static_cast<cudaStream_t>(stream), task);
  };
  graph->id_type == FS_INT32 ? list(int32_t{}) : list(int64_t{});
  return fs::launch_status(fs::kOperation);
}

FsStatus fs_cuda_rank_columns(const FsGraph* graph, const FsCudaColumns* columns, void* stream) {
  fs::launch(fs::rank_columns, fs::blocks_for(columns->num_columns), static_cast<cudaStream_t>(stream), *columns,
             graph->num_rows, graph->orig_ids,
             fs::transit_key(columns->rng_seed, fs::kRace, columns->step_index, columns->step));
  return fs::launch_status(fs::kOperation);
}

}  // extern "C"
