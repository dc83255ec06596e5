// fs_abi_entries: what fastsample.h and its fellows declare, as this library was compiled.
#include "abi_entries.h"
#include "fastsample_clusters.h"
#include "fastsample_embedding.h"
#include "fastsample_inclusion.h"
#include "fastsample_queue.h"
#include "fastsample_subgraph.h"
#include "fastsample_transit.h"

// clang-format off
static const FsAbiEntry kEntries[] = {
  FS_SHARED_STRUCTS
  FS_STRUCT(FsHop, num_dst, num_src, num_edges, indptr, indices, edge_ids, edge_weights)
  FS_STRUCT(FsMiniBatch, num_hops, num_nodes, nodes, hops)
  FS_STRUCT(FsEdgeWeights, indptr, weights, num_rows, num_edges, type, num_threads)
  FS_STRUCT(FsEdgeList, src, dst, weights, num_edges, num_nodes, first_edge, id_type, weight_type, undirected)
  FS_STRUCT(FsGroupedEdges, keys, weights, positions, counts, position_type)
  FS_STRUCT(FsEdgeBucket, keys, weights, positions, counts, num_edges, first_row, num_rows, id_type, weight_type,
            position_type, merge, num_threads, unlike)
  FS_STRUCT(FsStream, indptr, indices, order, in_edges, kinds, capacities, num_nodes, num_edges, num_parts, id_type,
            score, rows_by_turn, alpha, rng_seed)
  FS_STRUCT(FsNeighbours, indptr, indices, weights, order, num_nodes, num_entries, id_type, weight_type, rows_by_turn)
  FS_STRUCT(FsClustering, node_weights, within, bound, rule, rng_seed)
  FS_STRUCT(FsPairTable, keys, weights, num_slots, num_used, left_out)
  FS_STRUCT(FsRefinement, node_loads, in_offsets, kinds, capacities, floors, num_limits, num_parts, shed)
  FS_CONSTANT(FS_JOIN_HEAVIEST) FS_CONSTANT(FS_JOIN_ALIKE)
  FS_STRUCT(FsInclusion, indptr, indices, weights, hazards, num_nodes, num_edges, fanout, replace, id_type, weight_type,
            num_threads)
  FS_STRUCT(FsAliasDraws, alias_table, ids, numbers, num_slots, num_pairs, draws_per_pair, rng_seed, step, num_threads)
  FS_STRUCT(FsRandomRows, ids, num_rows, width, rng_seed, bound, type, num_threads)
  FS_STRUCT(FsSkipGram, rows, centers, contexts, num_rows, width, num_pairs, contexts_per_pair, scale, type, num_threads)
  FS_STRUCT(FsRowUpdate, table, first_moments, second_moments, rows, slots, places, own, received, num_rows, width,
            num_updated, num_grads, num_own, num_received, step_size, first_rate, second_rate, epsilon, type,
            num_threads)
  FS_STRUCT(FsTransitTables, walk_slots, total_weights, max_weights, hashed_nodes, hashed_buckets, columns)
  FS_STRUCT(FsStepTask, graph, tables, params, sample_ids, vertices, strides, widths, transits, num_distinct, combined,
            ranked, state, slots, out, failed_slot, rng_seed, step, step_index, num_samples, num_transits, sample_size,
            picks, num_roots, transit_stride, ranked_stride, out_stride, state_words, attempt, first_pick, key0, key1)
  FS_STRUCT(FsTransitApp, sample_sizes, num_transits, unique, params, next, step_transits, initial, num_steps,
            num_roots, state_words, max_attempts, next_kind, sampling_type, until_done)
  FS_STRUCT(FsTransitRequest, roots, sample_ids, num_samples, block_samples, rng_seed, step, num_threads, schedule)
  FS_STRUCT(FsTransitFailure, sample, sample_id, step, node, fault, function)
  FS_STRUCT(FsTransitResult, num_samples, num_steps, width, num_vertices, offsets, vertices)
  FS_STRUCT(FsPinsageSpec, survival, num_walks, walk_length, num_neighbors, num_hops, first_hop, num_threads, rng_seed,
            step)
  FS_STRUCT(FsCollectiveSpec, row_scale, column_scale, record, self_edges, edge_scale, ranked)
  FS_STRUCT(FsRecordedHop, num_dst, num_src, num_edges)
  FS_STRUCT(FsRecordedEdges, num_hops, num_nodes, num_edges, num_weights, hops, nodes, indices, offsets, edge_ids,
            edge_weights)
  FS_STRUCT(FsCollectiveResult, samples, edges)
  FS_CONSTANT(FS_RECORD_NONE) FS_CONSTANT(FS_RECORD_TO_NEW) FS_CONSTANT(FS_RECORD_TO_UNION)
  FS_CONSTANT(FS_RECORD_WITHIN)
  FS_CONSTANT(FS_EDGES_UNWEIGHTED) FS_CONSTANT(FS_EDGES_BY_COLUMN) FS_CONSTANT(FS_EDGES_SCALED)
  FS_CONSTANT(FS_EDGES_COLUMNS)
  FS_STRUCT(FsRowIndex, ranges, owners, tables, first_rows, slots, num_slots, num_ranges, num_owners, num_own_tables,
            cache_table, slot_kind)
  FS_CONSTANT(FS_SLOTS_NONE) FS_CONSTANT(FS_SLOTS_DENSE) FS_CONSTANT(FS_SLOTS_HASHED32) FS_CONSTANT(FS_SLOTS_HASHED64)
  FS_STRUCT(FsHashedRows, nodes, buckets, num_buckets, ids_per_bucket, num_threads)
  FS_STRUCT(FsEdgeQueries, rows, vertices, answers, count)
  FS_STRUCT(FsSubgraphSpec, budget, frontier_size, walk_length, max_degree, clusters_per_batch, depth, fanout, eta,
            rng_seed, method, structure, num_threads)
  FS_STRUCT(FsSubgraphTables, roots, degree_sums, connected, cluster_nodes, cluster_offsets, num_roots, num_connected,
            num_clusters)
  FS_STRUCT(FsSubgraphNodes, nodes, num_nodes, num_visits, steps, probes, cleanups, growths)
  FS_STRUCT(FsSubgraph, drawn, edges, num_loss)
  FS_CONSTANT(FS_SUBGRAPH_FRONTIER) FS_CONSTANT(FS_SUBGRAPH_NODE) FS_CONSTANT(FS_SUBGRAPH_EDGE)
  FS_CONSTANT(FS_SUBGRAPH_WALK) FS_CONSTANT(FS_SUBGRAPH_CLUSTER) FS_CONSTANT(FS_SUBGRAPH_EGO)
  FS_CONSTANT(FS_FRONTIER_SUMS) FS_CONSTANT(FS_FRONTIER_DASHBOARD)
  FS_STRUCT(FsInclusionLaw, chances, arrivals, links, shares, draws, clusters, same, apart, bits, num_words, count,
            num_nodes, kind)
  FS_STRUCT(FsSubgraphEdges, indptr, indices, row_sums, num_edges, id_type, form, num_threads)
  FS_CONSTANT(FS_INCLUSION_DRAWS) FS_CONSTANT(FS_INCLUSION_CLUSTERS) FS_CONSTANT(FS_INCLUSION_COUNTS)
  FS_CONSTANT(FS_EDGE_INCLUSION) FS_CONSTANT(FS_RATIO_WEIGHTS) FS_CONSTANT(FS_SAINT_WEIGHTS)
  FS_STRUCT(FsQueueSpec, capacity, group_size, staleness, most_bytes, arena_bytes, task_bytes, num_ranks, num_trainers,
            switching)
  FS_STRUCT(FsQueueSlot, task, version, offset, bytes, since_ns, state, rank, pid)
  FS_STRUCT(FsQueueSegment, epoch, first_task, num_tasks, first_step, ends_epoch)
  FS_STRUCT(FsQueueState, segment, next_task, end_task, current_group, num_taken, num_done, bytes_in_use, task_bytes,
            changed_ns, num_slots, stopped)
  FS_STRUCT(FsQueueCall, queue, slice_s, rank, outcome)
  FS_CONSTANT(FS_SWITCH_NEVER) FS_CONSTANT(FS_SWITCH_BY_PROFIT) FS_CONSTANT(FS_SWITCH_ALWAYS)
  FS_CONSTANT(FS_QUEUE_DID) FS_CONSTANT(FS_QUEUE_WAITED) FS_CONSTANT(FS_QUEUE_ENDED) FS_CONSTANT(FS_QUEUE_FAILED)
  FS_CONSTANT(FS_QUEUE_UPDATE)
  FS_CONSTANT(FS_SLOT_FREE) FS_CONSTANT(FS_SLOT_CLAIMED) FS_CONSTANT(FS_SLOT_READY) FS_CONSTANT(FS_SLOT_TAKEN)
  FS_CONSTANT(FS_ABI_VERSION)
  FS_CONSTANT(FS_OK) FS_CONSTANT(FS_INVALID_ARGUMENT) FS_CONSTANT(FS_OUT_OF_MEMORY) FS_CONSTANT(FS_DEVICE_ERROR)
  FS_CONSTANT(FS_APP_ERROR)
  FS_CONSTANT(FS_INT32) FS_CONSTANT(FS_INT64) FS_CONSTANT(FS_FLOAT32) FS_CONSTANT(FS_FLOAT64) FS_CONSTANT(FS_BFLOAT16)
  FS_CONSTANT(FS_FLOAT16) FS_CONSTANT(FS_INT8) FS_CONSTANT(FS_UINT8) FS_CONSTANT(FS_INT16)
  FS_CONSTANT(FS_SUM) FS_CONSTANT(FS_MEAN) FS_CONSTANT(FS_MAX)
  FS_CONSTANT(FS_IDENTITY) FS_CONSTANT(FS_RELU)
  FS_CONSTANT(FS_REFUSED_ROW) FS_CONSTANT(FS_REFUSED_OFFSETS) FS_CONSTANT(FS_REFUSED_NEGATIVE_SOURCE)
  FS_CONSTANT(FS_REFUSED_SOURCE) FS_CONSTANT(FS_REFUSED_NEGATIVE_SEED) FS_CONSTANT(FS_REFUSED_REPEATED_SEED)
  FS_CONSTANT(FS_REFUSED_NEGATIVE_DST) FS_CONSTANT(FS_REFUSED_REPEATED_DST) FS_CONSTANT(FS_REFUSED_NEGATIVE_NEIGHBOR)
  FS_CONSTANT(FS_REFUSED_ID) FS_CONSTANT(FS_REFUSED_PLACE) FS_CONSTANT(FS_REFUSED_OWNER)
  FS_CONSTANT(FS_REFUSAL_VALUES)
  FS_CONSTANT(FS_TAKE_ALL)
  FS_CONSTANT(FS_ROW_BITS) FS_CONSTANT(FS_MOST_TABLES) FS_CONSTANT(FS_SCALE_BYTES)
  FS_CONSTANT(FS_UNIFORM) FS_CONSTANT(FS_WEIGHTED) FS_CONSTANT(FS_LABOR)
  FS_CONSTANT(FS_LDG) FS_CONSTANT(FS_FENNEL) FS_CONSTANT(FS_STREAM_LIMITS) FS_CONSTANT(FS_HAZARD_BITS)
  FS_CONSTANT(FS_MOST_HAZARD_BITS)
  FS_CONSTANT(FS_DROP_VARIATES)
  FS_CONSTANT(FS_SUM_ROWS)
  FS_CONSTANT(FS_NULL_NODE) FS_CONSTANT(FS_ALL_NEIGHBORS) FS_CONSTANT(FS_MOST_VISITS)
  FS_CONSTANT(FS_SLOT_WORD_BYTES)
  FS_CONSTANT(FS_INDIVIDUAL) FS_CONSTANT(FS_COLLECTIVE)
  FS_CONSTANT(FS_NEXT_CALLBACK) FS_CONSTANT(FS_NEXT_UNIFORM) FS_CONSTANT(FS_NEXT_WEIGHTED)
  FS_CONSTANT(FS_NEXT_NODE2VEC) FS_CONSTANT(FS_NEXT_PPR) FS_CONSTANT(FS_NEXT_MULTI_RW) FS_CONSTANT(FS_NEXT_LAYER)
  FS_CONSTANT(FS_NEXT_ALL) FS_CONSTANT(FS_NEXT_GLOBAL) FS_CONSTANT(FS_NEXT_RANKED)
  FS_CONSTANT(FS_SCHEDULE_AUTO) FS_CONSTANT(FS_SCHEDULE_SAMPLE) FS_CONSTANT(FS_SCHEDULE_TRANSIT)
  FS_CONSTANT(FS_SCHEDULE_TRANSIT_FLAT)
  FS_CONSTANT(FS_APP_FINE) FS_CONSTANT(FS_APP_RAISED) FS_CONSTANT(FS_APP_BAD_NODE) FS_CONSTANT(FS_APP_NEVER_ENDS)
  FS_CONSTANT(FS_IN_NEXT) FS_CONSTANT(FS_IN_STEP_TRANSITS) FS_CONSTANT(FS_IN_INITIAL)
  FS_END};
// clang-format on

extern "C" const FsAbiEntry* fs_abi_entries(void) { return kEntries; }
