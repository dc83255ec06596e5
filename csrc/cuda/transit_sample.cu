// Individual applications on CUDA: which kernels make a call's samples, sample by sample (transit_kernels.cuh) or
// grouped by transit (grouped_picks.cuh).
#include "distinct_picks.cuh"
#include "grouped_picks.cuh"

namespace fs {
namespace {

constexpr const char* kOperation = "transit_sample";

bool is_served(int32_t kind) {
  return kind == FS_NEXT_UNIFORM || kind == FS_NEXT_WEIGHTED || kind == FS_NEXT_NODE2VEC || kind == FS_NEXT_PPR ||
         kind == FS_NEXT_MULTI_RW || kind == FS_NEXT_ALL;
}

// Samples of different lengths.
bool is_ragged(const FsTransitApp& app) { return app.until_done != 0 || app.next_kind == FS_NEXT_ALL; }

FsStatus check_call(const FsTransitApp& app, const FsTransitRequest& request, const FsCudaSamples& out) {
  if (app.sampling_type != FS_INDIVIDUAL || !is_served(app.next_kind)) {
    return refuse_kind(kOperation, app.next_kind);
  }
  if ((app.until_done != 0) != (app.next_kind == FS_NEXT_PPR) || (app.until_done != 0 && app.num_roots != 1)) {
    return fail(FS_INVALID_ARGUMENT, "%s: walks of drawn length have one root and end by it on CUDA", kOperation);
  }
  const FsStatus counts = check_counts(kOperation, request.num_samples, app.num_steps);
  if (counts != FS_OK) return counts;
  if (app.next_kind == FS_NEXT_ALL && (app.num_steps != 1 || app.unique != nullptr)) {
    return fail(FS_INVALID_ARGUMENT, "%s: all neighbours are taken in one step, as they are, on CUDA", kOperation);
  }
  if ((out.offsets == nullptr) == is_ragged(app)) {
    return fail(FS_INVALID_ARGUMENT, "%s: samples of different lengths need offsets, others have none", kOperation);
  }
  return FS_OK;
}

// Whether a step's picks are to be distinct; one pick always is.
bool is_unique(const FsTransitApp& app, int64_t k, int64_t picks) {
  return app.unique != nullptr && app.unique[k] != 0 && picks > 1;
}

// One root and one pick in every step.
bool is_walk(const FsTransitApp& app) {
  if (app.num_roots != 1) return false;
  for (int64_t k = 0; k < app.num_steps && app.until_done == 0; ++k) {
    if (app.sample_sizes[k] != 1) return false;
  }
  return true;
}

template <typename Id>
TransitTask<Id> task_of(const FsGraph& graph, const FsTransitTables& tables, const FsTransitApp& app,
                        const FsTransitRequest& request, const FsCudaSamples& out) {
  TransitTask<Id> task = {};
  task.indptr = graph.indptr;
  task.num_nodes = graph.num_rows;
  task.hashed = {static_cast<const HashedNode*>(tables.hashed_nodes),
                 static_cast<const HashedBucket<Id>*>(tables.hashed_buckets), static_cast<const Id*>(graph.indices)};
  const bool may_weigh = app.next_kind != FS_NEXT_UNIFORM && app.next_kind != FS_NEXT_MULTI_RW;
  if (may_weigh && tables.walk_slots != nullptr) task.slots = {tables.walk_slots, graph.num_rows, graph.num_edges};
  task.is_node2vec = app.next_kind == FS_NEXT_NODE2VEC;
  if (task.is_node2vec) {
    task.law = {static_cast<uint64_t>(app.params[0]), static_cast<uint64_t>(app.params[1]),
                static_cast<uint64_t>(app.params[2])};
  }
  task.by_degree = app.next_kind == FS_NEXT_MULTI_RW && app.params[0] != 0;
  task.num_steps = out.num_steps;
  task.num_roots = app.num_roots;
  task.num_samples = request.num_samples;
  task.roots = request.roots;
  task.sample_ids = request.sample_ids;
  task.keys = reinterpret_cast<const StageKey*>(out.keys);
  task.out = out;
  return task;
}

// Calls make(step) for every step, in turn, up to the first that cannot be enqueued.
template <typename Id, typename Make>
FsStatus each_step(const FsTransitApp& app, const TransitTask<Id>& task, cudaStream_t stream, const Make& make) {
  launch(put_roots<Id>, blocks_for(task.num_samples * app.num_roots), stream, task);
  StepPlace step = {0, 0, 0, 0, 0, app.num_roots};
  for (; step.k < task.num_steps; ++step.k) {
    step.sample_size = app.until_done != 0 ? 1 : app.sample_sizes[step.k];
    step.picks = (app.until_done != 0 ? 1 : app.num_transits[step.k]) * step.sample_size;
    const FsStatus status = step.picks > 0 ? make(step) : FS_OK;
    if (status != FS_OK) return status;
    if (is_unique(app, step.k, step.picks)) {
      make_distinct(task, step, distinct_tables(step.picks, task.num_samples, app.max_attempts, task.out.workspace),
                    stream);
    }
    step.previous = step.transits;
    step.transits = step.first;
    step.first += step.picks;
  }
  return FS_OK;
}

// Where a grouped step's scratch lies in the workspace.
struct GroupedLayout {
  GroupedSlots slots;
  int64_t bytes;
};

FsStatus grouped_layout(const FsTransitApp& app, const FsTransitRequest& request, int64_t num_nodes, int64_t num_steps,
                        void* workspace, GroupedLayout* out) {
  int64_t most_slots = 1, tiles = 1;
  for (int64_t k = 0; k < num_steps; ++k) {
    const int64_t slots = request.num_samples * (app.until_done != 0 ? 1 : app.num_transits[k]);
    const int64_t of_step = most_tiles(slots, app.until_done != 0 ? 1 : app.sample_sizes[k]);
    most_slots = slots > most_slots ? slots : most_slots;
    tiles = of_step > tiles ? of_step : tiles;
  }
  const int slot_bits = bits_of(most_slots), transit_bits = bits_of(num_nodes);
  FsStatus status = check_key_bits(kOperation, most_slots, num_nodes, slot_bits + transit_bits);
  if (status != FS_OK) return status;
  GroupedSlots& slots = out->slots;
  slots.sort = {most_slots, slot_bits, slot_bits + transit_bits};
  status = measure_sort(kOperation, slots.sort, &slots.sort_bytes);
  if (status != FS_OK) return status;
  constexpr int64_t kAligned = 256;
  int64_t used = 0;
  const auto cut = [&](int64_t bytes) {
    char* place = static_cast<char*>(workspace) + used;
    used += (bytes + kAligned - 1) / kAligned * kAligned;
    return static_cast<void*>(place);
  };
  slots.keys = static_cast<uint64_t*>(cut(most_slots * 8));
  slots.sorted = static_cast<uint64_t*>(cut(most_slots * 8));
  slots.runs = static_cast<PickList*>(cut(most_slots * static_cast<int64_t>(sizeof(PickList))));
  slots.tiles = static_cast<PickList*>(cut(tiles * static_cast<int64_t>(sizeof(PickList))));
  slots.lengths = static_cast<uint64_t*>(cut(2 * 8));
  slots.sort_scratch = cut(static_cast<int64_t>(slots.sort_bytes));
  out->bytes = used;
  return FS_OK;
}

// Bytes of tables for distinct picks, which have the workspace when a step's picks are made.
int64_t distinct_bytes(const FsTransitApp& app, const FsTransitRequest& request, int64_t num_steps) {
  int64_t most = 0;
  for (int64_t k = 0; k < num_steps && app.unique != nullptr && app.until_done == 0; ++k) {
    const int64_t picks = app.num_transits[k] * app.sample_sizes[k];
    if (!is_unique(app, k, picks)) continue;
    const int64_t bytes = distinct_tables(picks, request.num_samples, app.max_attempts, nullptr).bytes();
    most = bytes > most ? bytes : most;
  }
  return most;
}

template <typename Id>
FsStatus make_grouped(const TransitTask<Id>& task, const StepPlace& step, GroupedSlots slots, bool is_flat,
                      cudaStream_t stream) {
  const int64_t samples = task.out.live != nullptr ? task.out.live[step.k] : task.num_samples;
  slots.count = slots.sort.count = samples * (step.picks / step.sample_size);
  cudaMemsetAsync(slots.lengths, 0, 2 * 8, stream);
  launch(make_transit_keys<Id>, blocks_for(slots.count), stream, task, step, slots);
  const SortArrays arrays = {slots.keys, slots.sorted, slots.sort_scratch, slots.sort_bytes};
  const FsStatus status = sort_keys(kOperation, slots.sort, arrays, stream);
  if (status != FS_OK) return status;
  if (is_flat) {
    launch(pick_sorted<Id>, blocks_for(slots.count * step.sample_size), stream, task, step, slots);
    return FS_OK;
  }
  launch(list_runs<Id>, blocks_for(slots.count), stream, task, step, slots);
  launch(pick_short_runs<Id>, blocks_for(slots.count * kRunLanes), stream, task, step, slots);
  launch(pick_tiles<Id>, blocks_for(slots.count * step.sample_size), stream, task, step, slots);
  return FS_OK;
}

template <typename Id>
FsStatus sample_grouped(const FsTransitApp& app, const FsTransitRequest& request, const TransitTask<Id>& task,
                        cudaStream_t stream) {
  GroupedLayout layout;
  const FsStatus fits = grouped_layout(app, request, task.num_nodes, task.num_steps, task.out.workspace, &layout);
  if (fits != FS_OK) return fits;
  const bool is_flat = request.schedule == FS_SCHEDULE_TRANSIT_FLAT, chooses = app.next_kind == FS_NEXT_MULTI_RW;
  return each_step(app, task, stream, [&](const StepPlace& step) {
    if (chooses) launch(choose_transits<Id>, blocks_for(task.num_samples), stream, task, step.k);
    const FsStatus status = make_grouped(task, step, layout.slots, is_flat, stream);
    if (status == FS_OK && chooses) launch(replace_roots<Id>, blocks_for(task.num_samples), stream, task, step.k);
    return status;
  });
}

bool groups(const FsTransitRequest& request) {
  return request.schedule == FS_SCHEDULE_TRANSIT || request.schedule == FS_SCHEDULE_TRANSIT_FLAT;
}

template <typename Id>
FsStatus sample(const FsGraph& graph, const FsTransitTables& tables, const FsTransitApp& app,
                const FsTransitRequest& request, const FsCudaSamples& out, cudaStream_t stream) {
  const bool chooses = app.next_kind == FS_NEXT_MULTI_RW;
  const TransitTask<Id> task = task_of<Id>(graph, tables, app, request, out);
  launch(make_step_keys, blocks_for(2 * task.num_steps), stream, CallDraw{request.rng_seed, request.step, out.draw},
         task.num_steps, chooses, reinterpret_cast<StageKey*>(out.keys));
  if (app.next_kind == FS_NEXT_ALL) {  // under every schedule: a row is read once for each of its picks
    launch(put_roots<Id>, blocks_for(task.num_samples * app.num_roots), stream, task);
    launch(take_rows<Id>, blocks_for(task.num_samples * kThreads), stream, task);
    return FS_OK;
  }
  if (groups(request)) return sample_grouped(app, request, task, stream);
  if (chooses) {
    launch(walk_many<Id>, blocks_for(task.num_samples), stream, task);
  } else if (is_walk(app)) {
    launch(task.is_node2vec ? walk_samples<Id, true> : walk_samples<Id, false>, blocks_for(task.num_samples), stream,
           task);
  } else {
    return each_step(app, task, stream, [&](const StepPlace& step) {
      launch(pick_step<Id>, blocks_for(task.num_samples * step.picks), stream, task, step);
      return FS_OK;
    });
  }
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_transit_lengths(const FsGraph* graph, const FsTransitApp* app, const FsTransitRequest* request,
                                 int64_t* out_lengths, void* stream) {
  const int blocks = fs::blocks_for(request->num_samples);
  if (app->next_kind == FS_NEXT_PPR) {
    const int64_t* table = reinterpret_cast<const int64_t*>(static_cast<uintptr_t>(app->params[0]));
    fs::launch(fs::draw_lengths, blocks, static_cast<cudaStream_t>(stream),
               fs::transit_key(request->rng_seed, fs::kInitial, 0, request->step), request->sample_ids,
               request->num_samples, table, app->params[1], out_lengths);
  } else if (app->next_kind == FS_NEXT_ALL) {
    const FsTransitTables tables = {};
    FsCudaSamples out = {};
    out.lengths = out_lengths;
    const auto count = [&](auto id) {
      using Id = decltype(id);
      fs::launch(fs::count_rows_of_roots<Id>, blocks, static_cast<cudaStream_t>(stream),
                 fs::task_of<Id>(*graph, tables, *app, *request, out));
    };
    graph->id_type == FS_INT32 ? count(int32_t{}) : count(int64_t{});
  } else {
    return fs::fail(FS_INVALID_ARGUMENT, "%s: kind %d draws no lengths", fs::kOperation, app->next_kind);
  }
  return fs::launch_status(fs::kOperation);
}

FsStatus fs_cuda_transit_workspace(const FsTransitApp* app, const FsTransitRequest* request, int64_t num_nodes,
                                   int64_t num_steps, int64_t* out_bytes, void*) {
  *out_bytes = 0;
  if (app->next_kind == FS_NEXT_ALL) return FS_OK;
  *out_bytes = fs::distinct_bytes(*app, *request, num_steps);
  if (!fs::groups(*request)) return FS_OK;
  fs::GroupedLayout layout;
  const FsStatus status = fs::grouped_layout(*app, *request, num_nodes, num_steps, nullptr, &layout);
  if (status == FS_OK && layout.bytes > *out_bytes) *out_bytes = layout.bytes;
  return status;
}

FsStatus fs_cuda_transit_sample(const FsGraph* graph, const FsTransitTables* tables, const FsTransitApp* app,
                                const FsTransitRequest* request, const FsCudaSamples* out, void* stream) {
  const FsStatus status = fs::check_call(*app, *request, *out);
  if (status != FS_OK) return status;
  const auto sample = graph->id_type == FS_INT32 ? fs::sample<int32_t> : fs::sample<int64_t>;
  const FsStatus enqueued = sample(*graph, *tables, *app, *request, *out, static_cast<cudaStream_t>(stream));
  return enqueued != FS_OK ? enqueued : fs::launch_status(fs::kOperation);
}

}  // extern "C"
