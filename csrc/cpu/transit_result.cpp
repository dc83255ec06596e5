// Memory of samples: see transit_result.h.
#include "transit_result.h"

#include <memory>

#include "room.h"
#include "worker_pool.h"

namespace fs {

TransitResult* TransitResult::of_width(int64_t num_samples, int64_t num_steps, int64_t width) {
  std::unique_ptr<TransitResult> result(new TransitResult);
  result->num_samples = num_samples;
  result->num_steps = num_steps;
  result->width = width;
  if (width > 0 && num_samples > INT64_MAX / 16 / width) throw std::bad_alloc();
  result->num_vertices = num_samples * width;
  require_room(result->num_vertices, sizeof(int64_t));
  result->vertex_pages_ = Pages::take(static_cast<size_t>(result->num_vertices) * sizeof(int64_t));
  result->vertices = static_cast<int64_t*>(result->vertex_pages_.data);
  return result.release();
}

TransitResult* TransitResult::of_lengths(const std::vector<int64_t>& lengths, int64_t num_steps) {
  int64_t total = 0;
  for (const int64_t length : lengths) total += length;
  std::unique_ptr<TransitResult> result(of_width(total, num_steps, 1));
  result->num_samples = static_cast<int64_t>(lengths.size());
  result->width = -1;
  result->offset_pages_ = Pages::take((lengths.size() + 1) * sizeof(int64_t));
  result->offsets = static_cast<int64_t*>(result->offset_pages_.data);
  result->offsets[0] = 0;
  for (size_t i = 0; i < lengths.size(); ++i) result->offsets[i + 1] = result->offsets[i] + lengths[i];
  return result.release();
}

TransitResult::~TransitResult() {
  if (vertex_pages_.data != nullptr) vertex_pages_.give();
  if (offset_pages_.data != nullptr) offset_pages_.give();
}

TransitResult* join_blocks(const std::vector<RaggedBlock>& blocks, int64_t num_samples, int64_t block_samples,
                           int32_t num_threads) {
  std::vector<int64_t> lengths;
  lengths.reserve(static_cast<size_t>(num_samples));
  int64_t num_steps = 0;
  for (const RaggedBlock& block : blocks) {
    lengths.insert(lengths.end(), block.lengths.begin(), block.lengths.end());
    num_steps = std::max(num_steps, block.num_steps);
  }
  TransitResult* result = TransitResult::of_lengths(lengths, num_steps);
  share_runs(static_cast<int64_t>(blocks.size()), 1, num_threads, [&](int64_t number, int64_t) {
    const RaggedBlock& block = blocks[static_cast<size_t>(number)];
    for (size_t i = 0; i < block.lengths.size(); ++i) {
      const int64_t* from = block.nodes.data() + block.starts[i];
      std::copy(from, from + block.lengths[i],
                result->vertices + result->offsets[number * block_samples + static_cast<int64_t>(i)]);
    }
  });
  return result;
}

}  // namespace fs

extern "C" void fs_transit_free(FsTransitResult* result) { delete static_cast<fs::TransitResult*>(result); }
