// In-edges grouped by source: a counting sort, by several threads where sources have edges enough.
#ifndef FS_CPU_SOURCE_LISTS_H_
#define FS_CPU_SOURCE_LISTS_H_

#include <stddef.h>
#include <stdint.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "fastsample.h"
#include "parallel_rows.h"
#include "vector/vector_kernels.h"

namespace fs {

struct OwnedSourceLists {
  std::vector<int64_t> offsets;
  std::unique_ptr<int64_t[]> entries;
  int64_t step;
  SourceLists view() const { return {offsets.data(), entries.get(), step}; }
};

// Every thread counts and places the edges of a run of destinations, with a counter per source of its own.
template <typename Id>
OwnedSourceLists group_by_source(const FsAggregation& spec) {
  const Id* indices = static_cast<const Id*>(spec.indices);
  const int64_t step = spec.weights != nullptr || spec.reduce == FS_MAX ? 2 : 1;
  const size_t size = static_cast<size_t>(spec.num_edges * step), num_src = static_cast<size_t>(spec.num_src);
  OwnedSourceLists lists = {std::vector<int64_t>(num_src + 1), std::unique_ptr<int64_t[]>(new int64_t[size]), step};
  // A run costs a pass over the sources.
  const int64_t edges_per_source = spec.num_src > 0 ? spec.num_edges / spec.num_src : 0;
  const int64_t runs = std::max<int64_t>(1, std::min<int64_t>(spec.num_threads, edges_per_source));
  std::vector<int64_t> counters(static_cast<size_t>(runs) * num_src);
  const auto each_run = [&](auto&& body) {
    parallel_rows(
        runs, static_cast<int64_t>(size * sizeof(int64_t)) / runs, spec.num_threads, [&](int64_t begin, int64_t end) {
          for (int64_t run = begin; run < end; ++run) {
            body(counters.data() + run * spec.num_src, spec.num_dst * run / runs, spec.num_dst * (run + 1) / runs);
          }
        });
  };
  each_run([&](int64_t* counts, int64_t begin, int64_t end) {
    for (int64_t e = spec.indptr[begin]; e < spec.indptr[end]; ++e) ++counts[indices[e]];
  });
  int64_t place = 0;
  for (size_t src = 0; src < num_src; ++src) {
    lists.offsets[src] = place;
    for (size_t at = src; at < counters.size(); at += num_src) {  // from here on: where the run's next edge goes
      const int64_t count = counters[at];
      counters[at] = place;
      place += count;
    }
  }
  lists.offsets[num_src] = place;
  each_run([&](int64_t* next, int64_t begin, int64_t end) {
    for (int64_t dst = begin; dst < end; ++dst) {
      for (int64_t e = spec.indptr[dst]; e < spec.indptr[dst + 1]; ++e) {
        int64_t* entry = lists.entries.get() + next[indices[e]]++ * step;
        entry[0] = dst;
        if (step == 2) entry[1] = e;
      }
    }
  });
  return lists;
}

}  // namespace fs

#endif  // FS_CPU_SOURCE_LISTS_H_
