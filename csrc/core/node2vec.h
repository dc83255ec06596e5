// node2vec (Grover & Leskovec, KDD'16): from v, having come from t, a neighbour u of v is taken with probability in
// proportion to w(v, u) times 1/p if u = t, 1 if u is a neighbour of t, 1/q else. By rejection: u is drawn by weight, a
// coin says for which of the three cases u is accepted, and only where they disagree is the row of t asked for u.
#ifndef FS_CORE_NODE2VEC_H_
#define FS_CORE_NODE2VEC_H_

#include <stdint.h>

#include "hashed_rows.h"
#include "platform.h"

namespace fs {

constexpr uint64_t kSure = uint64_t{1} << 32;  // a threshold above every coin

// The chances of acceptance, of 2^32: the three factors, divided by the largest of them.
struct Node2VecLaw {
  uint64_t back, near, far;

  FS_HD uint64_t least() const { return near < far ? near : far; }
  FS_HD uint64_t most() const { return near < far ? far : near; }
};

// One pick. `pick(stream)` draws a neighbour of v, or -1 if there is none; `previous` is t, or -1: then every u is far.
template <typename Id, typename Stream, typename Pick>
FS_HD int64_t node2vec_draw(Stream& stream, const HashedRows<Id>& rows, const Node2VecLaw& law, int64_t previous,
                            const Pick& pick) {
  for (;;) {
    const int64_t u = pick(stream);
    if (u < 0) return u;
    const uint64_t coin = stream.next();
    if (u == previous) {
      if (coin < law.back) return u;
    } else if (coin < law.least()) {
      return u;
    } else if (coin < law.most()) {
      const bool is_near = previous >= 0 && rows.has(rows.nodes[previous], u);
      if (coin < (is_near ? law.near : law.far)) return u;
    }
  }
}

}  // namespace fs

#endif  // FS_CORE_NODE2VEC_H_
