// skipgram_gradients over a run of rows, in two passes. As centre: scalar products with its contexts (`kTerms` at a
// time, so that their rows stay in the first-level cache), the losses' derivatives side by side, and the sum over the
// contexts' rows. As context: the sum over the centres' rows. A row's sum has one order, whatever the threads.
#ifndef FS_CPU_VECTOR_SKIPGRAM_ROWS_H_
#define FS_CPU_VECTOR_SKIPGRAM_ROWS_H_

#include "aggregate_rows.h"
#include "embedding_tasks.h"

namespace fs {
namespace {

constexpr int64_t kTerms = 16;      // contexts of a centre that are handled side by side
constexpr int kProductLanes = 32;   // partial sums of a scalar product
constexpr int64_t kPairsAhead = 4;  // pairs ahead of a centre whose contexts' rows are requested
constexpr int64_t kTermsAhead = 4;  // terms ahead whose rows are requested

template <typename T>
FS_INLINE T scalar_product(const T* a, const T* b, int64_t width) {
  T lanes[kProductLanes];
  for (int l = 0; l < kProductLanes; ++l) lanes[l] = 0;
  int64_t c = 0;
  for (; c + kProductLanes <= width; c += kProductLanes) {
#pragma omp simd
    for (int l = 0; l < kProductLanes; ++l) lanes[l] += a[c + l] * b[c + l];
  }
  for (int l = 0; c < width; ++c, ++l) lanes[l] += a[c] * b[c];
  for (int half = kProductLanes / 2; half > 0; half /= 2) {
#pragma omp simd
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// By Horner's scheme; coefficients from the highest power down.
template <int kCount>
FS_INLINE double polynomial(const double (&coefficients)[kCount], double x) {
  double sum = coefficients[0];
  for (int k = 1; k < kCount; ++k) sum = sum * x + coefficients[k];
  return sum;
}

// sigmoid[i] = 1 / (1 + exp(-x[i])) and plus[i] = ln(1 + exp(x[i])), by basic operations alone, so that every
// instruction set rounds alike; relative error of the first below 1e-14, of the second below 1e-9.
FS_INLINE void sigmoid_and_softplus(const double* x, int64_t count, double* sigmoid, double* plus) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, in the low bits
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0.6931471803691238, kLn2Low = 1.9082149292705877e-10;
  constexpr double kLowest = -700;  // exp of it is a normal number
  constexpr double kExp[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                             1.0 / 120,      1.0 / 24,      1.0 / 6,      1.0 / 2,     1,          1};
  constexpr double kAtanh[] = {1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1};
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const double size = x[i] < 0 ? x[i] : -x[i];  // -|x|
    const double y = size < kLowest ? kLowest : size;
    const double shifted = y * kLog2E + kRound, power = shifted - kRound;
    const double r = (y - power * kLn2High) - power * kLn2Low;
    double e = polynomial(kExp, r);
    int64_t bits, exponent;
    __builtin_memcpy(&bits, &e, sizeof(bits));
    __builtin_memcpy(&exponent, &shifted, sizeof(exponent));
    bits += static_cast<int64_t>(static_cast<uint64_t>(exponent) << 52);
    __builtin_memcpy(&e, &bits, sizeof(e));  // exp(-|x|)
    sigmoid[i] = (x[i] < 0 ? e : 1.0) / (1.0 + e);
    const double z = e / (2.0 + e), z2 = z * z;  // ln(1 + e) = 2 atanh(z), z <= 1/3
    plus[i] = (x[i] < 0 ? 0.0 : x[i]) + 2.0 * z * polynomial(kAtanh, z2);
  }
}

template <typename T>
FS_INLINE void add_scaled(T* sum, const T* row, T factor, int64_t width) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) sum[c] += factor * row[c];
}

// The terms first .. first + count - 1 of one centre, all of one pair: factors, their share of `sum`; their loss.
template <typename T>
double center_terms(const FsSkipGram& pairs, const T* center, int64_t first, int64_t count, T* factors, T* sum) {
  const T* rows = static_cast<const T*>(pairs.rows);
  const int32_t* contexts = pairs.contexts + first;
  double x[kTerms], sigmoid[kTerms], plus[kTerms], loss = 0;
  for (int64_t i = 0; i < count; ++i) {
    x[i] = static_cast<double>(scalar_product(center, rows + contexts[i] * pairs.width, pairs.width));
    if ((first + i) % pairs.contexts_per_pair == 0) x[i] = -x[i];  // softplus(-x): it was seen
  }
  sigmoid_and_softplus(x, count, sigmoid, plus);
  for (int64_t i = 0; i < count; ++i) {
    const bool is_seen = (first + i) % pairs.contexts_per_pair == 0;
    factors[first + i] = static_cast<T>((is_seen ? -sigmoid[i] : sigmoid[i]) * pairs.scale);
    loss += plus[i];
    add_scaled(sum, rows + contexts[i] * pairs.width, factors[first + i], pairs.width);
  }
  return loss;
}

template <typename T>
void centers_typed(const SkipGramTask& task, int64_t begin, int64_t end) {
  const FsSkipGram& pairs = task.pairs;
  const T* rows = static_cast<const T*>(pairs.rows);
  const int64_t per_pair = pairs.contexts_per_pair, ahead = task.center_offsets[end];
  for (int64_t row = begin; row < end; ++row) {
    T* sum = static_cast<T*>(task.grads) + row * pairs.width;
    for (int64_t c = 0; c < pairs.width; ++c) sum[c] = 0;
    double loss = 0;
    for (int64_t i = task.center_offsets[row]; i < task.center_offsets[row + 1]; ++i) {
      if (i + kPairsAhead < ahead) {
        const int32_t* next = pairs.contexts + task.center_pairs[i + kPairsAhead] * per_pair;
        for (int64_t k = 0; k < per_pair && k < kTerms; ++k) prefetch_row(rows + next[k] * pairs.width, pairs.width);
      }
      const int64_t first = task.center_pairs[i] * per_pair;
      for (int64_t k = 0; k < per_pair; k += kTerms) {
        const int64_t count = per_pair - k < kTerms ? per_pair - k : kTerms;
        loss += center_terms(pairs, rows + row * pairs.width, first + k, count, static_cast<T*>(task.factors), sum);
      }
    }
    task.losses[row] = loss;
  }
}

template <typename T>
void contexts_typed(const SkipGramTask& task, int64_t begin, int64_t end) {
  const FsSkipGram& pairs = task.pairs;
  const T* rows = static_cast<const T*>(pairs.rows);
  const T* factors = static_cast<const T*>(task.factors);
  const int64_t last = task.context_offsets[end];
  const auto center_of = [&](int64_t i) {
    return rows + pairs.centers[task.context_terms[i] / pairs.contexts_per_pair] * pairs.width;
  };
  for (int64_t row = begin; row < end; ++row) {
    T* sum = static_cast<T*>(task.grads) + row * pairs.width;
    for (int64_t i = task.context_offsets[row]; i < task.context_offsets[row + 1]; ++i) {
      if (i + kTermsAhead < last) prefetch_row(center_of(i + kTermsAhead), pairs.width);
      add_scaled(sum, center_of(i), factors[task.context_terms[i]], pairs.width);
    }
  }
}

void skipgram_centers(const SkipGramTask& task, int64_t begin, int64_t end) {
  if (task.pairs.type == FS_FLOAT32) centers_typed<float>(task, begin, end);
  if (task.pairs.type == FS_FLOAT64) centers_typed<double>(task, begin, end);
}

void skipgram_contexts(const SkipGramTask& task, int64_t begin, int64_t end) {
  if (task.pairs.type == FS_FLOAT32) contexts_typed<float>(task, begin, end);
  if (task.pairs.type == FS_FLOAT64) contexts_typed<double>(task, begin, end);
}

FS_INLINE float root(float value) { return __builtin_sqrtf(value); }
FS_INLINE double root(double value) { return __builtin_sqrt(value); }

// Moves columns [0, count) of one row by the sum of its gradients there.
template <typename T>
FS_INLINE void move_row(const FsRowUpdate& update, int64_t at, int64_t count, const T* sum) {
  T* row = static_cast<T*>(update.table) + at;
  const T step_size = static_cast<T>(update.step_size);
  if (update.first_moments == nullptr) {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) row[c] -= step_size * sum[c];
    return;
  }
  T* m = static_cast<T*>(update.first_moments) + at;
  T* v = static_cast<T*>(update.second_moments) + at;
  const T first_rate = static_cast<T>(update.first_rate), second_rate = static_cast<T>(update.second_rate);
  const T epsilon = static_cast<T>(update.epsilon);
#pragma omp simd
  for (int64_t c = 0; c < count; ++c) {
    m[c] += (sum[c] - m[c]) * first_rate;
    v[c] += (sum[c] * sum[c] - v[c]) * second_rate;
    row[c] -= step_size * m[c] / (root(v[c]) + epsilon);
  }
}

template <typename T>
void update_rows_typed(const RowUpdateTask& task, int64_t begin, int64_t end) {
  const FsRowUpdate& update = task.update;
  const auto gradient = [&](int64_t i) {
    const int64_t place = update.places[task.gradients[i]];
    const void* from = place >= 0 ? update.own : update.received;
    return static_cast<const T*>(from) + (place >= 0 ? place : -1 - place) * update.width;
  };
  T sum[kTile];
  for (int64_t u = begin; u < end; ++u) {
    if (u + 1 < end) {
      const int64_t next = update.rows[u + 1] * update.width;
      prefetch_row(static_cast<const T*>(update.table) + next, update.width);
      if (update.first_moments != nullptr) {
        prefetch_row(static_cast<const T*>(update.first_moments) + next, update.width);
        prefetch_row(static_cast<const T*>(update.second_moments) + next, update.width);
      }
    }
    const int64_t first = task.offsets[u], last = task.offsets[u + 1];
    if (first == last) continue;
    for (int64_t tile = 0; tile < update.width; tile += kTile) {
      const int64_t count = update.width - tile < kTile ? update.width - tile : kTile;
      const T* single = gradient(first) + tile;
      for (int64_t c = 0; c < count; ++c) sum[c] = single[c];
      for (int64_t i = first + 1; i < last; ++i) {
        const T* other = gradient(i) + tile;
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) sum[c] += other[c];
      }
      move_row(update, update.rows[u] * update.width + tile, count, sum);
    }
  }
}

void update_rows(const RowUpdateTask& task, int64_t begin, int64_t end) {
  if (task.update.type == FS_FLOAT32) update_rows_typed<float>(task, begin, end);
  if (task.update.type == FS_FLOAT64) update_rows_typed<double>(task, begin, end);
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_SKIPGRAM_ROWS_H_
