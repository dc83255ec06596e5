// Memory of samples: the result of a call, and what a block of samples of different lengths hands over to it.
#ifndef FS_CPU_TRANSIT_RESULT_H_
#define FS_CPU_TRANSIT_RESULT_H_

#include <algorithm>
#include <vector>

#include "fastsample_transit.h"
#include "pages.h"

namespace fs {

// A result that owns its arrays, in huge pages: they are written at random. The vertices of a freed result are kept for
// the next one, up to kKeptVertexBytes: getting new pages from the system takes up to a third of the time of a walk.
constexpr size_t kKeptVertexBytes = size_t{1} << 30;

class TransitResult : public FsTransitResult {
 public:
  // A result of num_samples samples of `width` vertices.
  static TransitResult* of_width(int64_t num_samples, int64_t num_steps, int64_t width);
  // A result of samples of different lengths [num_samples].
  static TransitResult* of_lengths(const std::vector<int64_t>& lengths, int64_t num_steps);
  // The same without its vertices: offsets, of which the first is 0, are filled in before `take_vertices`.
  static TransitResult* of_offsets(int64_t num_samples, int64_t num_steps);
  void take_vertices(int64_t count);

  TransitResult(const TransitResult&) = delete;
  TransitResult& operator=(const TransitResult&) = delete;
  ~TransitResult();

 private:
  TransitResult() : FsTransitResult{}, vertex_pages_{nullptr, 0}, offset_pages_{nullptr, 0} {}

  Pages vertex_pages_, offset_pages_;
};

// Samples of one block.
struct RaggedBlock {
  std::vector<int64_t> starts, lengths;  // of each sample in `nodes`
  std::vector<int64_t> nodes;
  int64_t num_steps = 0;  // that were run
};

// The samples of blocks of `block_samples` samples each, in order.
TransitResult* join_blocks(const std::vector<RaggedBlock>& blocks, int64_t num_samples, int64_t block_samples,
                           int32_t num_threads);

}  // namespace fs

#endif  // FS_CPU_TRANSIT_RESULT_H_
