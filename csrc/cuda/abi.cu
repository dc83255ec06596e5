// fs_cuda_abi_entries: what fastsample_cuda.h declares, and what it takes of fastsample.h, as this library was
// compiled.
#include "abi_entries.h"
#include "fastsample_cuda.h"

// clang-format off
static const FsAbiEntry kEntries[] = {
  FS_SHARED_STRUCTS
  FS_STRUCT(FsCudaSampleSizes, max_nodes, max_degree, max_rows, max_edges, max_tasks, grid_blocks, state_words,
            table_nodes, table_words, workspace_bytes)
  FS_STRUCT(FsCudaReplay, step, ids, moved_by)
  FS_STRUCT(FsCudaSeeds, ids, count, replay)
  FS_STRUCT(FsCudaBatch, nodes, indptr, indices, edge_ids, workspace, table)
  FS_STRUCT(FsCudaRowCache, rows, places, num_rows, place_type)
  FS_STRUCT(FsCudaRows, rows, num_rows, row_bytes, cache)
  FS_STRUCT(FsCudaBadPlace, first, mailbox, order)
  FS_STRUCT(FsCudaQueueOptions, least_fetch, most_fetch, patience_ns)
  FS_STRUCT(FsTransitTables, walk_slots, total_weights, max_weights, hashed_nodes, hashed_buckets, columns)
  FS_STRUCT(FsTransitApp, sample_sizes, num_transits, unique, params, next, step_transits, initial, num_steps,
            num_roots, state_words, max_attempts, next_kind, sampling_type, until_done)
  FS_STRUCT(FsTransitRequest, roots, sample_ids, num_samples, block_samples, rng_seed, step, num_threads, schedule)
  FS_STRUCT(FsCudaSamples, vertices, offsets, lengths, by_length, live, state, keys, failure, workspace, draw, num_steps)
  FS_STRUCT(FsStepTask, graph, tables, params, sample_ids, vertices, strides, widths, transits, num_distinct, combined,
            ranked, state, slots, out, failed_slot, rng_seed, step, step_index, num_samples, num_transits, sample_size,
            picks, num_roots, transit_stride, ranked_stride, out_stride, state_words, attempt, first_pick, key0, key1)
  FS_STRUCT(FsCudaAppSteps, task, app, levels, transits, ended, live, lengths, offsets, failure, workspace, draw,
            num_nodes, first_step, end_step, has_step_transits, has_initial, by_walks)
  FS_STRUCT(FsCudaAppCall, task, app, begins, ended, failure, num_nodes, function)
  FS_STRUCT(FsCudaMembers, keys, slots, num_nodes)
  FS_STRUCT(FsCudaPicks, sample_ids, begins, transits, ends, filled, out, bad, rng_seed, step, num_samples, sample_size,
            step_index, attempt)
  FS_STRUCT(FsCudaRecordedRows, nodes, samples, sources, counts, offsets, out_slots, out_edge_ids, out_weights,
            row_scale, column_scale, columns, num_rows, num_picks, self_edges)
  FS_STRUCT(FsCudaEntries, nodes, samples, offsets, totals, own, out_keys, out_squares, bad, num_rows, num_entries)
  FS_STRUCT(FsCudaColumns, keys, begins, order, squares, sample_ids, out_sums, out_times, out_orig_ids, rng_seed,
            step, num_columns, step_index)
  FS_CONSTANT(FS_CUDA_SAMPLE_BITS) FS_CONSTANT(FS_CUDA_OPEN_SLOT)
  FS_CONSTANT(FS_CUDA_NO_ENTRY) FS_CONSTANT(FS_CUDA_NEVER)
  FS_CONSTANT(FS_CUDA_MAX_HOPS)
  FS_CONSTANT(FS_CUDA_BAD_SEED_WORD) FS_CONSTANT(FS_CUDA_REPEATED_SEED_WORD) FS_CONSTANT(FS_CUDA_TABLE_FULL_WORD)
  FS_CONSTANT(FS_CUDA_REPLAY_WORD) FS_CONSTANT(FS_CUDA_FIRST_HOP_WORD) FS_CONSTANT(FS_CUDA_HOP_WORDS)
  FS_CONSTANT(FS_CUDA_GATHER_ROWS) FS_CONSTANT(FS_CUDA_MERGE_ROWS) FS_CONSTANT(FS_CUDA_MAILBOX_WORDS)
  FS_CONSTANT(FS_CUDA_MAILBOX_TAKEN)
  FS_CONSTANT(FS_CUDA_QUEUE_DONE) FS_CONSTANT(FS_CUDA_QUEUE_STUCK) FS_CONSTANT(FS_CUDA_QUEUE_FULL)
  FS_CONSTANT(FS_CUDA_QUEUE_WORDS) FS_CONSTANT(FS_CUDA_QUEUE_END_WORD)
  FS_CONSTANT(FS_CUDA_BARRIER_WORDS) FS_CONSTANT(FS_CUDA_BARRIER_END_WORD)
  FS_END};
// clang-format on

extern "C" const FsAbiEntry* fs_cuda_abi_entries(void) { return kEntries; }
