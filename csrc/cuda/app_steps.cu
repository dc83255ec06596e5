// Steps of users' applications: which kernels are launched, and the tasks that they are given (app_kernels.cuh).
#include "app_step.cuh"
#include "device_algorithms.cuh"

#if defined(FS_EMULATED)
#include "app_kernels.cuh"
#endif

namespace fs {
namespace {

constexpr const char* kOperation = "app_steps";

enum AppKernel { kStartSamples, kChooseTransits, kMakePicks, kKeepDistinct, kTakeRows, kFillSlots, kWalk, kWalkChosen };

#if defined(FS_EMULATED)

FsStatus load_app(const void*, void**) { return fail(FS_INVALID_ARGUMENT, "load_app: the emulator runs no cubin"); }

FsStatus launch_app(void*, AppKernel kernel, int blocks, cudaStream_t stream, const AppStep& step) {
  void (*const kernels[])(AppStep) = {fs_app_start_samples, fs_app_choose_transits, fs_app_make_picks,
                                      fs_app_keep_distinct, fs_app_take_rows,       fs_app_fill_slots,
                                      fs_app_walk,          fs_app_chosen_walk};
  launch(kernels[kernel], blocks, stream, step);
  return launch_status(kOperation);
}

#else

constexpr const char* kKernelNames[] = {"fs_app_start_samples", "fs_app_choose_transits", "fs_app_make_picks",
                                        "fs_app_keep_distinct", "fs_app_take_rows",       "fs_app_fill_slots",
                                        "fs_app_walk",          "fs_app_chosen_walk"};

FsStatus load_app(const void* cubin, void** out_app) {
  cudaLibrary_t library = nullptr;
  const cudaError_t error = cudaLibraryLoadData(&library, cubin, nullptr, nullptr, 0, nullptr, nullptr, 0);
  *out_app = library;
  if (error == cudaSuccess) return FS_OK;
  cudaGetLastError();  // the runtime remembers it
  return fail(FS_DEVICE_ERROR, "load_app: the application's cubin cannot be loaded: %s", cudaGetErrorString(error));
}

// A cubin has those kernels alone that its application needs, so each is looked up when it is launched.
FsStatus launch_app(void* app, AppKernel kernel, int blocks, cudaStream_t stream, const AppStep& step) {
  cudaKernel_t found = nullptr;
  const cudaError_t error = cudaLibraryGetKernel(&found, static_cast<cudaLibrary_t>(app), kKernelNames[kernel]);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return fail(FS_INVALID_ARGUMENT, "%s: the application's cubin gives no %s: %s", kOperation, kKernelNames[kernel],
                cudaGetErrorString(error));
  }
  AppStep own = step;
  void* arguments[] = {&own};
  cudaLaunchKernel(reinterpret_cast<const void*>(found), dim3(static_cast<unsigned>(blocks)), dim3(kThreads), arguments,
                   0, stream);
  return launch_status(kOperation);
}

#endif

// Transits of a step, and who has ended.
struct Transits {
  const int64_t* nodes;
  int64_t stride, width, num_samples;

  FS_DEVICE int64_t at(int64_t place) const { return nodes[place / width * stride + place % width]; }
};

// Keys of a call's steps. Of the first call for its samples also what they begin with: roots in level 0, no state.
struct CallStart {
  CallDraw draw;
  int64_t first_step, num_steps;
  StageKey* keys;  // two of every step: of its picks, of the choice of its transits; then that of `initial`
  int64_t* live;   // [num_steps], or NULL
  // Of all samples; numbers of 0 and no failure in later calls.
  const int64_t* roots;
  int64_t *level, num_roots;
  int64_t *state, num_words;
  uint8_t* ended;
  int64_t num_ended;
  uint64_t* failure;

  FS_DEVICE StageKey key(int64_t i) const {
    if (i == 2 * num_steps) return draw.key(kInitial, 0);
    return draw.key(i % 2 == 0 ? kTransit : kStepTransits, first_step + i / 2);
  }
};

FS_KERNEL void start_call(CallStart call) {
  const int64_t first = thread_number(), stride = num_threads();
  for (int64_t i = first; i <= 2 * call.num_steps; i += stride) call.keys[i] = call.key(i);
  for (int64_t i = first; call.live != nullptr && i < call.num_steps; i += stride) call.live[i] = 0;
  for (int64_t i = first; i < call.num_roots; i += stride) call.level[i] = call.roots[i];
  for (int64_t i = first; i < call.num_words; i += stride) call.state[i] = 0;
  for (int64_t i = first; i < call.num_ended; i += stride) call.ended[i] = 0;
  if (first == 0 && call.failure != nullptr) *call.failure = ~uint64_t{0};
}

FS_KERNEL void end_samples(Transits transits, uint8_t* ended, int64_t* live) {
  for (int64_t sample = thread_number(); sample < transits.num_samples; sample += num_threads()) {
    bool has_transit = false;
    for (int64_t i = 0; i < transits.width; ++i) {
      has_transit = has_transit || transits.nodes[sample * transits.stride + i] != FS_NULL_NODE;
    }
    if (has_transit) {
      *live = 1;
    } else {
      ended[sample] = 1;
    }
  }
}

FS_KERNEL void make_place_keys(Transits transits, int64_t num_nodes, int place_bits, uint64_t* keys) {
  for (int64_t i = thread_number(); i < transits.num_samples * transits.width; i += num_threads()) {
    const int64_t node = transits.at(i), transit = node < 0 ? num_nodes : node;
    keys[i] = static_cast<uint64_t>(transit) << place_bits | static_cast<uint64_t>(i);
  }
}

FS_KERNEL void count_rows(Transits transits, const FsGraph* graph, int64_t* lengths) {
  for (int64_t sample = thread_number(); sample < transits.num_samples; sample += num_threads()) {
    int64_t count = 0;
    for (int64_t i = 0; i < transits.width; ++i) {
      const int64_t node = transits.nodes[sample * transits.stride + i];
      if (node != FS_NULL_NODE) count += graph->indptr[node + 1] - graph->indptr[node];
    }
    lengths[sample] = count;
  }
}

bool groups(const FsTransitRequest& request) {
  return request.schedule == FS_SCHEDULE_TRANSIT || request.schedule == FS_SCHEDULE_TRANSIT_FLAT;
}

int64_t num_picks(const FsTransitApp& app, int64_t k) {
  return app.sample_sizes[k] == FS_ALL_NEIGHBORS ? 0 : app.sample_sizes[k] * app.num_transits[k];
}

// Whether a step's picks are to be distinct; one pick always is.
bool is_unique(const FsTransitApp& app, int64_t k) {
  return app.unique != nullptr && app.unique[k] != 0 && num_picks(app, k) > 1;
}

// Where a call's scratch lies in the workspace: the keys, then that of sorting or of distinct picks, one at a time.
struct AppLayout {
  StageKey* keys;
  void* tables;  // of distinct picks
  uint64_t *place_keys, *sorted;
  void* sort_scratch;
  size_t sort_bytes;
  KeySort sort;
  int64_t bytes;
};

FsStatus app_layout(const FsTransitApp& app, const FsTransitRequest& request, int64_t num_nodes, void* workspace,
                    AppLayout* out) {
  *out = {};
  int64_t most_places = 1, distinct = 0;
  for (int64_t k = 0; k < app.num_steps; ++k) {
    const int64_t places = request.num_samples * app.num_transits[k];
    most_places = places > most_places ? places : most_places;
    if (!is_unique(app, k)) continue;
    const int64_t bytes = distinct_tables(num_picks(app, k), request.num_samples, app.max_attempts, nullptr).bytes();
    distinct = bytes > distinct ? bytes : distinct;
  }
  constexpr int64_t kAligned = 256;
  const auto aligned = [](int64_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; };
  const int64_t keys_bytes = aligned((2 * app.num_steps + 1) * static_cast<int64_t>(sizeof(StageKey)));
  out->keys = static_cast<StageKey*>(workspace);
  out->tables = static_cast<char*>(workspace) + keys_bytes;
  int64_t sorting = 0;
  if (groups(request)) {
    const int place_bits = bits_of(most_places), node_bits = bits_of(num_nodes);
    FsStatus status = check_key_bits(kOperation, most_places, num_nodes, place_bits + node_bits);
    if (status != FS_OK) return status;
    out->sort = {most_places, place_bits, place_bits + node_bits};
    status = measure_sort(kOperation, out->sort, &out->sort_bytes);
    if (status != FS_OK) return status;
    const int64_t places_bytes = aligned(most_places * 8);
    out->place_keys = static_cast<uint64_t*>(out->tables);
    out->sorted = out->place_keys + places_bytes / 8;
    out->sort_scratch = out->sorted + places_bytes / 8;
    sorting = 2 * places_bytes + static_cast<int64_t>(out->sort_bytes);
  }
  out->bytes = keys_bytes + (distinct > sorting ? distinct : sorting);
  return FS_OK;
}

// What is the same in all steps of a call, FsCudaAppSteps or FsCudaAppCall.
template <typename Call>
AppStep begun_step(const FsTransitApp& app, const Call& call) {
  AppStep step = {};
  step.task = call.task;
  step.next = app.next;
  step.step_transits = app.step_transits;
  step.initial = app.initial;
  step.num_nodes = call.num_nodes;
  step.ended = call.ended;
  step.failure = call.failure;
  return step;
}

// A call of fs_cuda_app_steps.
class AppCall {
 public:
  AppCall(const FsTransitApp& app, const FsTransitRequest& request, const FsCudaAppSteps& steps, cudaStream_t stream)
      : app_(app), request_(request), steps_(steps), stream_(stream) {}

  FsStatus run() {
    const FsStatus status = app_layout(app_, request_, steps_.num_nodes, steps_.workspace, &layout_);
    if (status != FS_OK) return status;
    start();
    if (is_first() && steps_.has_initial != 0) start_samples();
    if (steps_.by_walks != 0) {
      walk();
      return status_;
    }
    for (int64_t k = steps_.first_step; k < steps_.end_step && status_ == FS_OK; ++k) make_step(k);
    return status_;
  }

 private:
  // Of all calls for the same samples.
  bool is_first() const { return steps_.first_step == 0 && steps_.offsets == nullptr; }
  int64_t num_steps() const { return steps_.end_step - steps_.first_step; }
  // Whether the lengths of a step of FS_ALL_NEIGHBORS are known, and its transits found.
  bool has_counted(int64_t k) const { return app_.sample_sizes[k] == FS_ALL_NEIGHBORS && steps_.offsets != nullptr; }

  AppStep step_of(int64_t k, RandomDomain domain) const {
    AppStep step = begun_step(app_, steps_);
    step.task.step_index = k;
    step.task.num_transits = step.task.sample_size = step.task.picks = 1;
    step.task.transit_stride = step.task.out_stride = 1;
    const int64_t key = 2 * (domain == kInitial ? num_steps() : k - steps_.first_step) + (domain == kStepTransits);
    step.keys = layout_.keys + key;
    return step;
  }

  int64_t* level(int64_t number) const { return steps_.levels[number - steps_.first_step]; }
  int64_t num_samples() const { return steps_.task.num_samples; }

  void launch_kernel(AppKernel kernel, int64_t threads, const AppStep& step) {
    if (status_ != FS_OK || threads == 0) return;
    status_ = launch_app(steps_.app, kernel, blocks_for(threads), stream_, step);
  }

  void start() {
    CallStart call = {
        {request_.rng_seed, request_.step, steps_.draw}, steps_.first_step, num_steps(), layout_.keys, steps_.live};
    int64_t most = 2 * call.num_steps + 1;
    if (is_first()) {
      call.roots = request_.roots;
      call.level = level(0);
      call.num_roots = num_samples() * app_.num_roots;
      call.state = steps_.task.state;
      call.num_words = num_samples() * app_.state_words;
      call.ended = steps_.ended;
      call.num_ended = steps_.ended == nullptr ? 0 : num_samples();
      call.failure = steps_.failure;
      for (const int64_t count : {call.num_roots, call.num_words, call.num_ended}) most = count > most ? count : most;
    }
    launch(start_call, blocks_for(most), stream_, call);
    status_ = launch_status(kOperation);
  }

  void start_samples() { launch_kernel(kStartSamples, num_samples(), step_of(0, kInitial)); }

  void walk() {
    AppStep step = step_of(steps_.first_step, kTransit);
    step.num_steps = num_steps();
    step.transits = steps_.transits;
    step.live = steps_.live;
    launch_kernel(steps_.has_step_transits != 0 ? kWalkChosen : kWalk, num_samples(), step);
  }

  Transits find_transits(int64_t k) {
    const int64_t width = app_.num_transits[k];
    if (steps_.has_step_transits == 0) return {level(k), width, width, num_samples()};
    AppStep step = step_of(k, kStepTransits);
    step.task.num_transits = step.task.picks = step.task.out_stride = width;
    step.task.out = steps_.transits;
    if (!has_counted(k)) launch_kernel(kChooseTransits, num_samples() * width, step);
    return {steps_.transits, width, width, num_samples()};
  }

  void make_step(int64_t k) {
    const Transits transits = find_transits(k);
    if (app_.until_done != 0) {
      launch(end_samples, blocks_for(num_samples()), stream_, transits, steps_.ended,
             steps_.live + (k - steps_.first_step));
    }
    AppStep step = step_of(k, kTransit);
    step.task.num_transits = transits.width;
    step.task.transits = transits.nodes;
    step.task.transit_stride = transits.stride;
    step.task.sample_size = app_.sample_sizes[k];
    step.task.picks = step.task.out_stride = num_picks(app_, k);
    if (app_.sample_sizes[k] == FS_ALL_NEIGHBORS) {
      take_rows(k, transits, step);
    } else {
      step.task.out = level(k + 1);
      make_picks(k, transits, step);
    }
  }

  void take_rows(int64_t k, const Transits& transits, AppStep& step) {
    if (!has_counted(k)) {
      launch(count_rows, blocks_for(num_samples()), stream_, transits, steps_.task.graph, steps_.lengths);
      return;
    }
    step.task.out = level(k + 1);
    step.offsets = steps_.offsets;
    launch_kernel(kTakeRows, num_samples() * kThreads, step);
  }

  void make_picks(int64_t k, const Transits& transits, AppStep& step) {
    const int64_t places = num_samples() * transits.width;
    if (step.task.picks == 0) return;
    if (groups(request_) && places > 0) {
      const int place_bits = layout_.sort.begin_bit;
      launch(make_place_keys, blocks_for(places), stream_, transits, steps_.num_nodes, place_bits, layout_.place_keys);
      layout_.sort.count = places;
      const SortArrays arrays = {layout_.place_keys, layout_.sorted, layout_.sort_scratch, layout_.sort_bytes};
      if (status_ == FS_OK) status_ = sort_keys(kOperation, layout_.sort, arrays, stream_);
      step.sorted = layout_.sorted;
      step.place_mask = (uint64_t{1} << place_bits) - 1;
    }
    launch_kernel(kMakePicks, num_samples() * step.task.picks, step);
    if (!is_unique(app_, k)) return;
    step.tables = distinct_tables(step.task.picks, num_samples(), app_.max_attempts, layout_.tables);
    launch_kernel(kKeepDistinct, int64_t{step.tables.blocks} * kThreads, step);
  }

  const FsTransitApp& app_;
  const FsTransitRequest& request_;
  const FsCudaAppSteps& steps_;
  const cudaStream_t stream_;
  AppLayout layout_ = {};
  FsStatus status_ = FS_OK;
};

FsStatus check_call(const FsTransitApp& app, const FsTransitRequest& request, const FsCudaAppSteps& steps) {
  if (app.sampling_type != FS_INDIVIDUAL || app.next_kind != FS_NEXT_CALLBACK) {
    return refuse_kind(kOperation, app.next_kind);
  }
  const FsStatus counts = check_counts(kOperation, request.num_samples, app.num_steps);
  if (counts != FS_OK) return counts;
  if (steps.by_walks != 0 && groups(request)) {
    return fail(FS_INVALID_ARGUMENT, "%s: walks by one launch are not sorted by transit", kOperation);
  }
  if (steps.first_step < 0 || steps.end_step > app.num_steps || steps.first_step > steps.end_step) {
    return fail(FS_INVALID_ARGUMENT, "%s: steps %lld to %lld of %lld", kOperation,
                static_cast<long long>(steps.first_step), static_cast<long long>(steps.end_step),
                static_cast<long long>(app.num_steps));
  }
  return FS_OK;
}

// A function of a collective application, called for all samples.
FsStatus call_function(const FsTransitApp& app, const FsCudaAppCall& call, cudaStream_t stream) {
  if (call.function < FS_IN_NEXT || call.function > FS_IN_INITIAL) {
    return fail(FS_INVALID_ARGUMENT, "%s: function %d; expected 0 (next) to 2 (initial)", kOperation, call.function);
  }
  constexpr AppKernel kKernels[] = {kFillSlots, kChooseTransits, kStartSamples};
  constexpr RandomDomain kDomains[] = {kTransit, kStepTransits, kInitial};
  const int64_t num_slots = call.task.num_samples * call.task.picks;
  if (num_slots == 0) return FS_OK;
  AppStep step = begun_step(app, call);
  const StageKey key = transit_key(call.task.rng_seed, kDomains[call.function], call.task.step_index, call.task.step);
  step.task.key0 = key.k0;
  step.task.key1 = key.k1;
  step.begins = call.begins;
  return launch_app(call.app, kKernels[call.function], blocks_for(num_slots), stream, step);
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_load_app(const void* cubin, void** out_app, void*) { return fs::load_app(cubin, out_app); }

FsStatus fs_cuda_apps_compiler(int32_t* out_version, void*) {
#if defined(FS_EMULATED)
  *out_version = 0;
#else
  *out_version = 1000 * __CUDACC_VER_MAJOR__ + __CUDACC_VER_MINOR__;
#endif
  return FS_OK;
}

FsStatus fs_cuda_app_workspace(const FsTransitApp* app, const FsTransitRequest* request, int64_t num_nodes,
                               int64_t* out_bytes, void*) {
  fs::AppLayout layout;
  const FsStatus status = fs::app_layout(*app, *request, num_nodes, nullptr, &layout);
  *out_bytes = layout.bytes;
  return status;
}

FsStatus fs_cuda_app_steps(const FsTransitApp* app, const FsTransitRequest* request, const FsCudaAppSteps* steps,
                           void* stream) {
  const FsStatus checked = fs::check_call(*app, *request, *steps);
  if (checked != FS_OK) return checked;
  const FsStatus status = fs::AppCall(*app, *request, *steps, static_cast<cudaStream_t>(stream)).run();
  return status != FS_OK ? status : fs::launch_status(fs::kOperation);
}

FsStatus fs_cuda_call_app(const FsTransitApp* app, const FsCudaAppCall* call, void* stream) {
  return fs::call_function(*app, *call, static_cast<cudaStream_t>(stream));
}

}  // extern "C"
