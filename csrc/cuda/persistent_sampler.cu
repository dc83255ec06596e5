// sample_mfg on CUDA with one launch for the draws of all hops (PGSampler, section III): the workloads of the hops are
// fused, and a hop's draws begin as soon as the first of its destinations is known.
//
//   sample_tasks     warps take (node, hop) tasks from a queue until there are none (persistent_tasks.cuh)
//   copy_recorded    per hop: the picks of each row, from where its task left them to where they belong
//
// The rest of assembly is what the other kernel does after drawing (hop_chain.cuh), so the mini-batch is the same bit
// for bit. Work units are warps, not blocks as in the paper: a row of few picks takes a group of 4 to 32 lanes, and a
// warp does several such rows at once. Blocks need not be resident all at once: those that have not begun hold no
// tickets.
//
// Assembly writes a pick twice, as a slot and then as its local id. Which edge is the first to bring a node is known
// when all edges of the hop have their places, and local ids are known when all first edges are counted: three passes,
// whatever is written between them. Slots could stay in the records and local ids alone be written, but each pass would
// then look rows up (24 bytes a row) and not go along `indices` (4 bytes an edge): of int32 ids with 10 picks a row 22
// bytes a pick either way, with 20 picks 18 in place of 21, beside about 80 bytes of the table's words (sectors of 32
// bytes each). So there is next to nothing to gain.
#include "hop_chain.cuh"
#include "persistent_tasks.cuh"
#include "sample_kernels.cuh"

namespace fs {
namespace {

// It waits for memory most of the time, so three blocks share a multiprocessor: 80 registers, 8 bytes of them spilled,
// in place of 83, of which two blocks have room (sm_90).
template <typename Id>
FS_KERNEL void __launch_bounds__(kThreads, 3) sample_tasks(TaskBatch<Id> batch) {
  QueueWarp warp(batch.queue);
  RecordWarp records(batch.queue, batch.records.capacity);
  const auto settled = [&](uint64_t word) { return batch.table.id_now(slot_of_task(word)) != Id{-1}; };
  for (;;) {
    const TakenTasks taken = warp.take(kWarp / batch.width, settled);
    TaskRow row;
    if (taken.count == 0 || !begin_task(batch, taken, records, &row)) return;
    do_narrow_tasks(batch, row, warp);
    do_wide_tasks(batch, row, warp);
    warp.finish(taken.count);
  }
}

// In place of the kernels that draw; where records are not complete, it leaves edges without a node.
template <typename Id>
FS_KERNEL void copy_recorded(DeviceHop<Id> hop, Records<Id> records, int width) {
  const LaneGroup group = lane_group(width);
  const int64_t num_rows = hop.num_rows(), groups = num_threads() / width;
  const bool complete = records.is_complete() && hop.state[kTableFull] == kNothing;
  for (int64_t r = thread_number() / width; r < num_rows; r += groups) {
    const int64_t from = hop.edges[r].begin, place = hop.indptr[r], picks = hop.indptr[r + 1] - place;
    for (int64_t k = group.lane; k < picks; k += width) {
      const uint64_t source = complete ? SlotWord<Id>::slot(records.slots[from + k]) : kNoSlot;
      if (complete && hop.edge_ids != nullptr) hop.edge_ids[place + k] = records.positions[from + k];
      if (complete && source == kNoSlot) put_bad_edge(hop, place + k);
      if (!complete || source != kNoSlot) put_slot(hop, place + k, source);
    }
  }
}

template <typename Id>
struct PersistentScratch {
  BatchScratch<Id> batch;
  Records<Id> records;
  int64_t bytes;
};

template <typename Id>
PersistentScratch<Id> carve_persistent(const FsGraph& graph, const FsSampleSpec& spec, const FsCudaSampleSizes& sizes,
                                       void* workspace, uint64_t* table) {
  PersistentScratch<Id> scratch = {carve_scratch<Id>(graph, spec, sizes, workspace, table), {}, 0};
  void* rest = workspace == nullptr ? nullptr : static_cast<char*>(workspace) + scratch.batch.bytes;
  Carver carver(rest);
  int64_t picks = 0;
  bool needs_positions = spec.edge_ids != 0;
  for (int hop = 0; hop < spec.num_hops; ++hop) {
    picks += sizes.max_edges[hop];
    needs_positions = needs_positions || spec.fanouts[hop] > kWarp;
  }
  picks = record_capacity(picks, int64_t{sizes.grid_blocks} * kWarps);
  scratch.records.capacity = picks;
  scratch.batch.runs = carver.take<int64_t>(scratch.batch.table.slots * spec.num_hops);
  scratch.records.slots = carver.take<Id>(picks);
  scratch.records.positions = needs_positions ? carver.take<int64_t>(picks) : nullptr;
  scratch.records.control = scratch.batch.state + (sizes.state_words - FS_CUDA_QUEUE_WORDS);
  scratch.bytes = scratch.batch.bytes + carver.bytes();
  return scratch;
}

// Lanes that draw a row of at most kWarp picks.
int task_width(const FsSampleSpec& spec) {
  int64_t widest = 0;
  for (int hop = 0; hop < spec.num_hops; ++hop) {
    if (!is_wide(spec.fanouts[hop])) widest = std::max(widest, spec.fanouts[hop]);
  }
  return group_width(widest);
}

template <typename Id>
int task_blocks(const FsSampleSpec& spec, int64_t num_seeds, int64_t max_tasks) {
  const int64_t most_tasks = num_seeds * spec.num_hops + max_tasks;
  const int resident = resident_blocks(reinterpret_cast<const void*>(sample_tasks<Id>));
  return std::min(resident, blocks_for(most_tasks * task_width(spec)));
}

template <typename Id>
TaskBatch<Id> task_batch(const BatchCall& call, const PersistentScratch<Id>& scratch,
                         const FsCudaQueueOptions& options) {
  const FsSampleSpec& spec = call.spec;
  TaskBatch<Id> batch = {};
  batch.graph = view_of<Id>(call.graph);
  std::copy_n(spec.fanouts, spec.num_hops, batch.fanouts);
  batch.replace = spec.replace != 0;
  batch.num_hops = spec.num_hops;
  batch.width = task_width(spec);
  batch.seeds = static_cast<const Id*>(call.batch.nodes);
  batch.num_seeds = call.seeds.count;
  batch.stage_keys = scratch.batch.stage_keys;
  batch.table = scratch.batch.table;
  batch.runs = scratch.batch.runs;
  batch.state = scratch.batch.state;
  batch.records = scratch.records;
  batch.queue = {const_cast<uint64_t*>(scratch.records.control),
                 scratch.batch.tasks,
                 call.sizes.max_tasks,
                 call.seeds.count * spec.num_hops,
                 options.least_fetch,
                 options.most_fetch,
                 options.patience_ns};
  return batch;
}

template <typename Id>
void sample_persistent(const BatchCall& call, const FsCudaQueueOptions& options) {
  const PersistentScratch<Id> scratch =
      carve_persistent<Id>(call.graph, call.spec, call.sizes, call.batch.workspace, call.batch.table);
  begin_batch(call, scratch.batch);
  const TaskBatch<Id> batch = task_batch(call, scratch, options);
  if (batch.queue.num_given > 0) launch(sample_tasks<Id>, call.sizes.grid_blocks, call.stream, batch);
  relabel_hops<true>(call, scratch.batch, [&](const DeviceHop<Id>& hop) {
    const int64_t most_rows = call.sizes.max_rows[hop.number];
    if (!call.is_placed_ahead(hop.number)) launch(place_rows<true, Id>, tile_blocks(most_rows), call.stream, hop, true);
    const int width = is_wide(hop.fanout) ? kWarp : group_width(hop.fanout);
    launch(copy_recorded<Id>, blocks_for(bounded_product(most_rows, width, INT64_MAX)), call.stream, hop,
           scratch.records, width);
  });
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_persistent_sizes(const FsGraph* graph, const FsSampleSpec* spec, int64_t num_seeds, int64_t max_degree,
                                  int64_t expected_nodes, FsCudaSampleSizes* out) {
  FsStatus status = fs::check_one_launch(*graph, *spec, "persistent");
  if (status == FS_OK) status = fs_cuda_sample_sizes(graph, spec, num_seeds, max_degree, expected_nodes, 1, out);
  if (status != FS_OK) return status;
  for (int hop = 1; hop < spec->num_hops; ++hop) out->max_tasks += out->max_rows[hop];
  out->state_words = (out->state_words + 15) / 16 * 16 + FS_CUDA_QUEUE_WORDS;  // whole memory lines
  out->grid_blocks = graph->id_type == FS_INT32 ? fs::task_blocks<int32_t>(*spec, num_seeds, out->max_tasks)
                                                : fs::task_blocks<int64_t>(*spec, num_seeds, out->max_tasks);
  out->workspace_bytes = graph->id_type == FS_INT32
                             ? fs::carve_persistent<int32_t>(*graph, *spec, *out, nullptr, nullptr).bytes
                             : fs::carve_persistent<int64_t>(*graph, *spec, *out, nullptr, nullptr).bytes;
  return FS_OK;
}

FsStatus fs_cuda_persistent_mfg(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* seeds,
                                const FsCudaSampleSizes* sizes, const FsCudaBatch* batch,
                                const FsCudaQueueOptions* options, void* stream) {
  const FsStatus status = fs::check_one_launch(*graph, *spec, "persistent");
  if (status != FS_OK) return status;
  if (options->least_fetch < 1 || options->most_fetch < options->least_fetch) {
    return fs::fail(FS_INVALID_ARGUMENT, "sample_mfg: fetch sizes %lld to %lld; expected 1 or more, ascending",
                    static_cast<long long>(options->least_fetch), static_cast<long long>(options->most_fetch));
  }
  const auto sample = graph->id_type == FS_INT32 ? fs::sample_persistent<int32_t> : fs::sample_persistent<int64_t>;
  sample({*graph, *spec, *seeds, *sizes, *batch, static_cast<cudaStream_t>(stream)}, *options);
  return fs::launch_status("sample_mfg");
}

}  // extern "C"
