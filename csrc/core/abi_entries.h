// How a library describes its own ABI (fs_abi_entries): FS_STRUCT(type, fields...) gives the entries of a struct from
// one list of its fields, FS_CONSTANT(name) that of an enumerator or macro. tests/ops/test_abi.py compares the lists
// with the headers, fastsample_dist/ops/abi.py compares them with ctypes' structures when a library is loaded.
#ifndef FS_CORE_ABI_ENTRIES_H_
#define FS_CORE_ABI_ENTRIES_H_

#include <stddef.h>

#include "fastsample.h"

// clang-format off
#define FS_FIELD(T, f) {#T, #f, static_cast<int64_t>(offsetof(T, f)), static_cast<int64_t>(sizeof(T::f))},
#define FS_EACH_1(T, f) FS_FIELD(T, f)
#define FS_EACH_2(T, f, ...) FS_FIELD(T, f) FS_EACH_1(T, __VA_ARGS__)
#define FS_EACH_3(T, f, ...) FS_FIELD(T, f) FS_EACH_2(T, __VA_ARGS__)
#define FS_EACH_4(T, f, ...) FS_FIELD(T, f) FS_EACH_3(T, __VA_ARGS__)
#define FS_EACH_5(T, f, ...) FS_FIELD(T, f) FS_EACH_4(T, __VA_ARGS__)
#define FS_EACH_6(T, f, ...) FS_FIELD(T, f) FS_EACH_5(T, __VA_ARGS__)
#define FS_EACH_7(T, f, ...) FS_FIELD(T, f) FS_EACH_6(T, __VA_ARGS__)
#define FS_EACH_8(T, f, ...) FS_FIELD(T, f) FS_EACH_7(T, __VA_ARGS__)
#define FS_EACH_9(T, f, ...) FS_FIELD(T, f) FS_EACH_8(T, __VA_ARGS__)
#define FS_EACH_10(T, f, ...) FS_FIELD(T, f) FS_EACH_9(T, __VA_ARGS__)
#define FS_EACH_11(T, f, ...) FS_FIELD(T, f) FS_EACH_10(T, __VA_ARGS__)
#define FS_EACH_12(T, f, ...) FS_FIELD(T, f) FS_EACH_11(T, __VA_ARGS__)
#define FS_EACH_13(T, f, ...) FS_FIELD(T, f) FS_EACH_12(T, __VA_ARGS__)
#define FS_EACH_14(T, f, ...) FS_FIELD(T, f) FS_EACH_13(T, __VA_ARGS__)
#define FS_EACH_15(T, f, ...) FS_FIELD(T, f) FS_EACH_14(T, __VA_ARGS__)
#define FS_EACH_16(T, f, ...) FS_FIELD(T, f) FS_EACH_15(T, __VA_ARGS__)
#define FS_EACH_17(T, f, ...) FS_FIELD(T, f) FS_EACH_16(T, __VA_ARGS__)
#define FS_EACH_18(T, f, ...) FS_FIELD(T, f) FS_EACH_17(T, __VA_ARGS__)
#define FS_EACH_19(T, f, ...) FS_FIELD(T, f) FS_EACH_18(T, __VA_ARGS__)
#define FS_EACH_20(T, f, ...) FS_FIELD(T, f) FS_EACH_19(T, __VA_ARGS__)
#define FS_EACH_21(T, f, ...) FS_FIELD(T, f) FS_EACH_20(T, __VA_ARGS__)
#define FS_EACH_22(T, f, ...) FS_FIELD(T, f) FS_EACH_21(T, __VA_ARGS__)
#define FS_EACH_23(T, f, ...) FS_FIELD(T, f) FS_EACH_22(T, __VA_ARGS__)
#define FS_EACH_24(T, f, ...) FS_FIELD(T, f) FS_EACH_23(T, __VA_ARGS__)
#define FS_EACH_25(T, f, ...) FS_FIELD(T, f) FS_EACH_24(T, __VA_ARGS__)
#define FS_EACH_26(T, f, ...) FS_FIELD(T, f) FS_EACH_25(T, __VA_ARGS__)
#define FS_EACH_27(T, f, ...) FS_FIELD(T, f) FS_EACH_26(T, __VA_ARGS__)
#define FS_EACH_28(T, f, ...) FS_FIELD(T, f) FS_EACH_27(T, __VA_ARGS__)
#define FS_EACH_29(T, f, ...) FS_FIELD(T, f) FS_EACH_28(T, __VA_ARGS__)
#define FS_EACH_30(T, f, ...) FS_FIELD(T, f) FS_EACH_29(T, __VA_ARGS__)
#define FS_EACH_31(T, f, ...) FS_FIELD(T, f) FS_EACH_30(T, __VA_ARGS__)
#define FS_EACH_32(T, f, ...) FS_FIELD(T, f) FS_EACH_31(T, __VA_ARGS__)
#define FS_PICK(f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, \
          f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, chosen, ...) chosen
#define FS_EACH(...) \
  FS_PICK(__VA_ARGS__, FS_EACH_32, FS_EACH_31, FS_EACH_30, FS_EACH_29, FS_EACH_28, FS_EACH_27, FS_EACH_26, \
          FS_EACH_25, FS_EACH_24, FS_EACH_23, FS_EACH_22, FS_EACH_21, FS_EACH_20, FS_EACH_19, FS_EACH_18, \
          FS_EACH_17, FS_EACH_16, FS_EACH_15, FS_EACH_14, FS_EACH_13, FS_EACH_12, FS_EACH_11, FS_EACH_10, \
          FS_EACH_9, FS_EACH_8, FS_EACH_7, FS_EACH_6, FS_EACH_5, FS_EACH_4, FS_EACH_3, FS_EACH_2, FS_EACH_1, )

#define FS_STRUCT(T, ...) {#T, "", 0, static_cast<int64_t>(sizeof(T))}, FS_EACH(__VA_ARGS__)(T, __VA_ARGS__)
#define FS_CONSTANT(name) {"", #name, static_cast<int64_t>(name), 0},
#define FS_END {nullptr, nullptr, 0, 0}

// The structs of fastsample.h that the CUDA library takes as well.
#define FS_SHARED_STRUCTS                                                                                           \
  FS_STRUCT(FsAbiEntry, type, member, value, size)                                                                  \
  FS_STRUCT(FsWeightTables, weights, alias_table, num_positive, weight_type)                                        \
  FS_STRUCT(FsGraph, indptr, indices, orig_ids, src_orig_ids, weights, num_rows, num_sources, num_edges, id_type)   \
  FS_STRUCT(FsSampleSpec, fanouts, num_hops, first_hop, method, replace, layer_dependency, edge_ids, num_threads,   \
            rng_seed, step)                                                                                         \
  FS_STRUCT(FsRowTable, rows, num_rows, scales, row_stride, scale_stride)                                           \
  FS_STRUCT(FsRowTables, tables, fetched, num_fetched, row_width, num_tables, in_type, fetched_type, is_scaled)     \
  FS_STRUCT(FsAggregation, indptr, indices, num_dst, num_src, num_edges, id_type, reduce, weights, num_heads,       \
            width, type, num_threads, tile, tiles_outer)                                                            \
  FS_STRUCT(FsActDropout, node_ids, num_rows, width, type, activation, drop_threshold, num_threads, rng_seed, step, \
            layer, bias)
// clang-format on

#endif  // FS_CORE_ABI_ENTRIES_H_
