// Walks: applications of one root, one transit and one pick per step, uniform or by weight, of a given length or of a
// length drawn at the start (PPR). The vector kernels take a block of walkers from step to step without any history,
// and every vertex is written to its place in the result at once.
#ifndef FS_CPU_WALK_BLOCKS_H_
#define FS_CPU_WALK_BLOCKS_H_

#include "transit_call.h"
#include "transit_result.h"

namespace fs {

constexpr int64_t kWalkBlock = 1024;  // walkers of a block: their state and the lines they write fit the second cache

// Whether the call is made of walks, and the instruction set in use has kernels for them.
bool are_walks(const TransitCall& call);

// All samples of such a call; null where call.failures has something to report.
TransitResult* sample_walks(TransitCall& call, int64_t block_samples);

}  // namespace fs

#endif  // FS_CPU_WALK_BLOCKS_H_
