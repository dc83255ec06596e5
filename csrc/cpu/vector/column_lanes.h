// Edges of a row entered as columns, sixteen at a time.
//
// Rows are in canonical order, so neighbours that differ from the next one are all different: their slots, sums and
// heads are read, changed and written side by side. New columns stand one behind the other; theirs are written at once.
#ifndef FS_CPU_VECTOR_COLUMN_LANES_H_
#define FS_CPU_VECTOR_COLUMN_LANES_H_

#include "column_run.h"
#include "platform.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace fs {
namespace {

#if defined(__AVX512F__)

constexpr int64_t kFewestLanes = 4;  // that are worth a vector

// sums[columns] += square for the columns of the lanes in `known`, eight of them.
FS_INLINE void add_square(double* sums, __m256i columns, __mmask8 known, __m512d square) {
  if (known == 0) return;
  const __m512d before = _mm512_mask_i32gather_pd(square, known, columns, sums, 8);
  _mm512_mask_i32scatter_pd(sums, known, columns, _mm512_add_pd(before, square), 8);
}

// Links edge number first_link + lane, of all lanes, to what its column's head is; the edges become heads.
FS_INLINE void link_columns(const ColumnRun& run, int64_t at, int64_t next_column, __m512i columns, __mmask16 fresh,
                            __mmask16 known, __m512i numbers) {
  const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  const __m512i links = _mm512_add_epi32(numbers, _mm512_set1_epi32(run.first_link + static_cast<int32_t>(at)));
  const __m512i heads = _mm512_mask_i32gather_epi32(_mm512_set1_epi32(kNoLink), known, columns, run.heads, 4);
  const __m512i row = _mm512_set1_epi32(run.row_number);
  _mm512_storeu_si512(run.links + at, _mm512_permutex2var_epi32(heads, low, row));
  _mm512_storeu_si512(run.links + at + 8, _mm512_permutex2var_epi32(heads, high, row));
  _mm512_storeu_si512(run.heads + next_column, _mm512_maskz_compress_epi32(fresh, links));
  _mm512_mask_i32scatter_epi32(run.heads, known, columns, links, 4);
}

template <bool kSums, bool kLinks>
int64_t add_columns_of(ColumnRun* given) {
  const ColumnRun run = *given;  // a copy: what is stored might be a field of the other
  const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i base = _mm512_set1_epi32(run.base), row = _mm512_set1_epi32(run.row);
  const __m512i num_rows = _mm512_set1_epi32(static_cast<int>(run.num_rows));
  const __m512d square = _mm512_set1_pd(run.square);
  int64_t at = 0, next_column = run.next_column;
  while (at + kFewestLanes <= run.count) {
    const int64_t left = run.count - at;
    const __mmask16 lanes = static_cast<__mmask16>(_bzhi_u32(0xFFFF, static_cast<uint32_t>(left < 16 ? left : 16)));
    const __mmask16 followed = left > 16 ? lanes : static_cast<__mmask16>(lanes >> 1);
    const __m512i sources = _mm512_maskz_loadu_epi32(lanes, run.sources + at);
    const __m512i later = _mm512_maskz_loadu_epi32(followed, run.sources + at + 1);
    const uint32_t special = _mm512_mask_cmpeq_epi32_mask(followed, sources, later) |
                             _mm512_mask_cmpeq_epi32_mask(lanes, sources, row) |
                             _mm512_mask_cmpge_epu32_mask(lanes, sources, num_rows);
    if (special != 0) break;
    const __m512i found = _mm512_sub_epi32(_mm512_mask_i32gather_epi32(base, lanes, sources, run.slots, 4), base);
    const __mmask16 fresh = _mm512_mask_cmplt_epi32_mask(lanes, found, _mm512_setzero_si512());
    const __mmask16 known = static_cast<__mmask16>(lanes & ~fresh);
    const __m512i next = _mm512_add_epi32(numbers, _mm512_set1_epi32(static_cast<int>(next_column)));
    const __m512i columns = _mm512_mask_expand_epi32(found, fresh, next);
    _mm512_mask_i32scatter_epi32(run.slots, fresh, sources, _mm512_add_epi32(columns, base), 4);
    _mm512_storeu_si512(run.nodes + next_column, _mm512_maskz_compress_epi32(fresh, sources));
    if (kSums) {
      _mm512_storeu_pd(run.sums + next_column, square);
      _mm512_storeu_pd(run.sums + next_column + 8, square);
      add_square(run.sums, _mm512_castsi512_si256(columns), static_cast<__mmask8>(known), square);
      add_square(run.sums, _mm512_extracti64x4_epi64(columns, 1), static_cast<__mmask8>(known >> 8), square);
    }
    if (kLinks) {
      link_columns(run, at, next_column, columns, fresh, known, numbers);
    } else {
      _mm512_storeu_si512(run.heads + next_column, _mm512_set1_epi32(kNoLink));
    }
    next_column += __builtin_popcount(fresh);
    at += __builtin_popcount(lanes);
  }
  given->next_column = static_cast<int32_t>(next_column);
  return at;
}

// Enters the edges of a run, from the first on, up to one that needs a closer look: a self-loop, a parallel edge, a
// source that is no node. Returns how many.
int64_t add_columns(ColumnRun* run) {
  if (run->sums == nullptr) return add_columns_of<false, true>(run);
  return run->links == nullptr ? add_columns_of<true, false>(run) : add_columns_of<true, true>(run);
}

constexpr auto kAddColumns = add_columns;

#else

constexpr int64_t (*kAddColumns)(ColumnRun*) = nullptr;  // without scatters the plain loop is as fast

#endif

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_COLUMN_LANES_H_
