// Sums and maxima of rows that a list names for every result row: what aggregate and its gradient of x have in common.
//
// A group of 1 to 32 lanes works on a tile of one result row, every lane on a pack of up to 16 bytes of neighbouring
// columns. A lane goes through the row's list in order and keeps its columns in registers, so that every sum is made in
// the list's order whatever the launch shape, and the reads of kAhead rows are under way together. Blocks are many
// and short: where a list is long its block stays on, and the device takes the other blocks meanwhile.
//
// A list is a type with
//   Span span(row)                 the row's entries
//   int64_t source(entry)          the row that an entry names, -1 where there is none (a bad input)
//   Real factor(entry, source, head)
//   bool counts(entry, source, column)
//   Real divisor(row)              of the sum
#ifndef FS_CUDA_AGGREGATE_ROWS_CUH_
#define FS_CUDA_AGGREGATE_ROWS_CUH_

#include <type_traits>

#include "aggregation.h"
#include "device.cuh"

namespace fs {
namespace {

constexpr int kAhead = 8;              // rows on their way at once: 8 packs are 32 registers
constexpr int kMostRowBlocks = 65536;  // beyond, blocks go over the rows in strides

struct Span {
  int64_t first, last;
};

// In-edges of a destination, within the edges that exist whatever indptr holds.
FS_DEVICE Span edge_span(const FsAggregation& spec, int64_t dst) {
  const int64_t first = spec.indptr[dst], last = spec.indptr[dst + 1];
  return {first < 0 ? 0 : first, last > spec.num_edges ? spec.num_edges : last};
}

template <typename Id>
FS_DEVICE int64_t source_of(const FsAggregation& spec, int64_t edge) {
  const int64_t source = static_cast<const Id*>(spec.indices)[edge];
  return source < spec.num_src ? source : -1;
}

template <typename T, int kColumns>
struct alignas(sizeof(T) * kColumns) Pack {
  T at[kColumns];
};

// How the columns of result rows are split between groups of lanes.
struct Tiling {
  int64_t num_rows, width, head_width, tiles;
  int lanes;
};

inline Tiling tile_rows(const FsAggregation& spec, int64_t num_rows, int columns) {
  const int64_t packs = spec.width / columns;
  int lanes = 1;
  while (lanes < kWarp && lanes < packs) lanes *= 2;
  return {num_rows, spec.width, spec.width / spec.num_heads, (packs + lanes - 1) / lanes, lanes};
}

inline int blocks_for_rows(const Tiling& tiling) {
  const int64_t wanted = (tiling.num_rows * tiling.tiles * tiling.lanes + kThreads - 1) / kThreads;
  return static_cast<int>(wanted < 1 ? 1 : wanted < kMostRowBlocks ? wanted : kMostRowBlocks);
}

// body(the most columns of a pack that addresses, strides and head widths, all or-ed together in bytes, allow).
template <typename T, int kBytes = 16, typename Body>
void with_pack(uint64_t alignment, Body&& body) {
  if constexpr (kBytes <= sizeof(T)) {
    body(std::integral_constant<int, 1>{});
  } else if (alignment % kBytes == 0) {
    body(std::integral_constant<int, kBytes / static_cast<int>(sizeof(T))>{});
  } else {
    with_pack<T, kBytes / 2>(alignment, body);
  }
}

inline uint64_t address_bits(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// body(row, column) for every pack of the result that the calling thread makes.
template <int kColumns, typename Body>
FS_DEVICE void for_packs(const Tiling& tiling, Body&& body) {
  const int64_t lane = thread_number() % tiling.lanes, stride = num_threads() / tiling.lanes;
  for (int64_t tile = thread_number() / tiling.lanes; tile < tiling.num_rows * tiling.tiles; tile += stride) {
    const int64_t column = (tile % tiling.tiles * tiling.lanes + lane) * kColumns;
    if (column < tiling.width) body(tile / tiling.tiles, column);
  }
}

// body(entry, source, factor, the pack of the source's row at `column`) for a row's entries, in order.
template <int kColumns, typename T, typename List, typename Body>
FS_DEVICE void for_entries(const List& list, Span span, const T* rows, int64_t stride, int64_t column, int64_t head,
                           Body&& body) {
  using Real = typename Arithmetic<T>::type;
  int64_t sources[kAhead];
  const auto name_sources = [&](int64_t begin) {
    FS_UNROLL for (int k = 0; k < kAhead; ++k) sources[k] = begin + k < span.last ? list.source(begin + k) : -1;
  };
  name_sources(span.first);
  for (int64_t begin = span.first; begin < span.last; begin += kAhead) {
    int64_t of_pack[kAhead];
    Real factors[kAhead];
    Pack<T, kColumns> packs[kAhead];
    FS_UNROLL for (int k = 0; k < kAhead; ++k) {
      of_pack[k] = sources[k];
      if (of_pack[k] < 0) continue;
      packs[k] = *reinterpret_cast<const Pack<T, kColumns>*>(rows + sources[k] * stride + column);
      factors[k] = list.factor(begin + k, sources[k], head);
    }
    name_sources(begin + kAhead);  // while the rows are on their way
    FS_UNROLL for (int k = 0; k < kAhead; ++k) {
      if (of_pack[k] >= 0) body(begin + k, of_pack[k], factors[k], packs[k]);
    }
  }
}

template <int kColumns, typename T, typename List>
FS_KERNEL void sum_rows_kernel(List list, Tiling tiling, const T* rows, int64_t stride, T* out, int64_t out_stride) {
  using Real = typename Arithmetic<T>::type;
  for_packs<kColumns>(tiling, [&](int64_t row, int64_t column) {
    Real sums[kColumns] = {};
    const int64_t head = column / tiling.head_width;
    for_entries<kColumns>(list, list.span(row), rows, stride, column, head,
                          [&](int64_t entry, int64_t source, Real factor, const Pack<T, kColumns>& pack) {
                            FS_UNROLL for (int c = 0; c < kColumns; ++c) {
                              const bool counts = list.counts(entry, source, column + c);
                              sums[c] += counts ? factor * load(pack.at[c]) : Real(0);
                            }
                          });
    const Real divisor = list.divisor(row);
    Pack<T, kColumns> result;
    FS_UNROLL for (int c = 0; c < kColumns; ++c) store(&result.at[c], sums[c] / divisor);
    *reinterpret_cast<Pack<T, kColumns>*>(out + row * out_stride + column) = result;
  });
}

}  // namespace
}  // namespace fs

#endif  // FS_CUDA_AGGREGATE_ROWS_CUH_
