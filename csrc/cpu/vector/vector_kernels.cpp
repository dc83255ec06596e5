// One instruction set's table of vector kernels; compiled once per set with FS_ISA naming it. Everything is in an
// unnamed namespace and nothing of the C++ library is used, so that no function of a wide build can be linked into a
// narrow one.
#include "vector_kernels.h"

#include "aggregate_rows.h"
#include "column_lanes.h"
#include "dashboard_entries.h"
#include "dropout_rows.h"
#include "frontier_walk.h"
#include "inclusion_rows.h"
#include "induced_edges.h"
#include "lone_walkers.h"
#include "merge_rows.h"
#include "node2vec_step.h"
#include "philox_nodes.h"
#include "pick_words.h"
#include "race_words.h"
#include "sample_edges.h"
#include "skipgram_rows.h"
#include "visit_rows.h"
#include "walk_columns.h"
#include "walk_steps.h"

#define FS_JOIN_(a, b) a##b
#define FS_JOIN(a, b) FS_JOIN_(a, b)
#define FS_TEXT_(a) #a
#define FS_TEXT(a) FS_TEXT_(a)

namespace fs {

const VectorKernels& FS_JOIN(vector_kernels_, FS_ISA)() {
  static const VectorKernels kernels = {FS_TEXT(FS_ISA),
                                        false,
                                        aggregate,
                                        aggregate_grad_x,
                                        aggregate_grad_weights,
                                        act_dropout,
                                        act_dropout_grad,
                                        merge_rows,
                                        skipgram_centers,
                                        skipgram_contexts,
                                        update_rows,
                                        stream_words,
                                        sample_edges_of<int32_t>,
                                        sample_edges_of<int64_t>,
                                        relabel_edges<int32_t>,
                                        relabel_edges<int64_t>,
                                        induce_rows<int32_t>,
                                        induce_rows<int64_t>,
                                        first_words,
                                        pick_words<2>,
                                        race_words,
                                        race_filter<uint32_t>,
                                        race_filter<uint64_t>,
                                        kAddColumns,
                                        pick_neighbors<int32_t>,
                                        pick_neighbors<int64_t>,
                                        walk_on<int32_t>,
                                        walk_on<int64_t>,
                                        walk_lengths,
                                        walk_visits<int32_t>,
                                        walk_visits<int64_t>,
                                        rank_visits<int32_t>,
                                        rank_visits<int64_t>,
                                        node2vec_step,
                                        drawn_terms,
                                        subgraph_weights,
                                        lone_visits<int32_t>,
                                        lone_visits<int64_t>,
                                        frontier_walk<int32_t>,
                                        frontier_walk<int64_t>,
                                        fill_entries,
                                        clear_entries,
                                        probe_entries};
  return kernels;
}

}  // namespace fs
