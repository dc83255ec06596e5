// Individual applications on CUDA under FS_SCHEDULE_SAMPLE: which kernels make a call's samples. See
// transit_kernels.cuh.
#include "transit_kernels.cuh"

namespace fs {
namespace {

constexpr const char* kOperation = "transit_sample";

bool is_served(int32_t kind) {
  return kind == FS_NEXT_UNIFORM || kind == FS_NEXT_WEIGHTED || kind == FS_NEXT_NODE2VEC || kind == FS_NEXT_PPR ||
         kind == FS_NEXT_MULTI_RW;
}

FsStatus check_call(const FsTransitApp& app, const FsTransitRequest& request, const FsCudaSamples& out) {
  if (app.sampling_type != FS_INDIVIDUAL || app.unique != nullptr || !is_served(app.next_kind)) {
    return fail(FS_INVALID_ARGUMENT, "%s: no CUDA kernel makes these picks (kind %d)", kOperation, app.next_kind);
  }
  if ((app.until_done != 0) != (app.next_kind == FS_NEXT_PPR) || (app.until_done != 0 && app.num_roots != 1)) {
    return fail(FS_INVALID_ARGUMENT, "%s: walks of drawn length have one root and end by it on CUDA", kOperation);
  }
  if (request.num_samples >= int64_t{1} << FS_CUDA_SAMPLE_BITS || app.num_steps >= int64_t{1}
                                                                                       << (64 - FS_CUDA_SAMPLE_BITS)) {
    return fail(FS_INVALID_ARGUMENT, "%s: %lld samples of %lld steps; expected fewer on CUDA", kOperation,
                static_cast<long long>(request.num_samples), static_cast<long long>(app.num_steps));
  }
  if ((out.offsets == nullptr) != (app.until_done == 0)) {
    return fail(FS_INVALID_ARGUMENT, "%s: walks of drawn length need offsets, others have none", kOperation);
  }
  return FS_OK;
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
  task.slots = may_weigh ? static_cast<const WalkSlot<Id>*>(tables.walk_slots) : nullptr;
  task.is_node2vec = app.next_kind == FS_NEXT_NODE2VEC;
  if (task.is_node2vec) {
    task.law = {static_cast<uint64_t>(app.params[0]), static_cast<uint64_t>(app.params[1]),
                static_cast<uint64_t>(app.params[2])};
  }
  task.by_degree = app.next_kind == FS_NEXT_MULTI_RW && app.params[0] != 0;
  task.num_steps = app.num_steps;
  task.num_roots = app.num_roots;
  task.num_samples = request.num_samples;
  task.roots = request.roots;
  task.sample_ids = request.sample_ids;
  task.keys = reinterpret_cast<const StageKey*>(out.keys);
  task.out = out;
  return task;
}

template <typename Id>
void sample_steps(const FsTransitApp& app, const TransitTask<Id>& task, cudaStream_t stream) {
  launch(put_roots<Id>, blocks_for(task.num_samples * app.num_roots), stream, task);
  StepPlace step = {0, 0, 0, 0, 0, app.num_roots};
  for (; step.k < app.num_steps; ++step.k) {
    step.sample_size = app.sample_sizes[step.k];
    step.picks = app.num_transits[step.k] * step.sample_size;
    if (step.picks > 0) launch(pick_step<Id>, blocks_for(task.num_samples * step.picks), stream, task, step);
    step.previous = step.transits;
    step.transits = step.first;
    step.first += step.picks;
  }
}

template <typename Id>
void sample(const FsGraph& graph, const FsTransitTables& tables, const FsTransitApp& app,
            const FsTransitRequest& request, const FsCudaSamples& out, cudaStream_t stream) {
  const bool chooses = app.next_kind == FS_NEXT_MULTI_RW;
  const TransitTask<Id> task = task_of<Id>(graph, tables, app, request, out);
  launch(make_step_keys, blocks_for(2 * app.num_steps), stream, request.rng_seed, request.step, app.num_steps, chooses,
         reinterpret_cast<StageKey*>(out.keys));
  if (chooses) {
    launch(walk_many<Id>, blocks_for(task.num_samples), stream, task);
  } else if (is_walk(app)) {
    launch(walk_samples<Id>, blocks_for(task.num_samples), stream, task);
  } else {
    sample_steps(app, task, stream);
  }
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_transit_lengths(const FsTransitApp* app, const FsTransitRequest* request, int64_t* out_lengths,
                                 void* stream) {
  if (app->next_kind != FS_NEXT_PPR) {
    return fs::fail(FS_INVALID_ARGUMENT, "%s: kind %d draws no lengths", fs::kOperation, app->next_kind);
  }
  const int64_t* table = reinterpret_cast<const int64_t*>(static_cast<uintptr_t>(app->params[0]));
  fs::launch(fs::draw_lengths, fs::blocks_for(request->num_samples), static_cast<cudaStream_t>(stream),
             fs::transit_key(request->rng_seed, fs::kInitial, 0, request->step), request->sample_ids,
             request->num_samples, table, app->params[1], out_lengths);
  return fs::launch_status(fs::kOperation);
}

FsStatus fs_cuda_transit_sample(const FsGraph* graph, const FsTransitTables* tables, const FsTransitApp* app,
                                const FsTransitRequest* request, const FsCudaSamples* out, void* stream) {
  const FsStatus status = fs::check_call(*app, *request, *out);
  if (status != FS_OK) return status;
  const auto sample = graph->id_type == FS_INT32 ? fs::sample<int32_t> : fs::sample<int64_t>;
  sample(*graph, *tables, *app, *request, *out, static_cast<cudaStream_t>(stream));
  return fs::launch_status(fs::kOperation);
}

}  // extern "C"
