// What one hop of sampling is asked for, on which rows, and how it refuses what it finds there.
#ifndef FS_CPU_HOP_SPEC_H_
#define FS_CPU_HOP_SPEC_H_

#include <stdint.h>

#include <functional>

#include "hop_task.h"
#include "layer_pick.h"
#include "status.h"

namespace fs {

struct HopSpec {
  int64_t fanout;
  FsSampleMethod method;
  bool replace;
  StageKey key;
  int num_threads;
  bool plainly;  // by the definition (plain_hop.cpp), which relabels without the id table: one choice for a whole batch
};

inline HopSpec hop_spec(const FsSampleSpec& spec, int32_t hop, bool plainly) {
  const bool layer = spec.method == FS_LABOR;
  const uint32_t number = static_cast<uint32_t>(spec.first_hop + hop);
  const uint32_t stage = layer && spec.layer_dependency != 0 ? kAllHops : number;
  return {spec.fanouts[hop], static_cast<FsSampleMethod>(spec.method),
          spec.replace != 0, stage_key(spec.rng_seed, layer ? kLayer : kSampling, stage, spec.step),
          spec.num_threads,  plainly};
}

inline FsStatus check_request(const char* operation, const FsGraph& graph, const FsSampleSpec& spec) {
  const FsStatus status = check_threads(operation, spec.num_threads);
  return status != FS_OK ? status : check_sample_request(operation, graph, spec);
}

template <typename Id>
FsStatus refuse_row(const char* operation, const CscView<Id>& graph, Id id) {
  const int64_t row = id;
  if (!graph.has_row(row)) {
    return refuse(FS_REFUSED_ROW, operation, {{row, graph.num_rows - 1}});
  }
  return refuse(FS_REFUSED_OFFSETS, operation, {{row, graph.indptr[row], graph.indptr[row + 1], graph.num_edges}});
}

template <typename Id>
FsStatus refuse_source(const char* operation, const CscView<Id>& graph, Id source) {
  return refuse_source(operation, source, graph.num_sources - 1);
}

// Rows of one hop, and what is known of them.
template <typename Id>
struct HopRows {
  const Id* rows;
  int64_t num_rows;
  RowEdges* edges;   // [num_rows] where each row lies
  int64_t* offsets;  // [num_rows + 1] prefix sums of the picks
};

// What plain_hop.cpp is given: the arguments of HopSampler.
struct HopRequest {
  const char* operation;
  const FsGraph& graph;
  const HopSpec& spec;
};

// Called once the offsets of a hop are known; returns the task over its arrays.
template <typename Id>
using AllocateHop = std::function<HopTask<Id>(const CscView<Id>&, const HopSpec&, const HopRows<Id>&)>;

// HopSampler::run by the definition (plain_hop.cpp); `ids` is null where source ids are wanted as they are.
template <typename Id>
FsStatus sample_plainly(const HopRequest& request, const HopRows<Id>& hop, Relabeling<Id>* ids,
                        const AllocateHop<Id>& allocate);

}  // namespace fs

#endif  // FS_CPU_HOP_SPEC_H_
