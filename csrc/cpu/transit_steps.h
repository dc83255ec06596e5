// The built-in step kernels of individual applications, as they are defined: pick by pick, without vectors. A step
// kernel of a user's application has the same signature (FsStepKernel). fs_set_isa("scalar") runs these everywhere; the
// engine else makes uniform and weighted picks by vector/walk_steps.h and walk_columns.h, bit for bit the same.
#ifndef FS_CPU_TRANSIT_STEPS_H_
#define FS_CPU_TRANSIT_STEPS_H_

#include "fastsample_transit.h"

namespace fs {

struct StepKernels {
  FsStepKernel next, step_transits, initial;  // as in FsTransitApp
};

// The kernels of an application; a `next` of null: this kind is not built in.
StepKernels step_kernels(const FsTransitApp& app, int32_t id_type);

inline const int64_t* ppr_table(const FsTransitApp& app) {
  return reinterpret_cast<const int64_t*>(static_cast<uintptr_t>(app.params[0]));
}

}  // namespace fs

#endif  // FS_CPU_TRANSIT_STEPS_H_
