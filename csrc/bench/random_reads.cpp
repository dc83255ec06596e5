// random_reads: what a sampled edge costs at least, one read of a large array and one of a small one, both at random.
//
// Read i goes to positions that a mix of the counter seed + i gives, so no array of positions is read along with them,
// and every read can be requested any distance ahead: `ahead` reads before it is used, into the first or the second
// level of cache (more requests are in flight towards the second). Threads take disjoint runs of counters.
#include <algorithm>

#include "abi_entries.h"
#include "fastsample_bench.h"
#include "mix.h"
#include "parallel_rows.h"
#include "philox.h"
#include "status.h"

// clang-format off
static const FsAbiEntry kEntries[] = {
  FS_STRUCT(FsRandomReads, first, second, first_count, second_count, num_reads, first_width, second_width, ahead,
            into_second_level, num_threads, seed)
  FS_END};
// clang-format on

namespace fs {
namespace {

constexpr int64_t kReadBytes = 128;  // two cache lines: what a read moves, for the share of a thread

template <typename First, typename Second>
struct Arrays {
  const First* first;
  const Second* second;
  uint64_t first_count, second_count;

  const First* first_at(uint64_t word) const { return first + multiply_high(word, first_count); }
  const Second* second_at(uint64_t word) const { return second + multiply_high(word << 32 | word >> 32, second_count); }
};

// Sum of both elements over the counters begin .. end - 1. kLocality: 3 requests into the first level, 2 into the
// second.
template <int kLocality, typename First, typename Second>
uint64_t read_run(const Arrays<First, Second>& arrays, uint64_t begin, uint64_t end, uint64_t ahead) {
  uint64_t sum = 0;
  for (uint64_t counter = begin; counter != end; ++counter) {
    const uint64_t later = mix(counter + ahead);
    __builtin_prefetch(arrays.first_at(later), 0, kLocality);
    __builtin_prefetch(arrays.second_at(later), 0, kLocality);
    const uint64_t now = mix(counter);
    sum += *arrays.first_at(now);
    sum += *arrays.second_at(now);
  }
  return sum;
}

template <typename First, typename Second>
uint64_t read_all(const FsRandomReads& spec) {
  const Arrays<First, Second> arrays = {static_cast<const First*>(spec.first), static_cast<const Second*>(spec.second),
                                        static_cast<uint64_t>(spec.first_count),
                                        static_cast<uint64_t>(spec.second_count)};
  const uint64_t ahead = static_cast<uint64_t>(spec.ahead);
  uint64_t sum = 0;
  parallel_rows(spec.num_reads, kReadBytes, spec.num_threads, [&](int64_t begin, int64_t end) {
    const uint64_t from = spec.seed + static_cast<uint64_t>(begin), to = spec.seed + static_cast<uint64_t>(end);
    const uint64_t part =
        spec.into_second_level != 0 ? read_run<2>(arrays, from, to, ahead) : read_run<3>(arrays, from, to, ahead);
#pragma omp atomic
    sum += part;
  });
  return sum;
}

FsStatus check(const FsRandomReads& spec) {
  for (const int32_t width : {spec.first_width, spec.second_width}) {
    if (width != 4 && width != 8) {
      return fail(FS_INVALID_ARGUMENT, "random_reads: elements of %d bytes; expected 4 or 8", width);
    }
  }
  if (std::min(spec.first_count, spec.second_count) < 1) {
    return fail(FS_INVALID_ARGUMENT, "random_reads: arrays of %lld and %lld elements; expected at least 1",
                static_cast<long long>(spec.first_count), static_cast<long long>(spec.second_count));
  }
  if (spec.num_reads < 0 || spec.ahead < 0 || spec.num_threads < 1) {
    return fail(FS_INVALID_ARGUMENT, "random_reads: %lld reads, %d ahead, %d threads; expected 0, 0 and 1 or more",
                static_cast<long long>(spec.num_reads), spec.ahead, spec.num_threads);
  }
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" {

const FsAbiEntry* fs_bench_abi_entries(void) { return kEntries; }

FsStatus fs_random_reads(const FsRandomReads* spec, uint64_t* out_sum) {
  const FsStatus status = fs::check(*spec);
  if (status != FS_OK) return status;
  if (spec->first_width == 4) {
    *out_sum =
        spec->second_width == 4 ? fs::read_all<uint32_t, uint32_t>(*spec) : fs::read_all<uint32_t, uint64_t>(*spec);
  } else {
    *out_sum =
        spec->second_width == 4 ? fs::read_all<uint64_t, uint32_t>(*spec) : fs::read_all<uint64_t, uint64_t>(*spec);
  }
  return FS_OK;
}

}  // extern "C"
