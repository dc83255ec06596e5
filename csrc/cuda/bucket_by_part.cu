// bucket_by_part on CUDA: a stable counting sort of ids by owner, in four launches and without atomics on places.
//
// Every warp has a contiguous range of the ids and a counter per part. count_parts counts each range; the prefix sums
// of the counters, part by part and within a part warp by warp, are where the ranges' ids begin (sum_counts,
// place_counts); group_ids goes over the ranges again, 32 ids at a time: an id's place is its warp's next place of the
// part plus the number of lower lanes with the same part. So input order is kept inside a part, whatever the schedule.
#include "batch_layout.cuh"
#include "block_sums.cuh"
#include "part_owner.h"

namespace fs {
namespace {

constexpr int64_t kIdsPerWarp = 8 * kWarp;  // at least: a counter per part should serve several steps of a warp

// Of the grid that counts: the same on every device, since the workspace depends on it.
int64_t num_blocks(int64_t num_ids) {
  const int64_t blocks = (num_ids + kIdsPerWarp * kWarps - 1) / (kIdsPerWarp * kWarps);
  return blocks < kMaxRangeBlocks ? blocks : kMaxRangeBlocks;
}

template <typename Id>
struct BucketTask {
  const Id* ids;
  int64_t num_ids;
  const int64_t* part_ranges;  // [num_parts + 1]
  int64_t num_parts;
  int64_t* next;        // [num_parts, warps of the grid] counts, then the next place of each
  int64_t num_counts;   // of next
  int64_t* range_sums;  // [kMaxRangeBlocks]
  Id* out_ids;
  int64_t* out_places;
  uint64_t* report;  // [1 + num_parts] first bad position, counts

  FS_DEVICE int64_t warps() const { return num_threads() / kWarp; }
  FS_DEVICE int64_t warp() const { return thread_number() / kWarp; }
  FS_DEVICE int64_t* next_of(int64_t part) const { return next + part * warps() + warp(); }
  // First id of the calling warp's range, a multiple of 32; that of the next warp is its end.
  FS_DEVICE int64_t range_start(int64_t warp) const {
    const int64_t tiles = (num_ids + kWarp - 1) / kWarp;
    return tiles * warp / warps() * kWarp;
  }
};

// The lanes of `mask` whose ids have the same owner as the caller's.
template <typename Id>
struct Peers {
  uint32_t mask;
  int64_t part;

  FS_DEVICE static Peers of(const BucketTask<Id>& task, uint32_t mask, int64_t id) {
    const int64_t part = owner_of(id, task.part_ranges, task.num_parts);
    return {__match_any_sync(mask, static_cast<unsigned long long>(part)), part};
  }
  FS_DEVICE int before() const { return __popc(mask & ((1u << lane_number()) - 1u)); }
  FS_DEVICE bool leads() const { return before() == 0; }
};

template <typename Id>
FS_KERNEL void count_parts(BucketTask<Id> task) {
  for (int64_t part = lane_number(); part < task.num_parts; part += kWarp) *task.next_of(part) = 0;
  __syncwarp(kAllLanes);
  const int64_t end = task.range_start(task.warp() + 1);
  for (int64_t i = task.range_start(task.warp()) + lane_number(); i - lane_number() < end; i += kWarp) {
    const bool exists = i < task.num_ids;
    const uint32_t mask = __ballot_sync(kAllLanes, exists);
    if (exists) {
      const int64_t id = task.ids[i];
      if (id < task.part_ranges[0] || id >= task.part_ranges[task.num_parts]) {
        atomic_min(task.report, static_cast<uint64_t>(i));
      }
      const Peers<Id> peers = Peers<Id>::of(task, mask, id);
      if (peers.leads()) *task.next_of(peers.part) += __popc(peers.mask);
    }
    __syncwarp(kAllLanes);
  }
  for (int64_t part = lane_number(); part < task.num_parts; part += kWarp) {
    atomic_add(task.report + 1 + part, static_cast<uint64_t>(*task.next_of(part)));
  }
}

template <typename Id>
FS_KERNEL void sum_counts(BucketTask<Id> task) {
  const Range range = block_range(task.num_counts);
  int64_t sum = 0;
  for (int64_t c = range.begin + threadIdx.x; c < range.end; c += kThreads) sum += task.next[c];
  sum = block_sum(sum);
  if (threadIdx.x == 0) task.range_sums[blockIdx.x] = sum;
}

// Launched with as many blocks as sum_counts.
template <typename Id>
FS_KERNEL void place_counts(BucketTask<Id> task) {
  const Range range = block_range(task.num_counts);
  int64_t before = sum_before(task.range_sums);
  for (int64_t tile = range.begin; tile < range.end; tile += kThreads) {
    const int64_t c = tile + threadIdx.x;
    const BlockScan scan = block_scan(c < range.end ? task.next[c] : 0);
    if (c < range.end) task.next[c] = before + scan.before;
    before += scan.total;
  }
}

// Launched with as many blocks as count_parts.
template <typename Id>
FS_KERNEL void group_ids(BucketTask<Id> task) {
  const int64_t end = task.range_start(task.warp() + 1);
  for (int64_t i = task.range_start(task.warp()) + lane_number(); i - lane_number() < end; i += kWarp) {
    const bool exists = i < task.num_ids;
    const uint32_t mask = __ballot_sync(kAllLanes, exists);
    int64_t* next = nullptr;
    int64_t taken = 0;
    if (exists) {
      const Id id = task.ids[i];
      const Peers<Id> peers = Peers<Id>::of(task, mask, id);
      const int64_t place = *task.next_of(peers.part) + peers.before();
      task.out_ids[place] = id;
      task.out_places[i] = place;
      if (peers.leads()) next = task.next_of(peers.part);
      taken = __popc(peers.mask);
    }
    __syncwarp(kAllLanes);  // all have read their next place
    if (next != nullptr) *next += taken;
    __syncwarp(kAllLanes);
  }
}

// Sets the task's pieces of the workspace; returns the bytes they take.
template <typename Id>
int64_t carve_counters(BucketTask<Id>* task, void* workspace) {
  Carver carver(workspace);
  task->range_sums = carver.take<int64_t>(kMaxRangeBlocks);
  task->next = carver.take<int64_t>(task->num_counts);
  return carver.bytes();
}

template <typename Id>
BucketTask<Id> bucket_task(int64_t num_ids, int64_t num_parts) {
  BucketTask<Id> task = {};
  task.num_ids = num_ids;
  task.num_parts = num_parts;
  task.num_counts = num_blocks(num_ids) * kWarps * num_parts;
  return task;
}

struct Bucket {
  const void* ids;
  int64_t num_ids;
  const int64_t* part_ranges;
  int64_t num_parts;
  void* out_ids;
  int64_t* out_places;
  int64_t* out_report;
  void* workspace;
  cudaStream_t stream;
};

template <typename Id>
void bucket(const Bucket& b) {
  BucketTask<Id> task = bucket_task<Id>(b.num_ids, b.num_parts);
  carve_counters(&task, b.workspace);
  task.ids = static_cast<const Id*>(b.ids);
  task.part_ranges = b.part_ranges;
  task.out_ids = static_cast<Id*>(b.out_ids);
  task.out_places = b.out_places;
  task.report = reinterpret_cast<uint64_t*>(b.out_report);
  const int blocks = static_cast<int>(num_blocks(b.num_ids)), scan_blocks = range_blocks(task.num_counts);
  launch(count_parts<Id>, blocks, b.stream, task);
  launch(sum_counts<Id>, scan_blocks, b.stream, task);
  launch(place_counts<Id>, scan_blocks, b.stream, task);
  launch(group_ids<Id>, blocks, b.stream, task);
}

}  // namespace
}  // namespace fs

extern "C" {

int64_t fs_cuda_bucket_by_part_workspace(int64_t num_ids, int64_t num_parts) {
  fs::BucketTask<int64_t> task = fs::bucket_task<int64_t>(num_ids, num_parts);
  return fs::carve_counters(&task, nullptr);
}

FsStatus fs_cuda_bucket_by_part(int32_t id_type, const void* ids, int64_t num_ids, const int64_t* part_ranges,
                                int64_t num_parts, void* out_ids, int64_t* out_places, int64_t* out_report,
                                void* workspace, void* stream) {
  const FsStatus status = fs::check_id_type("bucket_by_part", id_type);
  if (status != FS_OK) return status;
  const fs::Bucket bucket = {ids,        num_ids,   part_ranges,
                             num_parts,  out_ids,   out_places,
                             out_report, workspace, static_cast<cudaStream_t>(stream)};
  cudaMemsetAsync(out_report, 0xFF, sizeof(int64_t), bucket.stream);
  cudaMemsetAsync(out_report + 1, 0, static_cast<size_t>(num_parts) * sizeof(int64_t), bucket.stream);
  if (num_ids > 0) (id_type == FS_INT32 ? fs::bucket<int32_t> : fs::bucket<int64_t>)(bucket);
  return fs::launch_status("bucket_by_part");
}

}  // extern "C"
