// Sums of rows whose accumulators stay in registers: a tile of columns is as many vectors as the instruction set has
// registers for, so that an edge costs loads and additions and no store. Every column is added up in the order of the
// edges, as everywhere.
#ifndef FS_CPU_VECTOR_REGISTER_ROWS_H_
#define FS_CPU_VECTOR_REGISTER_ROWS_H_

#include "number_access.h"

namespace fs {
namespace {

constexpr int64_t kRowsAhead = 8;      // in-edges ahead whose source rows are requested
constexpr int64_t kCacheLine = 64;     // bytes
constexpr int64_t kPrefetchLines = 8;  // of a row; the hardware follows from there

template <typename T>
FS_INLINE void prefetch_row(const T* row, int64_t columns) {
  const char* bytes = reinterpret_cast<const char*>(row);
  const int64_t size = columns * static_cast<int64_t>(sizeof(T));
  const int64_t lines = size < kPrefetchLines * kCacheLine ? size : kPrefetchLines * kCacheLine;
  for (int64_t at = 0; at < lines; at += kCacheLine) __builtin_prefetch(bytes + at);
}

// Vectors of a tile: half of the registers, where they number 32; the rest hold rows on their way and factors.
#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64, kTileVectors = 16;
#elif defined(__AVX2__)
constexpr int64_t kVectorBytes = 32, kTileVectors = 12;
#else
constexpr int64_t kVectorBytes = 16, kTileVectors = 12;
#endif

template <typename Lane, int64_t kBytes>
struct VectorType {
  typedef Lane type __attribute__((vector_size(kBytes)));
};

// Sums of kCount neighbouring columns.
template <typename T>
struct Lanes {
  using Real = typename Arithmetic<T>::type;
  using Vector = typename VectorType<Real, kVectorBytes>::type;
  static constexpr int64_t kCount = kVectorBytes / static_cast<int64_t>(sizeof(Real)), kVectors = 1;

  Vector all;

  FS_INLINE void add(const T* row) { all += load(row); }
  FS_INLINE void add_scaled(const T* row, Vector factor) { all += factor * load(row); }
  FS_INLINE void divide(Real divisor) { all /= divisor; }
  FS_INLINE void round() {}  // as store and load would
  FS_INLINE void store(T* row) const { __builtin_memcpy(row, &all, sizeof(all)); }

  static FS_INLINE Vector load(const T* row) {
    Vector lanes;
    __builtin_memcpy(&lanes, row, sizeof(lanes));
    return lanes;
  }
};

// A 32-bit word of a row holds two columns; they are kept in two vectors, so that no column changes its lane.
template <>
struct Lanes<Bfloat16> {
  using Real = float;
  using Vector = VectorType<float, kVectorBytes>::type;
  using Words = VectorType<uint32_t, kVectorBytes>::type;
  static constexpr int64_t kCount = kVectorBytes / static_cast<int64_t>(sizeof(Bfloat16)), kVectors = 2;
  static constexpr uint32_t kUpper = 0xFFFF0000u;

  Vector even, odd;

  FS_INLINE void add(const Bfloat16* row) {
    const Words words = load(row);
    even += reinterpret_cast<Vector>(words << 16);
    odd += reinterpret_cast<Vector>(words & kUpper);
  }
  FS_INLINE void add_scaled(const Bfloat16* row, Vector factor) {
    const Words words = load(row);
    even += factor * reinterpret_cast<Vector>(words << 16);
    odd += factor * reinterpret_cast<Vector>(words & kUpper);
  }
  FS_INLINE void divide(float divisor) {
    even /= divisor;
    odd /= divisor;
  }
  FS_INLINE void round() {
    even = reinterpret_cast<Vector>(rounded(even) & kUpper);
    odd = reinterpret_cast<Vector>(rounded(odd) & kUpper);
  }
  FS_INLINE void store(Bfloat16* row) const {
    const Words words = (rounded(even) >> 16) | (rounded(odd) & kUpper);
    __builtin_memcpy(row, &words, sizeof(words));
  }

  static FS_INLINE Words load(const Bfloat16* row) {
    Words words;
    __builtin_memcpy(&words, row, sizeof(words));
    return words;
  }
  static FS_INLINE Words rounded(Vector lanes) {  // to_bfloat16, before the shift
    const Words bits = reinterpret_cast<Words>(lanes);
    const Words is_nan = reinterpret_cast<Words>((bits & 0x7FFFFFFFu) > 0x7F800000u);
    return (is_nan & (bits | 0x00400000u)) | (~is_nan & (bits + 0x7FFFu + ((bits >> 16) & 1u)));
  }
};

// finish(offset, sums) for all lanes of the sums over terms [first, last). The lanes of the first half start at column
// 0, those of the second half end at the last column: where they overlap, both are the same sums.
template <typename T, int kParts, bool kFactors, typename Terms, typename Finish>
FS_INLINE void sum_parts(const Terms& terms, int64_t first, int64_t last, int64_t columns, const Finish& finish) {
  constexpr int64_t kLanes = Lanes<T>::kCount;
  constexpr int kHalf = kParts / 2;
  const int64_t second = columns - (kParts - kHalf) * kLanes;  // where the second half starts
  Lanes<T> sums[kParts] = {};
  for (int64_t e = first; e < last; ++e) {
    if (e + kRowsAhead < terms.limit) prefetch_row(terms.row(e + kRowsAhead), columns);
    const T* row = terms.row(e);
    const T* tail = row + second;
    typename Lanes<T>::Vector factor = {};
    if (kFactors) factor = terms.factor(e) - factor;  // to every lane; minus zero stays what it is
#pragma GCC unroll 16
    for (int p = 0; p < kParts; ++p) {
      const T* lanes = p < kHalf ? row + p * kLanes : tail + (p - kHalf) * kLanes;
      if (kFactors) {
        sums[p].add_scaled(lanes, factor);
      } else {
        sums[p].add(lanes);
      }
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < kParts; ++p) finish(p < kHalf ? p * kLanes : second + (p - kHalf) * kLanes, sums[p]);
}

template <typename T, bool kFactors, typename Terms, typename Finish>
void sum_columns(const Terms& terms, int64_t first, int64_t last, int64_t columns, const Finish& finish) {
  const int64_t parts = (columns + Lanes<T>::kCount - 1) / Lanes<T>::kCount;
  if (parts <= 1) return sum_parts<T, 1, kFactors>(terms, first, last, columns, finish);
  if (parts <= 2) return sum_parts<T, 2, kFactors>(terms, first, last, columns, finish);
  if (parts <= 3) return sum_parts<T, 3, kFactors>(terms, first, last, columns, finish);
  if (parts <= 4) return sum_parts<T, 4, kFactors>(terms, first, last, columns, finish);
  if (parts <= 6) return sum_parts<T, 6, kFactors>(terms, first, last, columns, finish);
  if (Lanes<T>::kVectors > 1 || parts <= 8) return sum_parts<T, 8, kFactors>(terms, first, last, columns, finish);
  if (parts <= 12) return sum_parts<T, 12, kFactors>(terms, first, last, columns, finish);
  return sum_parts<T, 16, kFactors>(terms, first, last, columns, finish);
}

// Columns of even tiles of at most `most` columns that cover `columns`.
template <typename T>
FS_INLINE int64_t tile_columns(int64_t columns, int64_t most) {
  constexpr int64_t kLanes = Lanes<T>::kCount, kMost = kTileVectors / Lanes<T>::kVectors;
  const int64_t asked = most / kLanes, parts = (columns + kLanes - 1) / kLanes;
  const int64_t cap = asked < 1 ? 1 : asked < kMost ? asked : kMost;
  const int64_t tiles = parts > cap ? (parts + cap - 1) / cap : 1;
  return (parts + tiles - 1) / tiles * kLanes;
}

// body(begin, end) for tiles of `step` columns that cover the columns [begin, end), at least one vector of them. The
// last tile reaches back where less than a vector would be left.
template <typename T, typename Body>
FS_INLINE void for_tiles(int64_t begin, int64_t end, int64_t step, Body&& body) {
  for (int64_t at = begin; at < end; at += step) {
    const int64_t from = end - at < Lanes<T>::kCount ? end - Lanes<T>::kCount : at;
    body(from, at + step < end ? at + step : end);
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_REGISTER_ROWS_H_
