// The order in which the picks of a step are made: sample by sample, or grouped by transit (NextDoor's
// transit-parallelism), in which a row that many picks are made from is read once.
#ifndef FS_CPU_TRANSIT_ORDER_H_
#define FS_CPU_TRANSIT_ORDER_H_

#include <stdint.h>

#include <vector>

namespace fs {

constexpr int64_t kLongRun = 64;  // picks of one transit from which on looking its row up once pays

// A transit of a sample: `place` is sample * num_transits + index.
struct TransitPlace {
  int64_t transit, place;
};

// Orders by transit, equal ones as they are. `spare` is scratch. Cost: one pass per 11 bits of num_rows.
void group_by_transit(std::vector<TransitPlace>& places, std::vector<TransitPlace>& spare, int64_t num_rows);

}  // namespace fs

#endif  // FS_CPU_TRANSIT_ORDER_H_
