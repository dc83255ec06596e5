// locate_rows: where each node's row can be read, and the nodes whose rows must be asked for, grouped by owner.
//
// Threads take runs of nodes. First pass: a place, or -1 - owner for a missing node, and counts per run. Then a
// counting sort of what is missing: each run knows where its share of every owner's group begins, so the result does
// not depend on how many runs there are.
#include <stddef.h>

#include <algorithm>
#include <vector>

#include "parallel_rows.h"
#include "part_owner.h"
#include "row_index.h"
#include "row_place.h"
#include "status.h"

namespace fs {
namespace {

constexpr int64_t kNodeBytes = 32;  // what a node costs, for the number of threads

// Of one run of nodes.
struct Run {
  int64_t begin = 0, end = 0;
  int64_t first_bad = -1;       // position of a node outside the ranges
  std::vector<int64_t> counts;  // [num_owners + 3], as fs_locate_rows
};

template <typename Id>
void find_places(const FsRowIndex& index, const Id* nodes, int64_t* places, Run& run) {
  const int64_t first = index.ranges[0], last = index.ranges[index.num_ranges];
  int64_t* const found = run.counts.data() + index.num_owners;
  for (int64_t i = run.begin; i < run.end; ++i) {
    const int64_t node = nodes[i];
    if (node < first || node >= last) {
      run.first_bad = i;
      return;
    }
    const int64_t range = owner_of(node, index.ranges, index.num_ranges);
    const int32_t table = index.tables[range];
    if (table >= 0) {
      places[i] = place_in(table, index.first_rows[range] + node - index.ranges[range]);
      ++found[table >= index.num_own_tables];
      continue;
    }
    const int64_t slot = cached_slot(index, node);
    if (slot >= 0) {
      places[i] = place_in(index.cache_table, slot);
      ++found[2];
      continue;
    }
    places[i] = -1 - static_cast<int64_t>(index.owners[range]);
    ++run.counts[static_cast<size_t>(index.owners[range])];
  }
}

// next [num_owners]: where the run's next missing node of each owner goes.
template <typename Id>
void group_missing(const Id* nodes, const Run& run, int64_t* next, int64_t* places, Id* missing) {
  for (int64_t i = run.begin; i < run.end; ++i) {
    if (places[i] >= 0) continue;
    const int64_t to = next[-1 - places[i]]++;
    missing[to] = nodes[i];
    places[i] = -1 - to;
  }
}

// Adds the runs' counts up; turns each run's counts of missing nodes into where its shares of the groups begin.
void sum_counts(const FsRowIndex& index, std::vector<Run>& runs, int64_t* counts) {
  int64_t before = 0;
  for (int32_t what = 0; what < index.num_owners + 3; ++what) {
    const int64_t begin = before;
    for (Run& run : runs) {
      const int64_t of_run = run.counts[static_cast<size_t>(what)];
      run.counts[static_cast<size_t>(what)] = before;
      before += of_run;
    }
    counts[what] = before - begin;
  }
}

// body(run) for every run, each in a thread of its own.
template <typename Body>
void for_each_run(std::vector<Run>& runs, const Body& body) {
  const int count = static_cast<int>(runs.size());
#pragma omp parallel for num_threads(count) schedule(static, 1) if (count > 1)
  for (int k = 0; k < count; ++k) body(runs[static_cast<size_t>(k)]);
}

std::vector<Run> make_runs(const FsRowIndex& index, int64_t num_nodes, int32_t num_threads) {
  const int64_t useful = num_nodes * kNodeBytes / kBytesPerThread;
  const int64_t count = std::max<int64_t>(1, std::min<int64_t>(useful, num_threads));
  std::vector<Run> runs(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) {
    Run& run = runs[static_cast<size_t>(k)];
    run.begin = num_nodes * k / count;
    run.end = num_nodes * (k + 1) / count;
    run.counts.assign(static_cast<size_t>(index.num_owners) + 3, 0);
  }
  return runs;
}

template <typename Id>
FsStatus locate(const FsRowIndex& index, const Id* nodes, int64_t num_nodes, int32_t num_threads, int64_t* places,
                Id* missing, int64_t* counts) {
  std::vector<Run> runs = make_runs(index, num_nodes, num_threads);
  for_each_run(runs, [&](Run& run) { find_places(index, nodes, places, run); });
  for (const Run& run : runs) {
    if (run.first_bad >= 0) {
      const int64_t last = index.ranges[index.num_ranges] - 1;
      return refuse(FS_REFUSED_OWNER, "locate_rows", {{nodes[run.first_bad], run.first_bad, index.ranges[0], last}});
    }
  }
  sum_counts(index, runs, counts);
  if (std::all_of(counts, counts + index.num_owners, [](int64_t count) { return count == 0; })) return FS_OK;
  for_each_run(runs, [&](Run& run) { group_missing(nodes, run, run.counts.data(), places, missing); });
  return FS_OK;
}

template <typename Id>
void hash_slots(const int64_t* nodes, int64_t num_nodes, int64_t num_slots, Id* pairs) {
  std::fill(pairs, pairs + 2 * num_slots, Id{-1});
  for (int64_t i = 0; i < num_nodes; ++i) {
    const int64_t at = find_pair(pairs, num_slots, nodes[i]);
    pairs[2 * at] = static_cast<Id>(nodes[i]);
    pairs[2 * at + 1] = static_cast<Id>(i);
  }
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_locate_rows(const FsRowIndex* index, int32_t id_type, const void* nodes, int64_t num_nodes,
                        int32_t num_threads, int64_t* out_places, void* out_missing, int64_t* out_counts) {
  const FsStatus status = fs::check_parts("locate_rows", index->num_ranges);
  if (status != FS_OK) return status;
  return fs::guarded("locate_rows", [&] {
    return fs::with_id_type("locate_rows", id_type, [&](auto zero) {
      using Id = decltype(zero);
      return fs::locate<Id>(*index, static_cast<const Id*>(nodes), num_nodes, num_threads, out_places,
                            static_cast<Id*>(out_missing), out_counts);
    });
  });
}

FsStatus fs_hash_slots(const int64_t* nodes, int64_t num_nodes, int32_t id_type, int64_t num_slots, void* out_pairs) {
  if (num_slots <= num_nodes || (num_slots & (num_slots - 1)) != 0) {
    return fs::fail(FS_INVALID_ARGUMENT, "hash_slots: %lld slots for %lld nodes; expected a power of two above that",
                    static_cast<long long>(num_slots), static_cast<long long>(num_nodes));
  }
  return fs::with_id_type("hash_slots", id_type, [&](auto zero) {
    fs::hash_slots(nodes, num_nodes, num_slots, static_cast<decltype(zero)*>(out_pairs));
    return FS_OK;
  });
}

}  // extern "C"
