// The edges between given nodes, row by row: each id of a row is looked up in a bitmap, those that are in it are packed
// together without a branch, and packed ids become local ids some rows later, when they can be read back from the cache
// at no cost (a load of what was just stored in pieces would wait for the stores).
#ifndef FS_CPU_VECTOR_INDUCED_EDGES_H_
#define FS_CPU_VECTOR_INDUCED_EDGES_H_

#include <stdint.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "id_lanes.h"
#include "induced_task.h"

namespace fs {
namespace {

constexpr int64_t kInducedAhead = 6;        // rows ahead whose first lines are requested
constexpr int64_t kInducedLines = 4;        // the hardware follows from there
constexpr int64_t kEdgesAhead = 256;        // in a long row
constexpr int64_t kEdgesTranslated = 4096;  // that wait for their local ids: 16 or 32 KB

template <typename Id>
struct RowPiece {
  const Id* ids;  // [count]
  int64_t first;  // position of the first in the graph's indices
  int64_t count;
  int64_t left;  // edges up to the end of the row
};

#if defined(__AVX512F__)

// As many ids as fit into a vector. `active`: the lanes that are there.
struct Lanes32 {
  using Id = int32_t;
  static constexpr int kCount = 16;
  using Mask = __mmask16;
  using Vector = __m512i;
  static FS_INLINE Vector load(Mask active, const Id* ids) { return _mm512_maskz_loadu_epi32(active, ids); }
  static FS_INLINE Vector largest(Vector a, Vector b) { return _mm512_max_epu32(a, b); }
  static FS_INLINE uint64_t reduce(Vector a) { return _mm512_reduce_max_epu32(a); }
  static FS_INLINE Mask in_bits(Mask active, Vector ids, const NodeMembers<Id>& members) {
    const Vector word_mask = _mm512_set1_epi32(static_cast<int>(members.mask >> 5));
    const Vector words =
        _mm512_i32gather_epi32(_mm512_and_si512(_mm512_srli_epi32(ids, 5), word_mask), members.bits, 4);
    return _mm512_mask_test_epi32_mask(active, _mm512_rorv_epi32(words, ids), _mm512_set1_epi32(1));
  }
  static FS_INLINE void store_packed(Id* out, Mask kept, Vector ids) {
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(kept, ids));
  }
  static FS_INLINE void translate(Mask active, Id* ids, const int32_t* locals) {
    const Vector known = load(active, ids);
    _mm512_mask_storeu_epi32(ids, active, _mm512_mask_i32gather_epi32(known, active, known, locals, 4));
  }
};

struct Lanes64 {
  using Id = int64_t;
  static constexpr int kCount = 8;
  using Mask = __mmask8;
  using Vector = __m512i;
  static FS_INLINE Vector load(Mask active, const Id* ids) { return _mm512_maskz_loadu_epi64(active, ids); }
  static FS_INLINE Vector largest(Vector a, Vector b) { return _mm512_max_epu64(a, b); }
  static FS_INLINE uint64_t reduce(Vector a) { return _mm512_reduce_max_epu64(a); }
  static FS_INLINE Mask in_bits(Mask active, Vector ids, const NodeMembers<Id>& members) {
    const Vector word_mask = _mm512_set1_epi64(static_cast<long long>(members.mask >> 5));
    const __m256i words =
        _mm512_i64gather_epi32(_mm512_and_si512(_mm512_srli_epi64(ids, 5), word_mask), members.bits, 4);
    return _mm256_mask_test_epi32_mask(active, _mm256_rorv_epi32(words, _mm512_cvtepi64_epi32(ids)),
                                       _mm256_set1_epi32(1));
  }
  static FS_INLINE void store_packed(Id* out, Mask kept, Vector ids) {
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi64(kept, ids));
  }
  static FS_INLINE void translate(Mask active, Id* ids, const int32_t* locals) {
    const Vector known = load(active, ids);
    const __m256i found = _mm512_mask_i64gather_epi32(_mm256_setzero_si256(), active, known, locals, 4);
    _mm512_mask_storeu_epi64(ids, active, _mm512_cvtepi32_epi64(found));
  }
};

template <typename Id>
struct LanesOf;
template <>
struct LanesOf<int32_t> {
  using Type = Lanes32;
};
template <>
struct LanesOf<int64_t> {
  using Type = Lanes64;
};

template <typename Lanes>
FS_INLINE typename Lanes::Mask active_lanes(int64_t count) {
  return static_cast<typename Lanes::Mask>(count >= Lanes::kCount ? ~0u : (1u << count) - 1);
}

// first, first + 1, ... of the lanes in `kept`, which are up to 16.
FS_INLINE void store_positions(int64_t* out, uint32_t kept, int64_t first) {
  const __m512i low = _mm512_add_epi64(_mm512_set1_epi64(first), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
  _mm512_storeu_si512(out, _mm512_maskz_compress_epi64(static_cast<__mmask8>(kept), low));
  if (kept < 0x100) return;
  const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(8));
  _mm512_storeu_si512(out + __builtin_popcount(kept & 0xFF),
                      _mm512_maskz_compress_epi64(static_cast<__mmask8>(kept >> 8), high));
}

// Appends those of a piece that the bits have. Returns the largest of all its ids.
template <typename Id>
FS_INLINE uint64_t pack_piece(const NodeMembers<Id>& members, const RowPiece<Id>& piece, InducedRun<Id>* run) {
  using Lanes = typename LanesOf<Id>::Type;
  typename Lanes::Vector largest = _mm512_setzero_si512();
  Id* out = run->indices + run->count;
  int64_t* positions = run->edge_ids == nullptr ? nullptr : run->edge_ids + run->count;
  int64_t kept_before = 0;
  for (int64_t i = 0; i < piece.count; i += Lanes::kCount) {
    if (i + kEdgesAhead < piece.left) __builtin_prefetch(piece.ids + i + kEdgesAhead);
    const auto active = active_lanes<Lanes>(piece.count - i);
    const auto here = Lanes::load(active, piece.ids + i);
    largest = Lanes::largest(largest, here);
    const auto kept = Lanes::in_bits(active, here, members);
    Lanes::store_packed(out + kept_before, kept, here);
    if (positions != nullptr) store_positions(positions + kept_before, kept, piece.first + i);
    kept_before += __builtin_popcount(kept);
  }
  run->count += kept_before;
  return Lanes::reduce(largest);
}

template <typename Id>
FS_INLINE void translate(const int32_t* locals, Id* ids, int64_t begin, int64_t end) {
  using Lanes = typename LanesOf<Id>::Type;
  for (int64_t i = begin; i < end; i += Lanes::kCount) {
    Lanes::translate(active_lanes<Lanes>(end - i), ids + i, locals);
  }
}

#else

constexpr int64_t kLineEdges = 16;

template <typename Id>
FS_INLINE uint64_t in_bits(const NodeMembers<Id>& members, uint64_t id) {
  return members.bits[(id & members.mask) >> 5] >> (id & 31) & 1;
}

template <typename Id>
FS_INLINE uint64_t pack_piece(const NodeMembers<Id>& members, const RowPiece<Id>& piece, InducedRun<Id>* run) {
  uint64_t largest = 0;
  Id* out = run->indices;
  int64_t* const positions = run->edge_ids;
  int64_t at = run->count;
  for (int64_t i = 0; i < piece.count; ++i) {
    if (i % kLineEdges == 0 && i + kEdgesAhead < piece.left) __builtin_prefetch(piece.ids + i + kEdgesAhead);
    const uint64_t id = static_cast<uint64_t>(static_cast<int64_t>(piece.ids[i]));
    largest = id > largest ? id : largest;
    out[at] = piece.ids[i];
    if (positions != nullptr) positions[at] = piece.first + i;
    at += static_cast<int64_t>(in_bits(members, id));
  }
  run->count = at;
  return largest;
}

template <typename Id>
FS_INLINE void translate(const int32_t* locals, Id* ids, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) ids[i] = static_cast<Id>(locals[ids[i]]);
}

#endif

// Local id of a node, -1: it is not in the table.
template <typename Id>
FS_INLINE int64_t find_local(const IdTable<Id>& table, Id id) {
  for (uint64_t at = table.home(id);; at = table.after(at)) {
    const IdBucket<Id>& bucket = table.buckets[at];
    const uint32_t found = equal_lanes(bucket.keys, id);
    if (found != 0) return bucket.locals[__builtin_ctz(found)];
    if (equal_lanes(bucket.keys, Id{-1}) != 0) return -1;
  }
}

// Local ids of edges num_local .. count; where the bits are not exact, those that are not in the table go.
template <typename Id>
FS_INLINE void relabel_found(const NodeMembers<Id>& members, InducedRun<Id>* run) {
  if (members.locals != nullptr) {
    translate(members.locals, run->indices, run->num_local, run->count);
    run->num_local = run->count;
    return;
  }
  int64_t to = run->num_local;
  for (int64_t i = run->num_local; i < run->count; ++i) {
    const int64_t local = find_local(members.table, run->indices[i]);
    run->indices[to] = static_cast<Id>(local);
    if (run->edge_ids != nullptr) run->edge_ids[to] = run->edge_ids[i];
    to += local >= 0;
  }
  run->num_local = run->count = to;
}

template <typename Id>
FS_INLINE void request_start(const InducedTask<Id>& task, int64_t row) {
  const char* bytes = reinterpret_cast<const char*>(task.indices + task.rows[row].begin);
  for (int64_t line = 0; line < kInducedLines; ++line) __builtin_prefetch(bytes + 64 * line);
}

// Position of the first id that is refused, from `first` on.
template <typename Id>
int64_t first_refused(const InducedTask<Id>& task, int64_t first) {
  while (static_cast<uint64_t>(static_cast<int64_t>(task.indices[first])) < task.num_ids) ++first;
  return first;
}

template <typename Id>
uint64_t unsigned_limit(uint64_t num_ids) {  // of ids as the kernels compare them
  const uint64_t most = sizeof(Id) == 4 ? uint64_t{1} << 31 : uint64_t{1} << 63;
  return num_ids < most ? num_ids : most;
}

template <typename Id>
void induce_rows(const InducedTask<Id>& task, InducedRun<Id>* progress) {
  InducedRun<Id> run = *progress;  // that nothing else points to
  const bool exact = task.members.locals != nullptr;
  const uint64_t limit = unsigned_limit<Id>(task.num_ids);
  for (; run.row < run.end_row; ++run.row) {
    if (run.row + kInducedAhead < run.end_row) request_start(task, run.row + kInducedAhead);
    const RowEdges row = task.rows[run.row];
    while (run.next_edge < row.degree) {
      const int64_t first = row.begin + run.next_edge, left = row.degree - run.next_edge;
      const RowPiece<Id> piece = {task.indices + first, first, left < kInducedPiece ? left : kInducedPiece, left};
      if (run.capacity - run.count < piece.count + kInducedSlack) {
        *progress = run;
        return;
      }
      if (pack_piece(task.members, piece, &run) >= limit) {
        run.bad = first_refused(task, first);
        *progress = run;
        return;
      }
      run.next_edge += piece.count;
      if (!exact) relabel_found(task.members, &run);
    }
    run.next_edge = 0;
    run.offsets[run.row + 1] = run.count;
    if (run.count - run.num_local >= kEdgesTranslated) relabel_found(task.members, &run);
  }
  relabel_found(task.members, &run);
  *progress = run;
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_INDUCED_EDGES_H_
