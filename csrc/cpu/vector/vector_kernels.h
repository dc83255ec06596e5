// The kernels that benefit from wide vectors, as a table of functions. vector_kernels.cpp is compiled once per
// instruction set; isa.cpp picks the table at run time. Every table gives the same bits: each output column is computed
// by the same sequence of scalar operations (no contraction, no reassociation).
#ifndef FS_CPU_VECTOR_KERNELS_H_
#define FS_CPU_VECTOR_KERNELS_H_

#include <stdint.h>

#include "aggregation.h"
#include "column_run.h"
#include "embedding_tasks.h"
#include "fastsample_transit.h"
#include "hop_task.h"
#include "inclusion_task.h"
#include "induced_task.h"
#include "philox.h"
#include "pick_run.h"
#include "visit_run.h"
#include "walk_run.h"
#include "walker_tasks.h"

namespace fs {

// In-edges grouped by source, for the backward pass. Edges of a source are ascending, so that sums have one order.
struct SourceLists {
  const int64_t* offsets;  // [num_src + 1]
  const int64_t* entries;  // [num_edges][step] an edge's destination and, where step is 2, its number
  int64_t step;            // 2 where the reduction or weights ask for edge numbers, else 1

  int64_t dst(int64_t entry) const { return entries[entry * step]; }
  int64_t edge(int64_t entry) const { return step == 2 ? entries[entry * 2 + 1] : 0; }
};

struct AggregateBuffers {
  const void* x;
  void* out;
  int64_t out_stride;
  int64_t* arg;
  void* own_out;  // the destinations' own rows are copied here, out_stride apart; NULL: nowhere
};

// Rows begin .. end of a matrix, of its columns column .. end_column.
struct RowBlock {
  int64_t begin, end, column, end_column;
};

constexpr int kGroupNodes = 16;  // nodes whose random words are made side by side
// Picks of a row that the kernels take; more are left to a hash set, as comparing grows with the square.
constexpr int kGroupFanout = 32;

constexpr uint32_t kNoSlot = ~0u;    // a dashboard's entry that is dead (dashboard.h)
constexpr int kDashboardProbes = 4;  // of a pop that are compared at once: a block of its stream
constexpr int64_t kEntrySlack = 16;  // entries behind a run that may be written

struct VectorKernels {
  const char* name;
  bool samples_plainly;  // hops are sampled by their definition (plain_hop.cpp), not by these kernels
  // A block of the forward pass (rows: destinations).
  void (*aggregate)(const FsAggregation&, const AggregateBuffers&, const RowBlock&);
  // A block of the gradient of x (rows: sources).
  void (*aggregate_grad_x)(const FsAggregation&, const AggregateGrads&, const SourceLists&, const RowBlock&);
  // Destinations begin .. end of the gradient of the weights.
  void (*aggregate_grad_weights)(const FsAggregation&, const AggregateGrads&, int64_t begin, int64_t end);
  void (*act_dropout)(const FsActDropout&, const void* x, void* y, int64_t begin, int64_t end);
  // `sums`: null, or [width] of the type of the arithmetic, to which the rows of grad_x are added.
  void (*act_dropout_grad)(const FsActDropout&, const void* y, const void* grad_y, void* grad_x, int64_t begin,
                           int64_t end, void* sums);
  void (*merge_rows)(const FsRowTables&, const int64_t* places, int32_t out_type, void* out, int64_t begin,
                     int64_t end);
  // Rows begin .. end of a batch: their gradients as centres (written), then as contexts (added).
  void (*skipgram_centers)(const SkipGramTask&, int64_t begin, int64_t end);
  void (*skipgram_contexts)(const SkipGramTask&, int64_t begin, int64_t end);
  void (*update_rows)(const RowUpdateTask&, int64_t begin, int64_t end);
  // Blocks 0 .. num_blocks - 1 of the streams of nodes [num_groups][kGroupNodes] (original ids; pad the last group with
  // any id): out [num_groups][4 * num_blocks][kGroupNodes], out[g][w][l] is word w of the stream of nodes[g][l].
  void (*stream_words)(StageKey, const uint64_t* nodes, int64_t num_groups, int32_t num_blocks, uint32_t* out);
  // Rows begin .. end of a hop with a fanout of 0 .. kGroupFanout, drawn uniformly; relabelled unless `ids` is null.
  void (*sample_edges_32)(const HopTask<int32_t>&, int64_t begin, int64_t end, Relabeling<int32_t>* ids);
  void (*sample_edges_64)(const HopTask<int64_t>&, int64_t begin, int64_t end, Relabeling<int64_t>* ids);
  // Relabels edges[begin .. end) in place.
  void (*relabel_edges_32)(int32_t* edges, int64_t begin, int64_t end, Relabeling<int32_t>* ids);
  void (*relabel_edges_64)(int64_t* edges, int64_t begin, int64_t end, Relabeling<int64_t>* ids);
  // Edges between given nodes, row by row, until the run stops.
  void (*induce_rows_32)(const InducedTask<int32_t>&, InducedRun<int32_t>* run);
  void (*induce_rows_64)(const InducedTask<int64_t>&, InducedRun<int64_t>* run);
  // out[i] is the first word of the stream of nodes[i], i < n.
  void (*first_words)(StageKey, const uint64_t* nodes, int64_t n, uint32_t* out);
  // out [num_groups][2][kGroupNodes] has the first two words of block numbers[i] << 32 of the stream of nodes[i].
  void (*pick_words)(StageKey, const uint64_t* nodes, const uint64_t* numbers, int64_t num_groups, uint32_t* out);
  // out[i] is the random word of candidate orig_ids[i] in a sample's race (core/exponential_race.h), i < n.
  void (*race_words)(StageKey, const uint64_t* orig_ids, int64_t n, uint64_t sample_id, uint64_t* out);
  // Candidates i < n that may arrive in time: see vector/race_words.h.
  int64_t (*race_filter_32)(StageKey, const uint32_t* orig_ids, const double* weights, int64_t n, uint64_t sample_id,
                            double bound, int32_t* passed);
  int64_t (*race_filter_64)(StageKey, const uint64_t* orig_ids, const double* weights, int64_t n, uint64_t sample_id,
                            double bound, int32_t* passed);
  // Enters edges of a row as columns, side by side (column_run.h); null: there is no such kernel.
  int64_t (*add_columns)(ColumnRun*);
  // Picks of a step of an application, uniform or by weight.
  PickedRun (*pick_neighbors_32)(const PickRun&);
  PickedRun (*pick_neighbors_64)(const PickRun&);
  // Steps of walks without history, uniform or by weight.
  WalkedRun (*walk_32)(const WalkRun&);
  WalkedRun (*walk_64)(const WalkRun&);
  // Lengths of FS_NEXT_PPR: see vector/walk_columns.h.
  void (*walk_lengths)(StageKey, const uint64_t* ids, int64_t count, const int64_t* table, int64_t entries,
                       int64_t* lengths);
  // Walks from a block of rows, and the ranking of few visits per row: see vector/visit_rows.h.
  int64_t (*walk_visits_32)(const VisitRun&);
  int64_t (*walk_visits_64)(const VisitRun&);
  int64_t (*rank_visits_32)(const RankRun&);
  int64_t (*rank_visits_64)(const RankRun&);
  // A step of node2vec with one pick per sample: slots begin .. end - 1 as an FsStepKernel, transits may be none.
  void (*node2vec_step)(const FsStepTask&, int64_t begin, int64_t end);
  // Terms of the nodes begin .. end - 1 of a law of draws; `ends` may be null.
  void (*drawn_terms)(const FsInclusionLaw&, int64_t begin, int64_t end, DrawnNode* nodes, DrawnEnd* ends);
  // Weights of the edges of a subgraph, rows begin .. end - 1.
  void (*subgraph_weights)(const InclusionTask&, int64_t begin, int64_t end);
  // The visits of independent draws and walks, and those of a frontier.
  DrawnVisits (*lone_visits_32)(const LoneTask<int32_t>&);
  DrawnVisits (*lone_visits_64)(const LoneTask<int64_t>&);
  DrawnVisits (*frontier_walk_32)(const FrontierTask<int32_t>&);
  DrawnVisits (*frontier_walk_64)(const FrontierTask<int64_t>&);
  // Entries of a dashboard: see vector/dashboard_entries.h.
  void (*fill_entries)(uint32_t* entries, int64_t count, uint32_t value);
  void (*clear_entries)(uint32_t* entries, int64_t count);
  int32_t (*probe_entries)(const uint32_t* entries, uint32_t used, const uint32_t* words, int64_t stride);
};

const VectorKernels& vector_kernels();  // the table in use

}  // namespace fs

#endif  // FS_CPU_VECTOR_KERNELS_H_
