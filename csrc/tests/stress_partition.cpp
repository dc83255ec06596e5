// Stress test of what the partitioner calls, for the sanitizers: fastsample_stress_partition CALLERS TEAM ROUNDS 32|64
//
// Sorting of edge lists, reading of pieces of a file, streaming partitioning and clusters, run as stress.cpp runs the
// operators. Besides, every result is held against that of a serial oracle, which does the obvious thing.
#include "stress_callers.h"
#include "stress_clusters.h"
#include "stress_edges.h"
#include "stress_ranges.h"
#include "stress_stream.h"

namespace {

using namespace stress;

template <typename Id>
void run_problem(uint64_t seed, const Load& load) {
  Generator generator(seed);
  const EdgeLists<Id> lists(generator);
  const Ranges ranges(generator);
  const Streams<Id> streams(generator);
  const ClusterPasses<Id> passes(generator);
  run_at_once(load, [&](int32_t num_threads, Written& written) {
    lists.run(num_threads, written);
    ranges.run(written);
    streams.run(written);
    passes.run(num_threads, written);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const Load load = read_load(argc, argv);
  if (load.id_bits == 32) run_problem<int32_t>(1, load);
  if (load.id_bits == 64) run_problem<int64_t>(2, load);
  say_done(argv[0], load);
  return 0;
}
