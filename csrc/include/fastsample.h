/* fastsample: the C ABI of the compiled core. Raw pointers and sizes only: no torch, no Python.
 *
 * Conventions
 *   - Every function that can fail returns an FsStatus; fs_last_error() then holds one line for the calling thread:
 *     what was found, what was expected.
 *   - Arrays are owned by the caller, contiguous and row-major, unless a comment says otherwise.
 *   - Node ids and edge positions inside one call share one integer type, `id_type` (FS_INT32 or FS_INT64).
 *   - num_threads >= 1 is the largest number of threads of a call; results never depend on it.
 *   - Random choices follow core/philox.h: they depend on (rng_seed, step, hop or layer, original node id) alone.
 */
#ifndef FASTSAMPLE_H_
#define FASTSAMPLE_H_

#include <stdint.h>

#if defined(__GNUC__)
#define FS_API __attribute__((visibility("default")))
#else
#define FS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FS_ABI_VERSION 16

typedef enum {
  FS_OK = 0,
  FS_INVALID_ARGUMENT = 1,
  FS_OUT_OF_MEMORY = 2,
  FS_DEVICE_ERROR = 3,
  FS_APP_ERROR = 4 /* a sampling application did what it must not (fastsample_transit.h) */
} FsStatus;

typedef enum {
  FS_INT32 = 0,
  FS_INT64 = 1,
  FS_FLOAT32 = 2,
  FS_FLOAT64 = 3,
  FS_BFLOAT16 = 4,
  FS_FLOAT16 = 5,
  FS_INT8 = 6,
  FS_UINT8 = 7,
  FS_INT16 = 8
} FsType;

typedef enum { FS_SUM = 0, FS_MEAN = 1, FS_MAX = 2 } FsReduce;
typedef enum { FS_IDENTITY = 0, FS_RELU = 1 } FsActivation;

/* ---- library ---- */
FS_API int32_t fs_abi_version(void);
FS_API const char* fs_last_error(void); /* of the calling thread; valid until its next failing call */

/* What the library was compiled with, for callers in other languages to compare their own declarations with. */
typedef struct {
  const char* type;   /* name of a struct; "" for a constant; NULL ends the table */
  const char* member; /* name of a field or of a constant; "" for the struct as a whole */
  int64_t value;      /* offset of the field in bytes; 0 for a struct; value of the constant */
  int64_t size;       /* bytes of the field or of the struct; 0 for a constant */
} FsAbiEntry;
FS_API const FsAbiEntry* fs_abi_entries(void); /* structs and constants of this file */

/* Refusals of values that a GPU finds as well: its caller reads the values back, and gets the line from here. */
typedef enum {
  FS_REFUSED_ROW = 0,               /* row, last row */
  FS_REFUSED_OFFSETS = 1,           /* row, its begin, its end, num_edges */
  FS_REFUSED_NEGATIVE_SOURCE = 2,   /* source */
  FS_REFUSED_SOURCE = 3,            /* source, last source */
  FS_REFUSED_NEGATIVE_SEED = 4,     /* seed, position */
  FS_REFUSED_REPEATED_SEED = 5,     /* seed, first and second position */
  FS_REFUSED_NEGATIVE_DST = 6,      /* node */
  FS_REFUSED_REPEATED_DST = 7,      /* node, first and second position */
  FS_REFUSED_NEGATIVE_NEIGHBOR = 8, /* node, position */
  FS_REFUSED_ID = 9,                /* id, position, least, largest */
  FS_REFUSED_PLACE = 10,            /* place, position, least, largest */
  FS_REFUSED_OWNER = 11             /* node that no part owns, position, least, largest */
} FsRefusal;
#define FS_REFUSAL_VALUES 4
/* Returns FS_INVALID_ARGUMENT; fs_last_error() is the line of `operation` that refuses values [FS_REFUSAL_VALUES]. */
FS_API FsStatus fs_refuse(int32_t refusal, const char* operation, const int64_t* values);

/* Instruction set of the vector kernels: "baseline", "avx2" or "avx512"; or "scalar": sampling by its definition
 * (cpu/plain_hop.cpp), slow, the rest as "baseline". fs_set_isa refuses what the machine lacks and affects the whole
 * process; every set gives the same bits. */
FS_API const char* fs_isa(void);
FS_API FsStatus fs_set_isa(const char* name);

/* ---- sampling ---- */
/* In-neighbour lists of `num_rows` nodes. Row r lists the sources of the edges into r in canonical order (ascending
 * original id); source ids may exceed num_rows when the view is a slice of a larger graph. */
typedef struct {
  const void* weights;         /* [num_edges] finite and >= 0, weight_type */
  const uint32_t* alias_table; /* [num_edges, 2], of fs_alias_tables */
  const int64_t* num_positive; /* [num_rows] edges of positive weight, or NULL: all of them */
  int32_t weight_type;         /* FS_FLOAT32 or FS_FLOAT64 */
} FsWeightTables;

typedef struct {
  const int64_t* indptr;         /* [num_rows + 1] */
  const void* indices;           /* [indptr[num_rows]], id_type */
  const int64_t* orig_ids;       /* [num_rows] original ids, or NULL: row r is original node r */
  const int64_t* src_orig_ids;   /* [num_sources] original ids of sources (FS_LABOR), or NULL: the rows' orig_ids */
  const FsWeightTables* weights; /* for FS_WEIGHTED, else NULL */
  int64_t num_rows;
  int64_t num_sources; /* length of src_orig_ids */
  int64_t num_edges;
  int32_t id_type;
} FsGraph;

typedef enum {
  FS_UNIFORM = 0,
  FS_WEIGHTED = 1, /* by edge weight: successive sampling without replacement, independent draws with it */
  FS_LABOR = 2     /* layer-neighbour sampling (core/layer_pick.h); a fanout is the mean number of picks */
} FsSampleMethod;

#define FS_TAKE_ALL (-1)

typedef struct {
  const int64_t* fanouts; /* [num_hops], hop order from the seeds outwards; FS_TAKE_ALL takes all neighbours */
  int32_t num_hops;
  int32_t first_hop;        /* hop number of fanouts[0], part of the generator's key */
  int32_t method;           /* FsSampleMethod */
  int32_t replace;          /* 0: without replacement */
  int32_t layer_dependency; /* FS_LABOR: not 0 keeps a source's variate for all hops of a step */
  int32_t edge_ids;         /* not 0: return the position of every pick in `indices` */
  int32_t num_threads;
  uint64_t rng_seed;
  uint64_t step;
} FsSampleSpec;
/* Refuses, as `operation`, what every sampling function refuses without a graph: threads, method, fanouts. */
FS_API FsStatus fs_check_sample_spec(const char* operation, const FsSampleSpec* spec);

/* One hop of a sampled mini-batch, CSC over local ids. The source nodes are nodes[0 .. num_src); the first num_dst of
 * them are the destinations. */
typedef struct {
  int64_t num_dst, num_src, num_edges;
  int64_t* indptr;     /* [num_dst + 1] */
  void* indices;       /* [num_edges] local ids < num_src, id_type */
  int64_t* edge_ids;   /* [num_edges] positions in the graph's indices, or NULL when they were not asked for */
  float* edge_weights; /* [num_edges] coefficients of the edges, or NULL where sampling gives none */
} FsHop;

/* A sampled mini-batch; owned by the library until fs_mini_batch_free. */
typedef struct {
  int32_t num_hops;
  int64_t num_nodes;
  void* nodes; /* [num_nodes] node ids: seeds first, then in order of first appearance, id_type */
  FsHop* hops; /* [num_hops], hops[0] is the seed side */
} FsMiniBatch;

/* Sample all hops of one mini-batch. seeds: [num_seeds] unique row ids, id_type. On success *out is the mini-batch.
 * Refuses duplicate seeds and ids outside 0 .. num_rows - 1, in seeds and in what is sampled.
 * Scratch stays with the calling thread and is used again: per distinct node of its largest batch at most 22 bytes of
 * int32 or 43 of int64 ids, and 16 bytes per destination of its largest hop; weighted draws 16 to 32 bytes per in-edge
 * of the longest row that needed a sum tree, FS_LABOR 8 bytes per pick. Freed batches are kept for the next, up to
 * 256 MiB in all. */
FS_API FsStatus fs_sample_mfg(const FsGraph* graph, const FsSampleSpec* spec, const void* seeds, int64_t num_seeds,
                              FsMiniBatch** out);
/* Many mini-batches at once, one per thread: batch b is that of seeds[b] [num_seeds[b]] at step spec->step + b.
 * out [num_batches]; after a failure it holds NULLs and the error is that of the first batch that failed. */
FS_API FsStatus fs_sample_many(const FsGraph* graph, const FsSampleSpec* spec, const void* const* seeds,
                               const int64_t* num_seeds, int64_t num_batches, FsMiniBatch** out);
FS_API void fs_mini_batch_free(FsMiniBatch* batch);
FS_API int64_t fs_sampler_scratch_bytes(void); /* scratch that the calling thread holds */

/* One hop without relabelling, of rows that may repeat: *out has one hop, whose indices are source ids, and no nodes.
 * Only spec->fanouts[0] is used. */
FS_API FsStatus fs_sample_neighbors(const FsGraph* graph, const FsSampleSpec* spec, const void* rows,
                                    int64_t num_rows_asked, FsMiniBatch** out);

/* The subgraph that nodes induce: all edges of the graph between them. nodes [num_nodes] unique row ids, id_type. *out
 * has one hop with num_dst = num_src = num_nodes and no nodes: row i is that of nodes[i], its neighbours in the order
 * of the graph's row as numbers of nodes, parallel edges and self-loops as often as they are; edge_ids not 0: their
 * positions too. Refuses a node that repeats, and ids that are no rows in nodes and in their rows. Costs the edges of
 * these rows. Scratch stays with the calling thread: of graphs of up to 2^24 nodes at most 4.25 bytes per node, of
 * larger ones at most 67 bytes (int32: 38) per node of its largest subgraph; 16 bytes per node of its largest subgraph.
 */
FS_API FsStatus fs_induced_subgraph(const FsGraph* graph, const void* nodes, int64_t num_nodes, int32_t edge_ids,
                                    int32_t num_threads, FsMiniBatch** out);

/* ---- memory ---- */
/* Asks the system to hold bytes [0, count) in huge pages, where it can (Linux). With `now` not 0, pages that exist
 * already are gathered into huge ones at once. Contents stay; nothing fails. */
FS_API void fs_advise_huge_pages(const void* bytes, int64_t count, int32_t now);

/* Relabel one hop. dst_nodes [num_dst] unique, neighbors [num_edges]. out_src_nodes has room for num_dst + num_edges
 * ids and receives *out_num_src of them: dst_nodes first, then the new ones in order of first appearance; out_indices
 * [num_edges] are the local ids of `neighbors`. */
FS_API FsStatus fs_compact(int32_t id_type, const void* dst_nodes, int64_t num_dst, const void* neighbors,
                           int64_t num_edges, void* out_src_nodes, void* out_indices, int64_t* out_num_src);

/* ---- alias tables: drawing edges by weight ---- */
typedef struct {
  const int64_t* indptr; /* [num_rows + 1] */
  const void* weights;   /* [num_edges] of `type`: finite, >= 0 */
  int64_t num_rows, num_edges;
  int32_t type; /* FS_FLOAT32 or FS_FLOAT64 */
  int32_t num_threads;
} FsEdgeWeights;

/* One table per row (core/alias.h): out_table [num_edges, 2] = threshold and alias of each edge; out_num_positive
 * [num_rows] = edges of positive weight. Scratch: 12 bytes per edge of the longest row and thread.
 * Refuses a weight that is negative, infinite or NaN, and a row of 2^31 edges or more. */
FS_API FsStatus fs_alias_tables(const FsEdgeWeights* edges, uint32_t* out_table, int64_t* out_num_positive);

/* ---- features ---- */
/* out[i] = rows[ids[i]]: rows [num_rows, row_bytes], ids [num_ids] id_type, out [num_ids, row_bytes]. */
FS_API FsStatus fs_gather_rows(const void* rows, int64_t num_rows, int64_t row_bytes, int32_t id_type, const void* ids,
                               int64_t num_ids, void* out, int32_t num_threads);

#define FS_ROW_BITS 48
#define FS_MOST_TABLES 64

#define FS_SCALE_BYTES 4

/* A table's rows. Scaled rows are FS_INT8 numbers and one float32 scale per row: a value is number * scale in float32.
 * Their scales lie in an array of their own, or behind each row's numbers (packed: row_width + FS_SCALE_BYTES bytes a
 * row, scales == rows + row_width), at any address. */
typedef struct {
  const void* rows; /* [num_rows, row_width] in_type */
  int64_t num_rows;
  const void* scales;               /* of scaled rows: float32 of row i, i * scale_stride bytes further */
  int32_t row_stride, scale_stride; /* of scaled rows: bytes from one to the next; others are contiguous */
} FsRowTable;
/* Rows that are read where they lie (a rank's own, then those of others that are in reach) and rows that were fetched.
 */
typedef struct {
  const FsRowTable* tables; /* [num_tables], 1 to FS_MOST_TABLES; 0 is the rank's own */
  const void* fetched;      /* [num_fetched, row_width] fetched_type; packed where rows are scaled */
  int64_t num_fetched, row_width;
  int32_t num_tables;
  int32_t in_type;
  int32_t fetched_type; /* in_type, or out_type where the sender has converted already */
  int32_t is_scaled;    /* all rows are; then in_type and fetched_type are FS_INT8 */
} FsRowTables;
/* out[i] is the row at places[i]: if < 0, row -1 - place of `fetched`; else row (place mod 2^FS_ROW_BITS) of table
 * (place >> FS_ROW_BITS). Converted from in_type to out_type (equal types, or any of float32/float16/bfloat16/float64/
 * int8/uint8/int16 to float32, float64 or bfloat16). Scaled rows give their values, or packed rows for FS_INT8.
 * places [num_out] int64, out [num_out, row_width] out_type. */
FS_API FsStatus fs_merge_rows(const FsRowTables* tables, const int64_t* places, int64_t num_out, int32_t out_type,
                              void* out, int32_t num_threads);

/* Group ids by owner. part_ranges [num_parts + 1]: part p owns ids part_ranges[p] .. part_ranges[p + 1] - 1.
 * out_ids [num_ids]: grouped by part, input order inside a group; out_counts [num_parts];
 * out_places [num_ids]: out_ids[out_places[i]] == ids[i] (the way back). */
FS_API FsStatus fs_bucket_by_part(int32_t id_type, const void* ids, int64_t num_ids, const int64_t* part_ranges,
                                  int64_t num_parts, void* out_ids, int64_t* out_counts, int64_t* out_places);

typedef enum {
  FS_SLOTS_NONE = 0,
  FS_SLOTS_DENSE = 1,    /* int32 [num_slots]: the slot of every node, -1 without one; num_slots nodes in all */
  FS_SLOTS_HASHED32 = 2, /* int32 [num_slots, 2]: pairs of node and slot (core/row_index.h), num_slots a power of two */
  FS_SLOTS_HASHED64 = 3  /* int64 [num_slots, 2] */
} FsSlotKind;

/* Where the rows of all nodes can be read. Range k holds the nodes ranges[k] .. ranges[k + 1] - 1. */
typedef struct {
  const int64_t* ranges;     /* [num_ranges + 1], non-decreasing */
  const int32_t* owners;     /* [num_ranges]: 0 .. num_owners - 1, non-decreasing */
  const int32_t* tables;     /* [num_ranges]: the table of merge_rows that holds their rows; -1: none in reach */
  const int64_t* first_rows; /* [num_ranges]: row of the range's first node in that table */
  const void* slots;         /* rows of `cache_table` by node; NULL for FS_SLOTS_NONE */
  int64_t num_slots;
  int32_t num_ranges;
  int32_t num_owners;
  int32_t num_own_tables; /* tables below this number are the rank's own, the others those of its neighbours */
  int32_t cache_table;
  int32_t slot_kind; /* FsSlotKind */
} FsRowIndex;
/* The place of every node's row for merge_rows, searched in the tables, then in the cache; what is in neither is
 * missing and its place is -1 - its position in out_missing. nodes [num_nodes] id_type, out_places [num_nodes],
 * out_missing [num_nodes] id_type: grouped by owner, input order inside a group;
 * out_counts [num_owners + 3]: missing nodes by owner, own, near and cached nodes.
 * Refuses a node outside the ranges. */
FS_API FsStatus fs_locate_rows(const FsRowIndex* index, int32_t id_type, const void* nodes, int64_t num_nodes,
                               int32_t num_threads, int64_t* out_places, void* out_missing, int64_t* out_counts);
/* Pairs of node and slot for FsRowIndex: slot i holds nodes[i], nodes [num_nodes] int64, each once. out_pairs
 * [num_slots, 2] id_type, num_slots a power of two above num_nodes. */
FS_API FsStatus fs_hash_slots(const int64_t* nodes, int64_t num_nodes, int32_t id_type, int64_t num_slots,
                              void* out_pairs);

/* ---- sorting edges that do not fit into memory (partition/external) ---- */
/* A piece of an edge list. */
typedef struct {
  const void* src;              /* [num_edges] id_type */
  const void* dst;              /* [num_edges] id_type */
  const void* weights;          /* [num_edges] weight_type, or NULL */
  int64_t num_edges, num_nodes; /* num_nodes < 2^32 */
  int64_t first_edge;           /* position of the piece in the list, for messages */
  int32_t id_type;
  int32_t weight_type; /* FS_FLOAT32 or FS_FLOAT64 */
  int32_t undirected;  /* not 0: an edge counts for both of its ends, a self-loop once */
} FsEdgeList;

/* degrees [num_nodes]: adds the number of edges into each node. Refuses ids outside 0 .. num_nodes - 1. */
FS_API FsStatus fs_edge_degrees(const FsEdgeList* edges, int64_t* degrees);
/* Edges grouped by bucket, in listing order inside a bucket; room for num_edges of the list, or twice as many if it is
 * undirected. */
typedef struct {
  uint64_t* keys;  /* destination << 32 | source */
  void* weights;   /* weight_type of the list, or NULL */
  void* positions; /* of the edges in the whole list, position_type; or NULL */
  int64_t* counts; /* [num_buckets] */
  int32_t position_type;
} FsGroupedEdges;
/* Group edges by ranges of destinations: bucket b has the nodes bounds[b] .. bounds[b + 1] - 1, bounds [num_buckets +
 * 1], at most 2^15 buckets. */
FS_API FsStatus fs_group_edges(const FsEdgeList* edges, const int64_t* bounds, int64_t num_buckets,
                               const FsGroupedEdges* out);

/* All edges of a range of destinations. */
typedef struct {
  uint64_t* keys;  /* [num_edges] as from fs_group_edges; the sources take their place, id_type */
  void* weights;   /* [num_edges] weight_type, sorted in place; or NULL */
  void* positions; /* [num_edges] position_type, sorted in place; or NULL */
  int32_t* counts; /* [num_edges] or NULL, with merge alone: how many equal edges each one that stays stands for */
  int64_t num_edges, first_row, num_rows;
  int32_t id_type;
  int32_t weight_type;
  int32_t position_type; /* FS_INT32 or FS_INT64 */
  int32_t merge;         /* not 0: of edges with equal ends the first stays */
  int32_t num_threads;
  int64_t* unlike; /* or NULL; with merge: how many edges with source >= destination, so that of both directions one
                      counts, were merged into one of another weight */
} FsEdgeBucket;
/* Sort by (destination, source), equal edges by weight and then as they are listed; with merge, of equal edges the
 * first alone. out_degrees [num_rows]; *out_num_edges is their sum. Scratch per edge: 4 bytes for its source, 4 or 8
 * for a weight and for a position, rounded up to a multiple of 8 where either takes 8; with weights and without
 * positions half of that for the longest row; 8 bytes per row. */
FS_API FsStatus fs_sort_edges(const FsEdgeBucket* bucket, int64_t* out_degrees, int64_t* out_num_edges);

/* Read num_ranges pieces of an open file, begins [num_ranges] and sizes [num_ranges] in bytes, one after the other
 * into out. Fastest when begins ascend. */
FS_API FsStatus fs_read_ranges(int32_t fd, const int64_t* begins, const int64_t* sizes, int64_t num_ranges, void* out);

/* Every interval_ms, give the pages of this process's mappings of a file back to the system, until another thread sets
 * *stop to other than 0. The file's bytes stay what they are: for a mapping of another library, which reads it once and
 * would hold all of it. path is the one that /proc/self/maps shows: absolute, without links. Other systems than Linux
 * 5.4: nothing is given back. */
FS_API FsStatus fs_page_out_file(const char* path, int64_t interval_ms, const int32_t* stop);

/* ---- aggregation over the in-edges of an MFG ---- */
typedef struct {
  const int64_t* indptr; /* [num_dst + 1] */
  const void* indices;   /* [num_edges] local source ids, id_type */
  int64_t num_dst, num_src, num_edges;
  int32_t id_type;
  int32_t reduce;      /* FsReduce; a row without in-edges gives zeros */
  const void* weights; /* [num_edges, num_heads] of `type`, or NULL: all ones */
  int64_t num_heads;   /* columns are split evenly between heads; 1 without weights */
  int64_t width;       /* columns of x */
  int32_t type;        /* FS_FLOAT32, FS_FLOAT64 or FS_BFLOAT16 (accumulated in float32) */
  int32_t num_threads;
  /* CPU: in which order, which changes no bit of a result. Columns that are added up at a time: at most so many,
   * 0: as many as registers hold. tiles_outer 0: all tiles of a row before the next row, threads share the rows;
   * 1: all rows of a tile before the next tile, threads share the tiles. */
  int64_t tile;
  int32_t tiles_outer;
} FsAggregation;

/* out [num_dst, out_stride] with out_stride >= width (in elements): out[v] = reduce over in-edges e of w[e] *
 * x[src(e)]. x [num_src, width]. For FS_MAX, out_arg [num_dst, width] receives the edge that won (the first of equals;
 * -1: none). */
FS_API FsStatus fs_aggregate(const FsAggregation* spec, const void* x, void* out, int64_t out_stride, int64_t* out_arg);
/* out [num_dst, 2 * width]: the destination's own row x[v] and, to the right of it, what fs_aggregate gives. Refuses
 * more destinations than sources. */
FS_API FsStatus fs_aggregate_concat(const FsAggregation* spec, const void* x, void* out, int64_t* out_arg);
/* Gradients. grad_out [num_dst, grad_stride]; x and arg (FS_MAX) as in the forward call.
 * out_grad_x [num_src, width] or NULL; out_grad_weights [num_edges, num_heads] or NULL. */
FS_API FsStatus fs_aggregate_backward(const FsAggregation* spec, const void* x, const int64_t* arg,
                                      const void* grad_out, int64_t grad_stride, void* out_grad_x,
                                      void* out_grad_weights);
/* The gradient of x, out_grad_x [num_src, width], from grad_out [num_dst, 2 * width]. Sum or mean. */
FS_API FsStatus fs_aggregate_concat_backward(const FsAggregation* spec, const void* grad_out, void* out_grad_x);

/* ---- partitioning ---- */
typedef enum { FS_LDG = 0, FS_FENNEL = 1 } FsStreamScore;
#define FS_STREAM_LIMITS 10 /* nodes, in-edges, and nodes of each of 8 kinds */

typedef struct {
  const int64_t* indptr;     /* [num_nodes + 1] */
  const void* indices;       /* [num_edges] neighbours, id_type */
  const int64_t* order;      /* [num_nodes] the nodes in the order in which they come, or NULL: ascending */
  const int64_t* in_edges;   /* [num_nodes] in-edges of each node, or NULL: the lengths of the rows */
  const uint8_t* kinds;      /* [num_nodes] bit k: the node is of kind k; or NULL: of none */
  const int64_t* capacities; /* [FS_STREAM_LIMITS] most of each that a part may hold; INT64_MAX: any number */
  int64_t num_nodes, num_edges;
  int32_t num_parts;
  int32_t id_type;
  int32_t score;        /* FsStreamScore */
  int32_t rows_by_turn; /* not 0: the rows lie in the order of the turns, one after the other, as long as in indptr */
  double alpha;         /* of FS_FENNEL */
  uint64_t rng_seed;    /* decides between parts that are equal in everything else */
} FsStream;

/* One pass over the nodes. parts [num_nodes]: on entry the part of each node or -1, on return the part of each. A node
 * leaves its part and takes, of the parts that have room for it, the one of highest score; of equals the least full,
 * then the first, counting from a part drawn from (rng_seed, node) by Philox. Where no part has room it takes the one
 * that is exceeded least. A part's fill is its largest load as a share of the capacity. With n = neighbours in the
 * part: LDG n * (1 - fill), Fennel n - alpha * 1.5 * sqrt(fill * capacities[0]). Cost: O(num_edges + num_nodes *
 * num_parts). */
FS_API FsStatus fs_stream_partition(const FsStream* spec, int32_t* parts);

/* The nodes in the order of a breadth-first search: from node 0, then from the first node that was not found, until all
 * are; a node's neighbours in ascending order, whatever the order of its row. order [num_rows]. Uses indptr, indices,
 * num_rows (below 2^31) and num_edges of the graph, and refuses a neighbour that is no row. The rows of a level are
 * read by ascending node. Scratch: 4.25 bytes per node. Cost: O(num_edges + num_rows log num_rows). */
FS_API FsStatus fs_bfs_order(const FsGraph* graph, int64_t* order);

/* ---- scores of nodes ---- */
#define FS_HAZARD_BITS 48      /* a hazard is -ln(1 - p) in units of 2^-48 */
#define FS_MOST_HAZARD_BITS 61 /* sums of hazards are cut to 2^61 */

typedef struct {
  const int64_t* indptr;  /* [num_nodes + 1] */
  const void* indices;    /* [num_edges] in-neighbours, id_type; rows in canonical order */
  const void* weights;    /* [num_edges] of weight_type, finite, >= 0; or NULL: picks are uniform */
  const int64_t* hazards; /* [num_nodes] of each node to be a destination of the hop, 0 .. 2^61 */
  int64_t num_nodes, num_edges;
  int64_t fanout;  /* picks per destination; FS_TAKE_ALL: all neighbours */
  int32_t replace; /* 0 or 1 */
  int32_t id_type;
  int32_t weight_type; /* FS_FLOAT32 or FS_FLOAT64 */
  int32_t num_threads;
} FsInclusion;

/* out_hazards [num_nodes]: of each node to be picked by a destination of one hop of neighbour sampling, destinations
 * and picks taken as independent (SALIENT++, section 3.2). The same for every num_threads. A probability of 1 - 2^-46
 * and more counts as 1 and adds 32 * 2^48. Only the rows of nodes whose hazard is not 0 are read. Refuses offsets,
 * source ids, weights and hazards out of range. Scratch: 16 bytes per edge of the longest row and thread with weights.
 * Cost: O(num_nodes + num_edges); weighted without replacement times the steps of Newton's method. */
FS_API FsStatus fs_inclusion_probabilities(const FsInclusion* spec, int64_t* out_hazards);

/* ---- activation fused with dropout ---- */
#define FS_DROP_VARIATES 65536 /* a mask compares 16-bit variates */
#define FS_SUM_ROWS 256        /* rows whose sums are made one after the other */

typedef struct {
  const int64_t* node_ids; /* [num_rows] original node ids: the mask's key */
  int64_t num_rows, width;
  int32_t type; /* FS_FLOAT32, FS_FLOAT64 or FS_BFLOAT16 */
  int32_t activation;
  uint32_t drop_threshold; /* drop probability * FS_DROP_VARIATES: an element whose variate is below it is dropped */
  int32_t num_threads;
  uint64_t rng_seed, step, layer;
  const void* bias; /* [width] of `type`, or NULL: added to every row before the activation */
} FsActDropout;

/* y = keep ? activation(x + bias) * 65536 / (65536 - drop_threshold) : 0. x, y [num_rows, width]; y may be x.
 * node_ids may be NULL when drop_threshold is 0. */
FS_API FsStatus fs_act_dropout(const FsActDropout* spec, const void* x, void* y);
/* grad_x from grad_y; y is the forward result (read for FS_RELU, may be NULL for FS_IDENTITY). */
FS_API FsStatus fs_act_dropout_backward(const FsActDropout* spec, const void* y, const void* grad_y, void* grad_x);
/* The same, and the sum of grad_x's rows, the gradient of the bias, is added to sums [width]: double for FS_FLOAT64,
 * else float. FS_SUM_ROWS rows are summed one after the other, then these sums are added in turn, so sums are the same
 * for every num_threads, and for runs of a multiple of FS_SUM_ROWS rows as for all rows. Scratch: a row of sums for
 * every FS_SUM_ROWS rows. */
FS_API FsStatus fs_act_dropout_backward_sums(const FsActDropout* spec, const void* y, const void* grad_y, void* grad_x,
                                             void* sums);

/* Whether products of bfloat16 run on the processor's matrix units (Intel AMX): 0 or 1. Asks the system once. */
FS_API int32_t fs_has_matrix_units(void);
/* fs_act_dropout_backward_sums of FS_BFLOAT16, and the gradient of the weight: out_weight [width, num_columns] is
 * grad_x^T inputs, with inputs [num_rows, num_columns] of FS_BFLOAT16, summed in float32 and rounded once. Runs of a
 * fixed number of rows are summed by themselves, so sums are the same for every num_threads; subnormal numbers count as
 * zero. grad_x and sums may be NULL: not asked for. Refused without matrix units. Scratch: 4 bytes per element of
 * out_weight for every 4096 rows, and at most 2 * (width + num_columns) KB per thread. */
FS_API FsStatus fs_weight_gradient(const FsActDropout* spec, const void* y, const void* grad_y, void* grad_x,
                                   float* sums, const void* inputs, int64_t num_columns, void* out_weight);

#ifdef __cplusplus
}
#endif
#endif /* FASTSAMPLE_H_ */
