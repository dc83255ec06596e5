// Memory of samples: see transit_result.h.
#include "transit_result.h"

#include <memory>
#include <utility>

#include "kept_memory.h"
#include "room.h"
#include "worker_pool.h"

namespace fs {
namespace {

constexpr size_t kLeastKept = size_t{1} << 21;  // smaller ones malloc keeps

// Pages of one freed result.
class KeptPages {
 public:
  // Pages of at least so many bytes, and at most twice as many where they were kept.
  Pages take(size_t bytes) {
    {
      const std::lock_guard<std::mutex> hold(mutex_);
      if (pages_.data != nullptr && pages_.bytes >= bytes && pages_.bytes / 2 <= bytes) {
        return std::exchange(pages_, {nullptr, 0});
      }
    }
    return Pages::take(bytes);
  }
  void give(Pages pages) {
    if (pages.bytes >= kLeastKept && pages.bytes <= kKeptVertexBytes) {
      const std::lock_guard<std::mutex> hold(mutex_);
      std::swap(pages, pages_);  // the last one is the likeliest to be asked for
    }
    if (pages.data != nullptr) pages.give();
  }

 private:
  friend class KeptMemory<KeptPages>;

  std::mutex mutex_;
  Pages pages_ = {nullptr, 0};
};

KeptPages& kept_pages() { return KeptMemory<KeptPages>::get(); }

}  // namespace

TransitResult* TransitResult::of_width(int64_t num_samples, int64_t num_steps, int64_t width) {
  std::unique_ptr<TransitResult> result(new TransitResult);
  result->num_samples = num_samples;
  result->num_steps = num_steps;
  result->width = width;
  if (width > 0 && num_samples > INT64_MAX / 16 / width) throw std::bad_alloc();
  result->take_vertices(num_samples * width);
  return result.release();
}

TransitResult* TransitResult::of_lengths(const std::vector<int64_t>& lengths, int64_t num_steps) {
  std::unique_ptr<TransitResult> result(of_offsets(static_cast<int64_t>(lengths.size()), num_steps));
  for (size_t i = 0; i < lengths.size(); ++i) result->offsets[i + 1] = result->offsets[i] + lengths[i];
  result->take_vertices(result->offsets[lengths.size()]);
  return result.release();
}

TransitResult* TransitResult::of_offsets(int64_t num_samples, int64_t num_steps) {
  std::unique_ptr<TransitResult> result(new TransitResult);
  result->num_samples = num_samples;
  result->num_steps = num_steps;
  result->width = -1;
  result->offset_pages_ = Pages::take(static_cast<size_t>(num_samples + 1) * sizeof(int64_t));
  result->offsets = static_cast<int64_t*>(result->offset_pages_.data);
  result->offsets[0] = 0;
  return result.release();
}

void TransitResult::take_vertices(int64_t count) {
  num_vertices = count;
  require_sample_room(count);
  vertex_pages_ = kept_pages().take(static_cast<size_t>(count) * sizeof(int64_t));
  vertices = static_cast<int64_t*>(vertex_pages_.data);
}

TransitResult::~TransitResult() {
  if (vertex_pages_.data != nullptr) kept_pages().give(vertex_pages_);
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
