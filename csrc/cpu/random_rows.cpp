// random_rows: rows of uniform numbers, each from the stream of its node.
#include "embedding_checks.h"
#include "parallel_rows.h"
#include "philox.h"

namespace fs {
namespace {

template <typename T>
void fill_rows(const FsRandomRows& request, T* out, int64_t begin, int64_t end) {
  const StageKey key = stage_key(request.rng_seed, kEmbedding, 0, 0);
  for (int64_t row = begin; row < end; ++row) {
    NodeStream stream(key, static_cast<uint64_t>(request.ids[row]));
    for (int64_t c = 0; c < request.width; ++c) {
      const double share = static_cast<double>(stream.next() >> 8) / 16777216.0;
      out[row * request.width + c] = static_cast<T>((share - 0.5) * (2 * request.bound));
    }
  }
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_random_rows(const FsRandomRows* request, void* out) {
  FsStatus status = fs::check_real_type("random_rows", request->type);
  if (status == FS_OK) status = fs::check_threads("random_rows", request->num_threads);
  if (status != FS_OK) return status;
  fs::parallel_rows(request->num_rows, request->width * 16, request->num_threads, [&](int64_t begin, int64_t end) {
    if (request->type == FS_FLOAT32) fs::fill_rows(*request, static_cast<float*>(out), begin, end);
    if (request->type == FS_FLOAT64) fs::fill_rows(*request, static_cast<double*>(out), begin, end);
  });
  return FS_OK;
}
