// Layer-neighbour sampling, LABOR-0 (Balin & Catalyurek, "Layer-neighbor sampling", NeurIPS 2023).
//
// Every source t has one variate u(t) for a whole hop, and an edge t -> s is taken iff u(t) / 2^32 < fanout /
// degree(s). Destinations that share sources thus tend to take the same ones, which makes the union of sources small. A
// row has `fanout` picks only on average; a row of no more than `fanout` neighbours takes them all.
#ifndef FS_CORE_LAYER_PICK_H_
#define FS_CORE_LAYER_PICK_H_

#include <stdint.h>

#include "philox.h"
#include "pick.h"
#include "platform.h"

namespace fs {

// Stage of the key when all hops of a step share their variates.
constexpr uint32_t kAllHops = 0xFFFFFFFFu;

// u(t) of the source with this original id; the key is that of domain kLayer.
FS_HD uint32_t variate(StageKey key, uint64_t orig_id) { return NodeStream(key, orig_id).next(); }

// u * degree < fanout * 2^32, compared after division by 2^32 so that nothing overflows.
FS_HD bool layer_takes(uint32_t u, int64_t degree, int64_t fanout) {
  if (fanout == kTakeAll) return true;
  const uint64_t whole = static_cast<uint64_t>(degree);
  return (whole >> 32) * u + ((whole & 0xFFFFFFFFull) * u >> 32) < static_cast<uint64_t>(fanout);
}

// For the scan of a row: layer_takes(u, degree, fanout) is u < layer_bound(degree, fanout), the quotient fanout * 2^32
// / degree rounded up; 2^32 where all are taken.
FS_HD uint64_t layer_bound(int64_t degree, int64_t fanout) {
  if (fanout == kTakeAll || degree <= fanout) return 1ull << 32;
  const uint64_t divisor = static_cast<uint64_t>(degree);
  uint64_t quotient = 0, remainder = static_cast<uint64_t>(fanout);
  if (remainder >> 32 == 0) {
    const uint64_t dividend = remainder << 32;
    quotient = dividend / divisor;
    remainder = dividend % divisor;
  } else {
    for (int bit = 0; bit < 32; ++bit) {  // long division; the remainder stays below degree < 2^63
      remainder <<= 1;
      quotient <<= 1;
      if (remainder >= divisor) {
        remainder -= divisor;
        quotient |= 1;
      }
    }
  }
  return quotient + (remainder != 0);
}

}  // namespace fs

#endif  // FS_CORE_LAYER_PICK_H_
