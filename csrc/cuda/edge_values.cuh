// What edges count as in collective applications: their weights, or 1.
#ifndef FS_CUDA_EDGE_VALUES_CUH_
#define FS_CUDA_EDGE_VALUES_CUH_

#include "device.cuh"

namespace fs {
namespace {

struct DeviceEdgeValues {
  const float* floats;
  const double* doubles;

  explicit DeviceEdgeValues(const FsWeightTables* weights) : floats(nullptr), doubles(nullptr) {
    if (weights == nullptr) return;
    if (weights->weight_type == FS_FLOAT32) {
      floats = static_cast<const float*>(weights->weights);
    } else {
      doubles = static_cast<const double*>(weights->weights);
    }
  }

  FS_DEVICE double operator[](int64_t edge) const {
    if (floats != nullptr) return static_cast<double>(floats[edge]);
    return doubles != nullptr ? doubles[edge] : 1.0;
  }
};

}  // namespace
}  // namespace fs

#endif  // FS_CUDA_EDGE_VALUES_CUH_
