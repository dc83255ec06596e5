/* fastsample_cuda: the operators that run on NVIDIA GPUs. Same conventions as fastsample.h; pointers are device
 * pointers and `stream` is a cudaStream_t. A call with a stream enqueues work and returns; it never synchronises. */
#ifndef FASTSAMPLE_CUDA_H_
#define FASTSAMPLE_CUDA_H_

#include "fastsample.h"
#include "fastsample_transit.h"

#ifdef __cplusplus
extern "C" {
#endif

FS_API int32_t fs_cuda_abi_version(void);
FS_API const char* fs_cuda_last_error(void);
/* As fs_abi_entries: structs and constants of this file, and the structs of fastsample.h that it takes. */
FS_API const FsAbiEntry* fs_cuda_abi_entries(void);

/* ---- host memory that kernels read over the bus ---- */
/* Pins pages, the first of which begins at `address`; kernels then read them under the host's pointers. The current
 * device's context is made where there is none. */
FS_API FsStatus fs_cuda_pin_pages(void* address, int64_t num_bytes);
/* Waits for all work of the current device, which may read the pages, and unpins them. */
FS_API FsStatus fs_cuda_unpin_pages(void* address);
/* Copies words from device memory to pinned host memory by a kernel: behind kernels that still run, enqueueing a copy
 * takes the host several times as long as a launch. They are there when an event behind it has come. */
FS_API FsStatus fs_cuda_publish_words(const int64_t* from, int64_t* to, int64_t count, void* stream);

/* ---- sampling ---- */
#define FS_CUDA_MAX_HOPS 16

/* Bounds of a mini-batch, by which its arrays are allocated: nothing is read back before all hops are done. */
typedef struct {
  int64_t max_nodes;  /* distinct nodes of the batch */
  int64_t max_degree; /* of the graph */
  int64_t max_rows[FS_CUDA_MAX_HOPS];
  int64_t max_edges[FS_CUDA_MAX_HOPS];
  int64_t max_tasks;   /* of the persistent kernel's queue; 0 for the other kernels */
  int64_t grid_blocks; /* of the one launch for all hops (persistent or cooperative) on the current device; else 0 */
  int64_t state_words; /* of 8 bytes, at the start of the workspace */
  int64_t table_nodes; /* distinct nodes that the id table has room for; below max_nodes, a batch may need more */
  int64_t table_words; /* of FsCudaBatch's table; 0: the ids are hashed in the workspace */
  int64_t workspace_bytes; /* scratch of one call */
} FsCudaSampleSizes;

/* What recorded launches of a batch read anew in every replay, in pinned host memory. */
typedef struct {
  uint64_t step;    /* in place of spec->step */
  const void* ids;  /* in place of FsCudaSeeds.ids, as many */
  int64_t moved_by; /* bytes from the batch's arrays to those that fs_cuda_hand_out writes */
} FsCudaReplay;

typedef struct {
  const void* ids; /* [count] unique row ids, id_type; for sample_neighbors rows that may repeat */
  int64_t count;
  const FsCudaReplay* replay; /* or NULL; not of sample_neighbors */
} FsCudaSeeds;

#define FS_CUDA_BAD_SEED_WORD 0
#define FS_CUDA_REPEATED_SEED_WORD 1
#define FS_CUDA_TABLE_FULL_WORD 4
#define FS_CUDA_REPLAY_WORD 5
#define FS_CUDA_FIRST_HOP_WORD 8
#define FS_CUDA_HOP_WORDS 5

/* Where a mini-batch goes; everything is device memory. When the enqueued work is done the workspace starts with
 * state_words words of 64 bits, ~0 where nothing is wrong:
 *   [0] position of the first seed that is not a row, [1] of the first seed that is repeated, [2] number of seeds,
 * [3] the batch's stamp, [4] 0: the id table had too little room, nothing else holds, and the batch is to be sampled
 * again with sizes for more, from [FS_CUDA_REPLAY_WORD] on what was read of FsCudaReplay, and
 *   for hop h from [FS_CUDA_FIRST_HOP_WORD + FS_CUDA_HOP_WORDS * h] on: num_edges; the first row that does not exist;
 * the first edge whose source does not exist; the first row with such a source among all its neighbours (FS_LABOR);
 * num_src (not of sample_neighbors). */
typedef struct {
  void* nodes;                         /* [max_nodes] id_type */
  int64_t* indptr[FS_CUDA_MAX_HOPS];   /* [max_rows + 1] each */
  void* indices[FS_CUDA_MAX_HOPS];     /* [max_edges] each, id_type */
  int64_t* edge_ids[FS_CUDA_MAX_HOPS]; /* [max_edges] each, or NULL */
  void* workspace;                     /* [workspace_bytes] aligned to 256 bytes */
  uint64_t* table;                     /* [table_words], a word per node of the graph and one more; NULL where there are
                                          none. ~0 before its first batch, then left as the batch before left it: batches
                                          that use it follow one another on a stream. Not read by sample_neighbors */
} FsCudaBatch;

/* The graph's arrays must be readable by the device: its own memory, or pinned host memory. indptr must not decrease,
 * and max_degree is its largest step. expected_nodes: distinct nodes that a batch is expected to have at most, or 0:
 * then its id table has room for all that can come; else for so many where that makes a large table much smaller.
 * relabels: 1 for fs_cuda_sample_mfg, 0 for fs_cuda_sample_neighbors. Host arithmetic only. */
FS_API FsStatus fs_cuda_sample_sizes(const FsGraph* graph, const FsSampleSpec* spec, int64_t num_seeds,
                                     int64_t max_degree, int64_t expected_nodes, int32_t relabels,
                                     FsCudaSampleSizes* out);
/* Enqueue all hops of one mini-batch (as fs_sample_mfg). Weights and alias tables are device memory like the graph. */
FS_API FsStatus fs_cuda_sample_mfg(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* seeds,
                                   const FsCudaSampleSizes* sizes, const FsCudaBatch* batch, void* stream);
/* Enqueue, behind all hops of a batch with a replay, copies of its arrays at their sizes, moved_by bytes from where
 * they are, and of its state words to `words` in pinned host memory. What is refused leaves unusable copies. */
FS_API FsStatus fs_cuda_hand_out(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSampleSizes* sizes,
                                 const FsCudaBatch* batch, int64_t* words, void* stream);
/* Enqueue one hop without relabelling (as fs_sample_neighbors): indices are source ids. */
FS_API FsStatus fs_cuda_sample_neighbors(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* rows,
                                         const FsCudaSampleSizes* sizes, const FsCudaBatch* batch, void* stream);

/* ---- features ---- */
/* Copies of some rows of a table, in device memory. The table itself may then lie in pinned host memory: a row that has
 * a copy is read here, any other there. */
typedef struct {
  const void* rows;   /* [num_rows] of the table's row size */
  const void* places; /* one per row of the table, place_type: >= 0 the row of the copy, < 0 there is none */
  int64_t num_rows;
  int32_t place_type; /* FS_INT32 or FS_INT64 */
} FsCudaRowCache;

typedef struct {
  const void* rows; /* [num_rows, row_bytes] in device memory or pinned host memory */
  int64_t num_rows, row_bytes;
  const FsCudaRowCache* cache; /* or NULL */
} FsCudaRows;

typedef enum { FS_CUDA_GATHER_ROWS = 1, FS_CUDA_MERGE_ROWS = 2 } FsCudaRowOperation;

#define FS_CUDA_MAILBOX_WORDS 5
#define FS_CUDA_MAILBOX_TAKEN (-1) /* its first word while one bad place is being written */

/* Where an id or place outside the tables is reported; each may be NULL. Its output row is filled with zeros. */
typedef struct {
  uint64_t* first;  /* device memory, ~0 before: becomes the least position of a bad one */
  int64_t* mailbox; /* pinned host memory [FS_CUDA_MAILBOX_WORDS], its first word 0 before: {FsCudaRowOperation, the bad
                       place, its position, least and largest place} of any bad one, for the host to find later without
                       waiting. The first word is written last; the host empties the mailbox by setting it to 0 */
  const int64_t* order; /* device memory, one per row: the position that is reported for the i-th; NULL: i */
} FsCudaBadPlace;

/* out[i] = rows[ids[i]]: ids [num_ids] id_type, out [num_ids, row_bytes]. */
FS_API FsStatus fs_cuda_gather_rows(const FsCudaRows* rows, int32_t id_type, const void* ids, int64_t num_ids,
                                    void* out, const FsCudaBadPlace* bad, void* stream);
/* As fs_merge_rows; tables->tables itself is in host memory, and its rows may lie in pinned host memory. cache (or
 * NULL) is of table 0; where rows are scaled, its rows are packed. */
FS_API FsStatus fs_cuda_merge_rows(const FsRowTables* tables, const FsCudaRowCache* cache, const int64_t* places,
                                   int64_t num_out, int32_t out_type, void* out, const FsCudaBadPlace* bad,
                                   void* stream);

/* Bytes of fs_cuda_bucket_by_part's scratch. Host arithmetic only. */
FS_API int64_t fs_cuda_bucket_by_part_workspace(int64_t num_ids, int64_t num_parts);
/* As fs_bucket_by_part, everything in device memory. out_report [1 + num_parts]: the position of the first id that no
 * part owns (-1: there is none; else the results are unusable), then the counts. workspace is aligned to 256 bytes. */
FS_API FsStatus fs_cuda_bucket_by_part(int32_t id_type, const void* ids, int64_t num_ids, const int64_t* part_ranges,
                                       int64_t num_parts, void* out_ids, int64_t* out_places, int64_t* out_report,
                                       void* workspace, void* stream);

/* Bytes of fs_cuda_compact's scratch. Host arithmetic only. */
FS_API int64_t fs_cuda_compact_workspace(int32_t id_type, int64_t num_dst, int64_t num_edges);
/* As fs_compact, everything in device memory. out_report [4]: num_src, then -1 where nothing is wrong: the first
 * position of dst_nodes with a negative id, the first with a repeated id, the first position of neighbors with a
 * negative id. workspace is aligned to 256 bytes. */
FS_API FsStatus fs_cuda_compact(int32_t id_type, const void* dst_nodes, int64_t num_dst, const void* neighbors,
                                int64_t num_edges, void* out_src_nodes, void* out_indices, int64_t* out_report,
                                void* workspace, void* stream);

/* ---- the persistent kernel ---- */
/* Why it ended; ~0: it has not run, because there was no seed or no hop. */
typedef enum {
  FS_CUDA_QUEUE_DONE = 0,  /* every task is done */
  FS_CUDA_QUEUE_STUCK = 1, /* the watchdog: for patience_ns no task was begun, queued or finished */
  FS_CUDA_QUEUE_FULL = 2   /* no room for a task or for its picks */
} FsCudaQueueEnd;
#define FS_CUDA_QUEUE_WORDS 80
#define FS_CUDA_QUEUE_END_WORD 64 /* FsCudaQueueEnd, then what the kernel saw */

/* A warp takes least_fetch .. most_fetch tasks from the queue at once, at least 1. Results never depend on it. */
typedef struct {
  int64_t least_fetch, most_fetch;
  uint64_t patience_ns;
} FsCudaQueueOptions;

/* Bounds of a mini-batch whose neighbours are drawn by one launch for all hops (PGSampler). The state's last
 * FS_CUDA_QUEUE_WORDS words are those of the task queue: [64] why it ended and, unless it is done, [65] block, [66]
 * warp in the block, [67] task that it waited for or had no room for, [68] tickets handed out, [69] tasks, [70] of them
 * finished. Uniform draws only. */
FS_API FsStatus fs_cuda_persistent_sizes(const FsGraph* graph, const FsSampleSpec* spec, int64_t num_seeds,
                                         int64_t max_degree, int64_t expected_nodes, FsCudaSampleSizes* out);
/* As fs_cuda_sample_mfg, with sizes of fs_cuda_persistent_sizes: the same mini-batch. */
FS_API FsStatus fs_cuda_persistent_mfg(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* seeds,
                                       const FsCudaSampleSizes* sizes, const FsCudaBatch* batch,
                                       const FsCudaQueueOptions* options, void* stream);

/* ---- the cooperative kernel ---- */
#define FS_CUDA_BARRIER_WORDS 32
#define FS_CUDA_BARRIER_END_WORD 16 /* ~0, or the barrier at which it gave up, then what it saw */

/* Bounds of a mini-batch whose hops are sampled by one cooperative launch, with barriers of its grid in place of
 * further launches. The state's last FS_CUDA_BARRIER_WORDS words are those of the barriers: [16] ~0 or, where a block
 * waited too long, the number of the barrier from 1, [17] the block, [18] blocks that had come, [19] of so many.
 * Uniform draws only. */
FS_API FsStatus fs_cuda_cooperative_sizes(const FsGraph* graph, const FsSampleSpec* spec, int64_t num_seeds,
                                          int64_t max_degree, int64_t expected_nodes, FsCudaSampleSizes* out);
/* As fs_cuda_sample_mfg, with sizes of fs_cuda_cooperative_sizes: the same mini-batch. A block that has waited for
 * patience_ns at a barrier ends the kernel. */
FS_API FsStatus fs_cuda_cooperative_mfg(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* seeds,
                                        const FsCudaSampleSizes* sizes, const FsCudaBatch* batch, uint64_t patience_ns,
                                        void* stream);

/* ---- applications ---- */
/* Where samples go; everything is device memory. Vertex j of sample i, as FsTransitResult counts them, is
 * vertices[offsets[i] + j] or, without offsets, vertices[j * num_samples + i], which kernels write side by side. */
typedef struct {
  int64_t* vertices; /* [num_vertices] */
  int64_t* offsets;  /* of samples that differ in length (until_done, FS_NEXT_ALL) [num_samples + 1]: room for the roots
                        and lengths[i] picks each; else NULL */
  int64_t* lengths;  /* of these [num_samples] of fs_cuda_transit_lengths; until_done: becomes the picks made */
  const int64_t* by_length; /* until_done: [num_samples] positions of the samples, those of larger lengths first; else
                               NULL */
  const int64_t* live;      /* until_done, of a schedule that groups: host memory [num_steps], samples whose lengths are
                               above k; else NULL */
  int64_t* state;           /* FS_NEXT_MULTI_RW: [num_roots + 2, num_samples] scratch; else NULL */
  uint64_t* keys;           /* [num_steps], of FS_NEXT_MULTI_RW [2 * num_steps]: scratch */
  uint64_t* failure; /* ~0 before: step << FS_CUDA_SAMPLE_BITS | position of the sample that first met an id which is no
                        node; of several steps the first, of several samples the first. The id stands in its place */
  void* workspace;   /* of fs_cuda_transit_workspace, aligned to 256 bytes */
  const uint64_t* draw; /* [2] rng_seed and step that kernels read in place of the request's, or NULL. For captured
                           launches */
  int64_t num_steps;    /* to make: those of the application; until_done: the most of lengths */
} FsCudaSamples;

#define FS_CUDA_SAMPLE_BITS 40

/* What a sample's length depends on, [num_samples]: the steps that FS_NEXT_PPR draws for it; of FS_NEXT_ALL the degrees
 * of its roots together. params[0] of the application is a device address, as are the request's arrays. */
FS_API FsStatus fs_cuda_transit_lengths(const FsGraph* graph, const FsTransitApp* app, const FsTransitRequest* request,
                                        int64_t* out_lengths, void* stream);
/* Scratch of a call on the current device; 0 unless the schedule groups by transit or more than 256 picks of a sample
 * are to be distinct. Refuses more slots (num_samples * num_transits of a step) to group than fit into a key of 64 bits
 * beside num_nodes. Enqueues nothing. */
FS_API FsStatus fs_cuda_transit_workspace(const FsTransitApp* app, const FsTransitRequest* request, int64_t num_nodes,
                                          int64_t num_steps, int64_t* out_bytes, void* stream);
/* As fs_transit_sample. FS_SCHEDULE_SAMPLE (and _AUTO): walks by one launch for all steps, a thread each; steps of
 * several picks by a launch each, a thread a pick. FS_SCHEDULE_TRANSIT: pairs of transit and sample are sorted, short
 * runs are taken by groups of lanes, tiles of longer ones by blocks that read the row once; _FLAT: a thread a pick in
 * sorted order. FS_NEXT_UNIFORM, FS_NEXT_WEIGHTED, FS_NEXT_NODE2VEC, FS_NEXT_PPR of one root, FS_NEXT_MULTI_RW,
 * FS_NEXT_ALL of one step; callbacks: fs_cuda_app_steps. Where picks are to be distinct, one more launch draws repeated
 * ones again. Host memory: the structs, sample_sizes, num_transits, unique and params. Roots are nodes or FS_NULL_NODE.
 * Nothing is read back: the work of a call may be captured, and replayed for other roots, sample ids and draws. */
FS_API FsStatus fs_cuda_transit_sample(const FsGraph* graph, const FsTransitTables* tables, const FsTransitApp* app,
                                       const FsTransitRequest* request, const FsCudaSamples* out, void* stream);

/* ---- applications of a user's own ---- */
/* `next`, `step_transits` and `initial` are FsStepKernels here as well, called by the threads of kernels for one slot
 * at a time (end is begin + 1, task->slots is NULL). On a device the first one is
 *
 *   extern "C" __device__ int32_t fs_app_next(const FsStepTask* task, int64_t begin, int64_t end);
 *
 * and fs_app_step_transits and fs_app_initial are like it. The kernels that call them are in fastsample_apps.fatbin, as
 * LTO IR, beside the library: who has compiled the functions links both to a cubin, without the kernels that call what
 * there is not. The emulator calls FsTransitApp's functions, which are the CPU's.
 *
 * Vertices of level k (0: the roots, k + 1: the picks of step k) stand sample by sample, [num_samples, widths[k]]. */
typedef struct {
  FsStepTask task; /* graph, tables, params, sample_ids, vertices, strides and widths (equal), state, failed_slot (any
                      word): device memory, and so is what these lead to; num_samples, num_roots, state_words. The
                      rest is set step by step, but rng_seed and step */
  void* app;       /* of fs_cuda_load_app; NULL for the emulator */
  int64_t* const* levels; /* host: addresses of the levels first_step .. end_step; the steps' picks go to those behind
                             the first, the roots to level 0 */
  int64_t* transits;      /* with step_transits: [num_samples * transits of a step, at most] */
  uint8_t* ended;         /* until_done: [num_samples] samples without a transit left; else NULL */
  int64_t* live;          /* until_done: [end_step - first_step] 1 where a sample has a transit, else 0 */
  int64_t* lengths;       /* FS_ALL_NEIGHBORS: [num_samples] picks of the step, set where offsets is NULL; a second call
                             makes them */
  const int64_t* offsets; /* FS_ALL_NEIGHBORS: [num_samples + 1] where they go in the level; else NULL */
  uint64_t* failure;      /* ~0, or step << FS_CUDA_SAMPLE_BITS | position of a sample whose function raised or returned
                             what is no node, FS_NULL_NODE in its place; the first of them */
  void* workspace;        /* of fs_cuda_app_workspace, aligned to 256 bytes */
  const uint64_t* draw;   /* as in FsCudaSamples */
  int64_t num_nodes;      /* of the graph */
  int64_t first_step, end_step;
  int32_t has_step_transits, has_initial;
  int32_t by_walks; /* not 0: all steps have one transit and one pick, and are made by one launch, a thread a sample */
} FsCudaAppSteps;

/* An application's cubin, which has the kernels that fs_cuda_app_steps will launch: with by_walks fs_app_walk or, with
 * step_transits, fs_app_chosen_walk; else fs_app_make_picks, fs_app_choose_transits with step_transits,
 * fs_app_keep_distinct for distinct picks, fs_app_take_rows for FS_ALL_NEIGHBORS; fs_app_start_samples with initial.
 * Those of fs_cuda_call_app: by function fs_app_fill_slots, fs_app_choose_transits, fs_app_start_samples. It stays as
 * long as the process. */
FS_API FsStatus fs_cuda_load_app(const void* cubin, void** out_app, void* stream);
/* Version of the compiler that made fastsample_apps.fatbin, as 1000 * major + minor; 0: there is none. */
FS_API FsStatus fs_cuda_apps_compiler(int32_t* out_version, void* stream);
/* Scratch of all steps of a call; as fs_cuda_transit_workspace. Enqueues nothing. */
FS_API FsStatus fs_cuda_app_workspace(const FsTransitApp* app, const FsTransitRequest* request, int64_t num_nodes,
                                      int64_t* out_bytes, void* stream);
/* Steps first_step .. end_step - 1 of an individual application of FS_NEXT_CALLBACK; `initial` before step 0. Unless
 * by_walks, a launch per step and a thread a pick, in the order of slots, or under FS_SCHEDULE_TRANSIT and _FLAT sorted
 * by transit. Host memory: the structs, sample_sizes, num_transits, unique. The first call for some samples, that of
 * step 0 without offsets, sets state, ended and failure first. Nothing is read back: the work of a call of all steps
 * may be captured, and replayed for other roots, sample ids and draws. */
FS_API FsStatus fs_cuda_app_steps(const FsTransitApp* app, const FsTransitRequest* request, const FsCudaAppSteps* steps,
                                  void* stream);

/* A collective application's function, called for all samples of a step: FS_IN_NEXT for the picks that are
 * FS_CUDA_OPEN_SLOT in task.out, FS_IN_STEP_TRANSITS for all that go there, FS_IN_INITIAL for samples. The members of a
 * sample's combined neighbourhood stand behind those of the samples before:
 * task.transits [begins[num_samples]], and task.combined [begins[num_samples] + num_samples], those of sample s from
 * begins[s] + s on. */
typedef struct {
  FsStepTask task; /* all but key0 and key1, and in FS_IN_NEXT num_transits and transit_stride; what it leads to is
                      device memory */
  void* app;       /* of fs_cuda_load_app; NULL for the emulator */
  const int64_t* begins; /* FS_IN_NEXT: [num_samples + 1] where a sample's distinct transits begin; without any it picks
                            nothing */
  uint8_t* ended;        /* FS_IN_STEP_TRANSITS of until_done: [num_samples], not 0: it has no transits; else NULL */
  uint64_t* failure;     /* as in FsCudaAppSteps */
  int64_t num_nodes;     /* of the graph */
  int32_t function;      /* FsAppFunction */
} FsCudaAppCall;

/* One launch, a thread a slot. Host memory: the structs. Of app the functions are read, by the emulator. */
FS_API FsStatus fs_cuda_call_app(const FsTransitApp* app, const FsCudaAppCall* call, void* stream);

/* ---- collective applications ---- */
/* What samples hold: a table of all samples of a call, whose slots number the members. */
typedef struct {
  int64_t* keys;     /* [slots] sample * num_nodes + node, -1: empty; sample counts in the call */
  int64_t slots;     /* a power of two, at least twice as many as members will come */
  int64_t num_nodes; /* of the graph */
} FsCudaMembers;

#define FS_CUDA_OPEN_SLOT (-2)

/* Picks of step step_index; everything is device memory. Pick n of a sample draws as in fs_collective_sample. */
typedef struct {
  const int64_t* sample_ids; /* [num_samples] */
  const int64_t* begins; /* [num_samples + 1] where a sample's distinct transits begin; without any it picks nothing */
  const int64_t* transits; /* FS_NEXT_LAYER: distinct, sample after sample */
  const int64_t* ends;     /* FS_NEXT_LAYER: [transits + 1] prefix sums of their degrees */
  const int64_t* filled;   /* FS_NEXT_LAYER: [num_samples] vertices before the step, NULLs left out */
  int64_t* out;            /* [num_samples, sample_size]; what is FS_CUDA_OPEN_SLOT is filled */
  uint64_t* bad;           /* ~0 before: a sample that met an id which is no node */
  uint64_t rng_seed, step;
  int64_t num_samples, sample_size, step_index;
  int64_t attempt; /* the round of distinct picks */
} FsCudaPicks;

/* Edges from sources to the given rows of their samples, in the order of the rows; everything is device memory. */
typedef struct {
  const int64_t* nodes;       /* [num_rows] */
  const int64_t* samples;     /* [num_rows] */
  const int64_t* sources;     /* [slots] picks of the step that are the member, 0 or more; -1: it is no source */
  int64_t* counts;            /* [num_rows] out: edges of every row, where there are no offsets */
  const int64_t* offsets;     /* [num_rows + 1] prefix sums of counts, or NULL */
  int64_t* out_slots;         /* [num_edges] of the sources; with offsets */
  int64_t* out_edge_ids;      /* [num_edges] positions in the graph's indices; -1: of a self edge */
  double* out_weights;        /* [num_edges] by FS_EDGES_SCALED or FS_EDGES_BY_COLUMN, or NULL */
  const double* row_scale;    /* FS_EDGES_SCALED: [nodes of the graph] */
  const double* column_scale; /* as well */
  const double* columns;      /* FS_EDGES_BY_COLUMN: [slots] weights of the sources' columns; else NULL */
  int64_t num_rows;
  int64_t num_picks;  /* sample size of the step */
  int32_t self_edges; /* as in FsCollectiveSpec */
} FsCudaRecordedRows;

#define FS_CUDA_NO_ENTRY 9223372036854775807
#define FS_CUDA_NEVER 9223372036854775807 /* above the bits of every time */

/* The entries of rows, in their order and that of their edges, a row's own entry last; everything is device memory. A
 * key is sample * number of the graph's nodes + column. */
typedef struct {
  const int64_t* nodes;   /* [num_rows] */
  const int64_t* samples; /* [num_rows] */
  const int64_t* offsets; /* [num_rows + 1] prefix sums of the rows' degrees + 1 */
  const double* totals;   /* of fs_cuda_row_totals */
  const double* own;      /* as well */
  int64_t* out_keys;   /* [num_entries]; FS_CUDA_NO_ENTRY: the edge is none, because it is parallel to the one before, a
                          self-loop, or from no node */
  double* out_squares; /* [num_entries] a(v, u)^2, as FS_NEXT_RANKED has it; not written where there is no entry */
  uint64_t* bad;       /* ~0 before: a sample that met an id which is no node */
  int64_t num_rows, num_entries;
} FsCudaEntries;

/* Columns, by ascending keys, and their race; everything is device memory. */
typedef struct {
  const int64_t* keys;       /* [num_columns], as of FsCudaEntries */
  const int64_t* begins;     /* [num_columns + 1] where the entries of each begin in `order` */
  const int64_t* order;      /* numbers of entries */
  const double* squares;     /* of the entries */
  const int64_t* sample_ids; /* [num_samples] */
  double* out_sums;          /* [num_columns] of the squares, from the left */
  int64_t* out_times; /* [num_columns] of arrival: the bits of a double >= 0, which ascend with it; FS_CUDA_NEVER of a
                         column of weight 0 */
  int64_t* out_orig_ids; /* [num_columns] of their nodes */
  uint64_t rng_seed, step;
  int64_t num_columns, step_index;
} FsCudaColumns;

/* Slots of nodes [count], of which `width` belong to each sample, entered where they are new; of FS_NULL_NODE `slots`.
 */
FS_API FsStatus fs_cuda_enter_members(const FsCudaMembers* members, const int64_t* nodes, int64_t count, int64_t width,
                                      int64_t* out_slots, void* stream);
/* Neighbours of rows [count], which the graph has. */
FS_API FsStatus fs_cuda_row_degrees(const FsGraph* graph, const int64_t* rows, int64_t count, int64_t* out_degrees,
                                    void* stream);
/* Picks of FS_NEXT_LAYER or FS_NEXT_GLOBAL, whose arrays are device memory; params is host memory. */
FS_API FsStatus fs_cuda_collective_picks(const FsGraph* graph, const FsTransitApp* app, const FsCudaPicks* picks,
                                         void* stream);
/* Of every row of the graph 1 + the sum of its weights from the left, and 1 + that of its self-loops; [num_rows]. */
FS_API FsStatus fs_cuda_row_totals(const FsGraph* graph, double* out_totals, double* out_own, void* stream);
FS_API FsStatus fs_cuda_column_entries(const FsGraph* graph, const FsCudaEntries* entries, void* stream);
/* The race of step step_index; of the graph orig_ids are read. */
FS_API FsStatus fs_cuda_rank_columns(const FsGraph* graph, const FsCudaColumns* columns, void* stream);
/* Counts the edges, or, with offsets, writes them. Of graph->weights the weights are read, where there are any. */
FS_API FsStatus fs_cuda_record_rows(const FsGraph* graph, const FsCudaMembers* members, const FsCudaRecordedRows* rows,
                                    void* stream);

/* ---- aggregation over the in-edges of an MFG ---- */
/* Sets *out_bad (zeroed by the caller) to 1 unless indptr runs from 0 to num_edges without decreasing and every source
 * exists. The calls below do not need it: they skip edges that do not exist, and never read outside the arrays. */
FS_API FsStatus fs_cuda_check_edges(const FsAggregation* spec, int32_t* out_bad, void* stream);
/* As fs_aggregate. */
FS_API FsStatus fs_cuda_aggregate(const FsAggregation* spec, const void* x, void* out, int64_t out_stride,
                                  int64_t* out_arg, void* stream);
/* As fs_aggregate_backward. The workspace is needed for out_grad_x alone: fs_cuda_aggregate_backward_workspace bytes
 * on the current device, aligned to 256. That function enqueues nothing. */
FS_API FsStatus fs_cuda_aggregate_backward_workspace(const FsAggregation* spec, int64_t* out_bytes, void* stream);
FS_API FsStatus fs_cuda_aggregate_backward(const FsAggregation* spec, const void* x, const int64_t* arg,
                                           const void* grad_out, int64_t grad_stride, void* out_grad_x,
                                           void* out_grad_weights, void* workspace, void* stream);

/* ---- activation fused with dropout ---- */
/* As fs_act_dropout and fs_act_dropout_backward. */
FS_API FsStatus fs_cuda_act_dropout(const FsActDropout* spec, const void* x, void* y, void* stream);
FS_API FsStatus fs_cuda_act_dropout_backward(const FsActDropout* spec, const void* y, const void* grad_y, void* grad_x,
                                             void* stream);
/* As fs_act_dropout_backward_sums. workspace: a row of [width] of the sums' type for every FS_SUM_ROWS rows begun. */
FS_API FsStatus fs_cuda_act_dropout_backward_sums(const FsActDropout* spec, const void* y, const void* grad_y,
                                                  void* grad_x, void* sums, void* workspace, void* stream);

#ifdef __cplusplus
}
#endif
#endif /* FASTSAMPLE_CUDA_H_ */
