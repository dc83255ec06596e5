/* fastsample: partitioning of graphs whose neighbour lists are read from files, front to back: clusters of limited
 * weight, the graph between them, and refinement of parts (Meyerhenke, Sanders and Schulz, "Partitioning complex
 * networks via size-constrained clustering", SEA 2014; Akhremtsev, Sanders and Schulz, "(Semi-)external algorithms for
 * graph partitioning and clustering", ALENEX 2015). Part of the C ABI; conventions as in fastsample.h.
 *
 * Every function visits the nodes whose turns are first_turn .. last_turn - 1, one after the other, and changes the
 * caller's arrays as it goes: calls with consecutive turns do together what one call does. Further threads read rows
 * ahead; the result is the same with any number, 1 .. 1024. Memory of their own: up to 56 bytes for each neighbour of
 * the longest row (fs_contract_links: 88), at most 85 MB (105); with more than one thread another 16 MB. */
#ifndef FASTSAMPLE_CLUSTERS_H_
#define FASTSAMPLE_CLUSTERS_H_

#include "fastsample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A graph in which every pair of neighbours is in both rows. */
typedef struct {
  const int64_t* indptr; /* [num_nodes + 1] offsets of the rows, by node or, where rows_by_turn is not 0, by turn */
  const void* indices;   /* [num_entries] neighbours, id_type */
  const void* weights;   /* [num_entries] of weight_type, >= 0; or NULL: all 1 */
  const int64_t* order;  /* [num_nodes] the nodes in the order of their turns, each once; or NULL: ascending */
  int64_t num_nodes, num_entries;
  int32_t id_type;
  int32_t weight_type; /* FS_UINT8 or FS_INT32 */
  int32_t rows_by_turn;
} FsNeighbours;

typedef enum {
  /* A node takes the label that the heaviest sum of its links has, of those whose load has room for it and its own. Of
   * equals the one of largest mix64(rng_seed + (node << 32 | label)), mix64 as in MurmurHash3. */
  FS_JOIN_HEAVIEST = 0,
  /* A node that is alone under its label, and at most half of the bound, looks for the label with the heaviest sum of
   * its links whether there is room or not, of equals the smallest; nodes that have found the same label join each
   * other: each takes the label that the node before it has or took, where there is room. */
  FS_JOIN_ALIKE = 1
} FsClusterRule;

typedef struct {
  const int32_t* node_weights; /* [num_nodes] >= 1 */
  const int32_t* within;       /* [num_nodes] neighbours count where this number is the same; or NULL: all do */
  int32_t bound;               /* most that the nodes of one label may weigh together, 1 .. 2^30 */
  int32_t rule;                /* FsClusterRule */
  uint64_t rng_seed;
} FsClustering;

/* labels [num_nodes]: 0 .. num_nodes - 1. loads [num_nodes]: what the nodes of each label weigh together.
 * FS_JOIN_ALIKE: open [num_nodes], -1 before the first turn, belongs to the pass. Links to the node itself do not
 * count, nor do labels that come after the first 2^21 of a row. out_moved: nodes whose label changed. */
FS_API FsStatus fs_cluster_nodes(const FsNeighbours* graph, const FsClustering* spec, int64_t first_turn,
                                 int64_t last_turn, int32_t num_threads, int32_t* labels, int32_t* loads, int32_t* open,
                                 int64_t* out_moved);

/* A table of pairs of labels with the weight of the links between them. */
typedef struct {
  uint64_t* keys;    /* [num_slots] smaller label << 32 | larger label; all ones: empty */
  int32_t* weights;  /* [num_slots] */
  int64_t num_slots; /* 8 or more */
  int64_t num_used;
  int32_t left_out; /* the heaviest pair that was left out weighed this, 0: none was */
} FsPairTable;

/* Adds up the links between nodes of different labels, each once: those in the row of the smaller label. A row's links
 * to one label are added together, up to 2^21 labels at a time. A table that is more than 3/4 full loses its lightest
 * pairs: those of the lowest weights that at least half of the pairs have; what is added later begins at 0 again (Manku
 * and Motwani, "Approximate frequency counts over data streams", VLDB 2002). Weights end at 2^31 - 1. labels
 * [num_nodes] >= 0. Scratch when pairs are left out: 16 to 48 bytes for each remaining one. Deterministic, also the
 * order of the slots. */
FS_API FsStatus fs_contract_links(const FsNeighbours* graph, int64_t first_turn, int64_t last_turn, int32_t num_threads,
                                  const int32_t* labels, FsPairTable* table);

typedef struct {
  const int32_t* node_loads; /* [num_nodes, num_limits] what a node counts against each limit, >= 0; or NULL: 1 and */
  const int64_t* in_offsets; /* in_offsets[v + 1] - in_offsets[v], [num_nodes + 1], */
  const uint8_t* kinds;      /* and bit k of kinds[v] against limit 2 + k, [num_nodes] */
  const int64_t* capacities; /* [num_limits] most of each that a part may hold, >= 1 */
  const int64_t* floors;     /* [num_limits] least that a part keeps of what it has of each */
  int32_t num_limits;        /* 1 .. FS_STREAM_LIMITS; 2 or more without node_loads */
  int32_t num_parts;
  double shed; /* 0 .. 1 */
} FsRefinement;

/* Moves a node to the part with the heaviest sum of its links where it has room, if that is heavier than the sum of its
 * own part, or as heavy and the part less full: of the limits that the node counts against, the share of the fullest
 * one (there with it, here as it is). From a part that is above a capacity that the node counts against it also moves
 * to a lighter sum, of at least 1 - shed of its own part's. Of equals the least full, then the one whose first link
 * comes first in the row. A node stays where its part would fall below a floor that the node counts against. parts
 * [num_nodes]: 0 .. num_parts - 1. loads [num_parts, num_limits]: what the parts hold, kept up to date. */
FS_API FsStatus fs_refine_parts(const FsNeighbours* graph, const FsRefinement* spec, int64_t first_turn,
                                int64_t last_turn, int32_t num_threads, int32_t* parts, int64_t* loads,
                                int64_t* out_moved);

#ifdef __cplusplus
}
#endif

#endif /* FASTSAMPLE_CLUSTERS_H_ */
