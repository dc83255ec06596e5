// What the kernels of a user's application (app_kernels.cuh) are launched with, and their names.
#ifndef FS_CUDA_APP_STEP_CUH_
#define FS_CUDA_APP_STEP_CUH_

#include "distinct_rounds.cuh"

namespace fs {

// One step, or, of walks, all steps of a call.
struct AppStep {
  FsStepTask task;                            // without its key, where there are keys
  FsStepKernel next, step_transits, initial;  // that the emulator calls
  int64_t num_nodes;
  const uint64_t* sorted;  // in whose lower bits transits' places are, sample * num_transits + index; NULL: in order
  uint64_t place_mask;
  const int64_t* offsets;  // of FS_ALL_NEIGHBORS
  const int64_t* begins;   // of a collective application: as in FsCudaAppCall
  DistinctTables tables;   // of distinct picks
  const StageKey* keys;    // the step's; of walks two of every step: of its pick, and of the choice of its transit
  int64_t num_steps;       // of walks; the first one is the task's
  int64_t* transits;       // of walks: where step_transits writes
  uint8_t* ended;          // as in FsCudaAppSteps
  int64_t* live;
  uint64_t* failure;
};

}  // namespace fs

#endif  // FS_CUDA_APP_STEP_CUH_
