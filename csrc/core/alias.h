// Alias tables: a position of a row drawn with probability weight / total, in constant time (Walker 1977; built by
// Vose's linear algorithm, IEEE Trans. Software Engineering 1991).
//
// A row of `degree` positions has `degree` slots of two 32-bit words. A draw takes a slot uniformly and one more word:
// below the slot's threshold it is the slot's own position, else its alias. A slot's probability is cut to a multiple
// of 2^-32, so the table's probability of a position is off by at most 2^-32 / degree for each slot that leads to it.
// A position of weight 0 is never reached: its own threshold is 0, and only positions of weight > 0 are aliases.
#ifndef FS_CORE_ALIAS_H_
#define FS_CORE_ALIAS_H_

#include <stdint.h>

#include "platform.h"

namespace fs {

struct AliasEntry {
  uint32_t threshold;
  uint32_t alias;  // position in the row
};

static_assert(sizeof(AliasEntry) == 2 * sizeof(uint32_t), "a table is uint32_t [num_edges, 2] in the ABI");

constexpr int64_t kMaxAliasDegree = (int64_t{1} << 31) - 1;

// One position of a row with a positive total. Stream has next() and below(n), as NodeStream.
template <typename Stream>
FS_HD int64_t alias_draw(Stream& stream, const AliasEntry* row, int64_t degree) {
  const int64_t slot = static_cast<int64_t>(stream.below(static_cast<uint64_t>(degree)));
  const uint32_t word = stream.next();
  const int64_t takes_alias = -static_cast<int64_t>(word >= row[slot].threshold);  // a coin toss: no branch
  return (slot & ~takes_alias) | (static_cast<int64_t>(row[slot].alias) & takes_alias);
}

// What one pass over a row's weights finds.
struct WeightSum {
  double total;          // as double, from left to right
  int64_t num_positive;  // weights > 0
  int64_t bad;           // first position of a weight that is negative, infinite or NaN; -1: none
};

template <typename Weight>
WeightSum sum_weights(const Weight* weights, int64_t degree) {
  constexpr double kLargest = sizeof(Weight) == sizeof(float) ? __FLT_MAX__ : __DBL_MAX__;
  WeightSum sum = {0, 0, -1};
  for (int64_t i = 0; i < degree; ++i) {
    const double weight = static_cast<double>(weights[i]);
    if (!(weight >= 0 && weight <= kLargest)) {
      sum.bad = i;
      return sum;
    }
    sum.total += weight;
    sum.num_positive += weight > 0;
  }
  return sum;
}

// Whether a table can be built from this total: the sum, and degree / sum, are finite.
inline bool total_is_usable(double total, int64_t degree) {
  return total <= __DBL_MAX__ && (total == 0 || static_cast<double>(degree) / total <= __DBL_MAX__);
}

// A row without a positive weight: no slot leads anywhere but to itself, and nothing is ever drawn from it.
inline void build_empty_alias_row(int64_t degree, AliasEntry* row) {
  for (int64_t i = 0; i < degree; ++i) row[i] = {0, static_cast<uint32_t>(i)};
}

// Builds the row for a usable total > 0. Scratch: p [degree], stack [degree]. The stack of positions with less than an
// average share (`small`) grows from the front of `stack`, that of the others (`large`) from its back.
template <typename Weight>
void build_alias_row(const Weight* weights, int64_t degree, double total, double* p, int32_t* stack, AliasEntry* row) {
  const double scale = static_cast<double>(degree) / total;
  int64_t num_small = 0, large = degree, heaviest = 0;  // the top of `large` is stack[large]
  for (int64_t i = 0; i < degree; ++i) {
    p[i] = static_cast<double>(weights[i]) * scale;
    const bool is_small = p[i] < 1;
    // Both ends are free, so both are written and one is kept: which of them is a coin toss to a branch predictor.
    stack[num_small] = static_cast<int32_t>(i);
    stack[large - 1] = static_cast<int32_t>(i);
    num_small += is_small;
    large -= !is_small;
    heaviest = weights[i] > weights[heaviest] ? i : heaviest;
  }
  while (num_small > 0 && large < degree) {
    const int32_t s = stack[--num_small], l = stack[large];
    row[s] = {static_cast<uint32_t>(p[s] * 4294967296.0), static_cast<uint32_t>(l)};
    p[l] = (p[l] + p[s]) - 1;
    if (p[l] < 1) {
      ++large;
      stack[num_small++] = l;
    }
  }
  // What is left has exactly its average share, except for rounding.
  for (; large < degree; ++large) row[stack[large]] = {UINT32_MAX, static_cast<uint32_t>(stack[large])};
  while (num_small > 0) {
    const int32_t s = stack[--num_small];
    row[s] = weights[s] > 0 ? AliasEntry{UINT32_MAX, static_cast<uint32_t>(s)}
                            : AliasEntry{0, static_cast<uint32_t>(heaviest)};
  }
}

}  // namespace fs

#endif  // FS_CORE_ALIAS_H_
