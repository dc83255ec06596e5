/* fastsample: how probable it is that nodes and edges are in a random subgraph, and edge weights that make up for it
 * (Zeng et al., "GraphSAINT", ICLR 2020, section 3.2). Part of the C ABI; conventions as in fastsample.h. */
#ifndef FASTSAMPLE_INCLUSION_H_
#define FASTSAMPLE_INCLUSION_H_

#include "fastsample.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  /* `draws` independent draws and Poisson arrivals. A draw visits node v with probability chances[v], and both ends of
   * an edge with shares[u] + shares[v] for each of its parallel edges; arrivals[v] is the mean number of arrivals at v,
   * of which each edge from u brings links[u]:
   *   miss[v]        = (1 - chances[v])^draws exp(-arrivals[v])
   *   miss both u, v = (1 - chances[u] - chances[v] + k (shares[u] + shares[v]))^draws
   *                    exp(-(arrivals[u] + arrivals[v] - k (links[u] + links[v]))), k edges from u to v and from v to u
   *   P(u, v)        = 1 - miss[u] - miss[v] + miss both */
  FS_INCLUSION_DRAWS = 0,
  /* Nodes of one cluster are there together: P = same; of two: P = apart; P(v) = same. */
  FS_INCLUSION_CLUSTERS = 1,
  /* Counted: bit i of a node's words says whether it is in subgraph i of `count`. P(v) and P(u, v) are shares of the
   * count; weights divide by (c + 1) / (count + 1) instead, because (count + 1) / (c + 1) has the mean
   * (1 - (1 - P)^(count + 1)) / P and no pole. */
  FS_INCLUSION_COUNTS = 2
} FsInclusionKind;

/* Of some nodes, numbered 0 .. num_nodes - 1; only what `kind` reads is looked at. */
typedef struct {
  const double* chances;  /* [num_nodes] 0 .. 1 */
  const double* arrivals; /* [num_nodes] 0 or more; NULL: 0 */
  const double* links;    /* [num_nodes] 0 or more; NULL: 0 */
  const double* shares;   /* [num_nodes] 0 .. 1; NULL: 0 */
  double draws;
  const int64_t* clusters; /* [num_nodes] */
  double same, apart;
  const int64_t* bits; /* [num_nodes][num_words] */
  int64_t num_words, count;
  int64_t num_nodes;
  int32_t kind; /* FsInclusionKind */
} FsInclusionLaw;

/* out [num_nodes]: P(v). The same bits on every processor, as all results here. */
FS_API FsStatus fs_node_inclusion(const FsInclusionLaw* law, double* out);

typedef enum {
  FS_EDGE_INCLUSION = 0, /* P(u, v), float64 */
  FS_RATIO_WEIGHTS = 1,  /* 1 / P(u, v), scaled so that row v adds up to row_sums[v]; float32 */
  FS_SAINT_WEIGHTS = 2   /* P(v) / P(u, v), v the row; float32 */
} FsSubgraphWeightsForm;

/* Of the edges of a graph over the law's nodes, such as a subgraph: a row per node, parallel edges side by side. An
 * edge of a node to itself has P(v). */
typedef struct {
  const int64_t* indptr;  /* [num_nodes + 1] */
  const void* indices;    /* [num_edges] id_type, 0 .. num_nodes - 1 */
  const double* row_sums; /* FS_RATIO_WEIGHTS: [num_nodes] */
  int64_t num_edges;
  int32_t id_type;
  int32_t form; /* FsSubgraphWeightsForm */
  int32_t num_threads;
} FsSubgraphEdges;
/* out [num_edges]. Refuses offsets and ids out of range. */
FS_API FsStatus fs_subgraph_weights(const FsInclusionLaw* law, const FsSubgraphEdges* edges, void* out);

/* What tells symmetric graphs from others, by one pass over the edges: out[0] adds up a hash of (source, destination),
 * out[1] of (destination, source), modulo 2^64: they differ on a graph that is not its own reverse, but for a chance of
 * about 2^-64. out_loops [num_rows]: edges of each node to itself. */
FS_API FsStatus fs_edge_fingerprint(const FsGraph* graph, int32_t num_threads, uint64_t out[2], int32_t* out_loops);

#ifdef __cplusplus
}
#endif
#endif /* FASTSAMPLE_INCLUSION_H_ */
