// transit_sample: samples of an individual application, block by block. How blocks are cut and ordered is decided here;
// walk_blocks.cpp and transit_block.cpp make the samples.
#include <algorithm>
#include <memory>

#include "transit_block.h"
#include "walk_blocks.h"
#include "worker_pool.h"

namespace fs {
namespace {

constexpr int64_t kBlockPicks = 1 << 12;         // of a step, of a block that goes sample by sample
constexpr int64_t kGroupedBlockPicks = 1 << 20;  // of a block that groups by transit: the more, the longer the runs
constexpr int64_t kMaxBlock = 1 << 8;  // walks of 80 steps: 166 KB of columns (by weight, Numba: 55.8 -> 49.2 ns/step)

int64_t most_picks(const TransitCall& call) {
  int64_t most = std::max<int64_t>(1, call.app.num_roots);
  if (call.app.until_done != 0) return most;  // steps that are never run may have any number
  for (const int64_t picks : call.picks) most = std::max(most, picks);
  return most;
}

// What FS_SCHEDULE_AUTO stands for: by transit where a transit alone makes a long run of built-in picks. Measured on
// 123 M edges, one thread, M picks/s by sample and by transit: 200 picks of each of 20000 roots 146 and 177; 25 and 10
// picks per vertex from 40000 roots 69 and 68, from 500 roots, 60 times each, 62 and 82 (which is not known before);
// walks gain nothing (partitioning them costs as much as interleaving saves).
int32_t schedule_of(const TransitCall& call) {
  if (call.request.schedule != FS_SCHEDULE_AUTO) return call.request.schedule;
  const bool is_built_in = call.app.next_kind == FS_NEXT_UNIFORM || call.app.next_kind == FS_NEXT_WEIGHTED;
  if (!is_built_in || call.app.until_done != 0) return FS_SCHEDULE_SAMPLE;
  const int64_t* sizes = call.app.sample_sizes;
  const bool is_long = std::any_of(sizes, sizes + call.app.num_steps, [](int64_t size) { return size >= kLongRun; });
  return is_long ? FS_SCHEDULE_TRANSIT : FS_SCHEDULE_SAMPLE;
}

int64_t block_of(const TransitCall& call, bool is_grouped) {
  const FsTransitRequest& request = call.request;
  if (request.block_samples > 0) return request.block_samples;
  if (!is_grouped) return std::min(kMaxBlock, std::max<int64_t>(1, kBlockPicks / most_picks(call)));
  const int64_t share = (request.num_samples + request.num_threads - 1) / request.num_threads;
  return std::max<int64_t>(1, std::min(share, kGroupedBlockPicks / most_picks(call)));
}

TransitResult* sample_blocks(TransitCall& call, int32_t schedule) {
  const PickOrder order = {schedule != FS_SCHEDULE_SAMPLE, schedule == FS_SCHEDULE_TRANSIT};
  const int64_t count = call.request.num_samples, size = block_of(call, order.grouped);
  const bool is_ragged = call.width < 0;
  std::unique_ptr<TransitResult> result;
  std::vector<RaggedBlock> blocks;
  if (is_ragged) {
    blocks.resize(static_cast<size_t>((count + size - 1) / size));
  } else {
    result.reset(TransitResult::of_width(count, call.app.num_steps, call.width));
  }
  share_runs(count, size, call.request.num_threads, [&](int64_t begin, int64_t end) {
    TransitBlock block(call, order);
    block.run(begin, end, is_ragged ? nullptr : result->vertices,
              is_ragged ? &blocks[static_cast<size_t>(begin / size)] : nullptr);
  });
  if (!call.failures.is_empty()) return nullptr;
  return is_ragged ? join_blocks(blocks, count, size, call.request.num_threads) : result.release();
}

FsStatus transit_sample(TransitCall& call, FsTransitFailure* failure, FsTransitResult** out) {
  const FsStatus status = call.check();
  if (status != FS_OK) return status;
  const int32_t schedule = schedule_of(call);
  if (schedule == FS_SCHEDULE_SAMPLE && are_walks(call)) {
    *out = sample_walks(call);
  } else {
    *out = sample_blocks(call, schedule);
  }
  return call.failures.is_empty() ? FS_OK : call.refuse_failure(failure);
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_transit_sample(const FsGraph* graph, const FsTransitTables* tables, const FsTransitApp* app,
                                      const FsTransitRequest* request, FsTransitFailure* failure,
                                      FsTransitResult** out) {
  *failure = {};
  *out = nullptr;
  return fs::guarded("transit_sample", [&] {
    fs::TransitCall call(*graph, *tables, *app, *request);
    return fs::transit_sample(call, failure, out);
  });
}
