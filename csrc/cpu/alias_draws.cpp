// alias_draws: draws from one alias table, each pair from a stream of its own.
#include "alias.h"
#include "embedding_checks.h"
#include "parallel_rows.h"
#include "philox.h"

namespace fs {
namespace {

constexpr int64_t kBytesPerDraw = 64;  // of work, about that of reading so much

FsStatus alias_draws(const FsAliasDraws& request, int64_t* out) {
  for (int64_t i = 0; i < request.num_pairs; ++i) {
    if (request.numbers[i] < 0 || request.numbers[i] > int64_t{UINT32_MAX}) {
      return refuse(FS_REFUSED_ID, "alias_draws", {{request.numbers[i], i, 0, UINT32_MAX}});
    }
  }
  const StageKey key = stage_key(request.rng_seed, kNegatives, 0, request.step);
  const AliasEntry* table = reinterpret_cast<const AliasEntry*>(request.alias_table);
  parallel_rows(request.num_pairs, request.draws_per_pair * kBytesPerDraw, request.num_threads,
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) {
                    NodeStream stream(key, static_cast<uint64_t>(request.ids[i]),
                                      static_cast<uint64_t>(request.numbers[i]) << 32);
                    for (int64_t k = 0; k < request.draws_per_pair; ++k) {
                      out[i * request.draws_per_pair + k] = alias_draw(stream, table, request.num_slots);
                    }
                  }
                });
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_alias_draws(const FsAliasDraws* request, int64_t* out) {
  return fs::guarded("alias_draws", [&] {
    const FsStatus status = fs::check_threads("alias_draws", request->num_threads);
    if (status != FS_OK) return status;
    if (request->num_slots < 1 || request->num_slots > fs::kMaxAliasDegree || request->draws_per_pair < 0) {
      return fs::fail(FS_INVALID_ARGUMENT,
                      "alias_draws: %lld draws from a table of %lld slots; expected 0 or more, and 1 to 2^31 - 1",
                      static_cast<long long>(request->draws_per_pair), static_cast<long long>(request->num_slots));
    }
    return fs::alias_draws(*request, out);
  });
}
