// Walks: applications of one root, one transit and one pick per step, uniform or by weight, of a given length or of a
// length drawn at the start (PPR). The vector kernels take walkers from step to step in lock step, without any history;
// those of drawn lengths go with others of about the same length.
#ifndef FS_CPU_WALK_BLOCKS_H_
#define FS_CPU_WALK_BLOCKS_H_

#include "buffer.h"
#include "transit_call.h"
#include "transit_result.h"

namespace fs {

// Whether the call is made of walks, and the instruction set in use has kernels for them.
bool are_walks(const TransitCall& call);

// All samples of such a call; null where call.failures has something to report.
TransitResult* sample_walks(TransitCall& call);

// The calling thread's memory for a block of walks.
Buffer& thread_walks();

}  // namespace fs

#endif  // FS_CPU_WALK_BLOCKS_H_
