/* fastsample: subgraphs as training samples: frontier sampling (Zeng et al., "Accurate, efficient and scalable graph
 * embedding", IPDPS 2019) and the samplers of GraphSAINT, ClusterGCN and shaDow. Part of the C ABI; conventions as in
 * fastsample.h.
 *
 * A subgraph has a number. Its visits are draws of nodes, in order; its nodes are the distinct visits in order of first
 * appearance. Draws are keyed by (rng_seed, domain, stage, number) and, where they come from a position in a list or a
 * row, by that position in the order of original ids (core/philox.h: kSubgraphRoots and those behind it): threads,
 * instruction sets, numbering and parts change nothing. Walkers go over in-neighbours, the rows of FsGraph, which must
 * have a row for every source.
 *
 * Roots: slot i begins at roots[below(num_roots)], with replacement, from stream i of kSubgraphRoots. A walker's hop
 * takes position below(degree) of its row from its stream of kSubgraphHops, whose words are used one after another. */
#ifndef FASTSAMPLE_SUBGRAPH_H_
#define FASTSAMPLE_SUBGRAPH_H_

#include "fastsample.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  /* Algorithm 2 of the paper, but the entering vertex is visited (algorithm 3, line 24): frontier_size roots, then pops
   * up to `budget` visits. A pop advances slot i with probability w[i] / sum(w), w = min(degree, max_degree): the first
   * whose inclusive sum exceeds below(sum(w)), from stream 0 of kSubgraphPops. Ends early when the sum is 0. */
  FS_SUBGRAPH_FRONTIER = 0,
  /* `budget` draws of roots in proportion to their degrees: draw i is the first root whose inclusive sum of degrees
   * exceeds below(sum), from stream i of kSubgraphDraws. */
  FS_SUBGRAPH_NODE = 1,
  /* `budget` draws of edges, both ends visited: draw i takes head connected[below(num_connected)], then a uniform
   * in-neighbour of it, from stream i of kSubgraphDraws. */
  FS_SUBGRAPH_EDGE = 2,
  /* budget / (walk_length + 1) roots, of each a walk of walk_length hops that ends at a node without in-edges; visits:
   * a root, its hops, the next root. */
  FS_SUBGRAPH_WALK = 3,
  /* number = epoch * batches + index, batches = ceil(num_clusters / clusters_per_batch): the members of clusters
   * index * clusters_per_batch and those behind of the epoch's permutation (core/permutation.h, by kSubgraphOrder). */
  FS_SUBGRAPH_CLUSTER = 4,
  /* number = epoch * num_roots + index: root `index` of the epoch's permutation, then `depth` hops, each of which
   * expands the nodes that are new by `fanout` distinct in-neighbours (core/pick.h), by their streams of kSubgraphEgo.
   * Its visits are its nodes, each once. */
  FS_SUBGRAPH_EGO = 5
} FsSubgraphMethod;

/* How a frontier finds the slot of a pop. FS_FRONTIER_DASHBOARD (algorithm 3 of the paper) has the law of
 * FS_FRONTIER_SUMS and draws of its own: pop p takes the slot of the first entry below(entries in use) that is live,
 * from stream p of kSubgraphProbes. Entries: w of every root, slot after slot; a pop clears those of its slot and
 * appends those of the entering vertex. The table has ceil(eta * frontier_size * mean degree, or max_degree where that
 * is less) entries. Where appending would exceed it, the live entries move to its front (a cleanup); where it still
 * would, or the roots do, it gets ceil(eta * entries that are to be live) (a growth). */
typedef enum { FS_FRONTIER_SUMS = 0, FS_FRONTIER_DASHBOARD = 1 } FsFrontierStructure;

typedef struct {
  int64_t budget; /* visits of a frontier, draws, or visits of walks */
  int64_t frontier_size;
  int64_t walk_length;
  int64_t max_degree; /* weights of a frontier's slots are cut to it; 0: they are not */
  int64_t clusters_per_batch;
  int64_t depth;
  int64_t fanout; /* FS_TAKE_ALL takes all neighbours */
  double eta;     /* entries of a dashboard per live entry */
  uint64_t rng_seed;
  int32_t method;    /* FsSubgraphMethod */
  int32_t structure; /* FsFrontierStructure */
  int32_t num_threads;
} FsSubgraphSpec;
/* Refuses, as `operation`, what needs no graph. */
FS_API FsStatus fs_check_subgraph_spec(const char* operation, const FsSubgraphSpec* spec);

/* What subgraphs are drawn from besides the graph. Lists ascend by original id. */
typedef struct {
  const void* roots;          /* [num_roots] id_type */
  const int64_t* degree_sums; /* FS_SUBGRAPH_NODE: [num_roots + 1] 0, then the inclusive sums of the roots' degrees */
  const void* connected;      /* FS_SUBGRAPH_EDGE: [num_connected] the roots that have in-edges, id_type */
  const void* cluster_nodes;  /* FS_SUBGRAPH_CLUSTER: members of cluster 0, 1, ..., each node at most once; ascending
                               * inside, id_type */
  const int64_t* cluster_offsets; /* [num_clusters + 1] where each cluster begins */
  int64_t num_roots, num_connected, num_clusters;
} FsSubgraphTables;

/* The nodes of one subgraph, and what drawing them took. */
typedef struct {
  void* nodes; /* [num_nodes] id_type, in order of first appearance */
  int64_t num_nodes;
  int64_t num_visits;                /* below what the budget allows: the subgraph ended early */
  int64_t steps;                     /* pops, hops, draws, clusters, or nodes that an ego has expanded */
  int64_t probes, cleanups, growths; /* of a dashboard */
} FsSubgraphNodes;

/* The nodes of the subgraphs first .. first + count - 1, one subgraph per thread. out [count] is given back to
 * fs_subgraph_nodes_free; after a failure it holds no memory, and the error is that of the first number that failed.
 * Refuses tables that lack what the method reads, roots and source ids outside the graph. Scratch stays with the
 * thread: per visit 22 bytes of int32 or 43 of int64 ids, per slot of a frontier 64 bytes. */
FS_API FsStatus fs_subgraph_nodes(const FsGraph* graph, const FsSubgraphSpec* spec, const FsSubgraphTables* tables,
                                  uint64_t first, int64_t count, FsSubgraphNodes* out);
FS_API void fs_subgraph_nodes_free(FsSubgraphNodes* subgraphs, int64_t count);

/* A subgraph with its edges, or several of them side by side in one. */
typedef struct {
  FsSubgraphNodes drawn; /* its nodes: loss nodes first, both kinds in order of first appearance */
  FsHop edges;           /* all edges of the graph between them, as fs_induced_subgraph */
  int64_t num_loss;      /* of the nodes are loss nodes */
} FsSubgraph;

/* The subgraphs numbers [count], which may repeat, one subgraph per thread. loss_flags [num_rows]: not 0 for a loss
 * node; NULL: all nodes are. Of FS_SUBGRAPH_EGO only roots can be. edge_ids not 0: positions of the edges in the graph
 * too. out [count]. joined NULL: every entry of `out` has its arrays. Else *joined is their disjoint union as one
 * graph, and `out` has counts alone: its nodes are the loss nodes of out[0], of out[1], ..., then the other nodes of
 * out[0], of out[1], ...; edges as before, as numbers of the union's nodes; counts are sums. Entries with arrays are
 * given back to fs_subgraphs_free; after a failure none has, and the error is that of the first in `numbers` that
 * failed. Refuses what fs_subgraph_nodes and fs_induced_subgraph refuse. Memory: a block grows with its subgraph, so at
 * most half of it is unused; a union of several is copied once, its parts freed one by one. */
FS_API FsStatus fs_sample_subgraphs(const FsGraph* graph, const FsSubgraphSpec* spec, const FsSubgraphTables* tables,
                                    const uint64_t* numbers, int64_t count, const uint8_t* loss_flags, int32_t edge_ids,
                                    FsSubgraph* out, FsSubgraph* joined);
FS_API void fs_subgraphs_free(FsSubgraph* subgraphs, int64_t count);

#ifdef __cplusplus
}
#endif
#endif /* FASTSAMPLE_SUBGRAPH_H_ */
