// What the CPU and the CUDA aggregate share: the checks of the arguments that need no data, and the factor of an edge.
#ifndef FS_CORE_AGGREGATION_H_
#define FS_CORE_AGGREGATION_H_

#include "fastsample.h"
#include "number_access.h"
#include "requests.h"

namespace fs {

// Arguments of the backward call; see fs_aggregate_backward.
struct AggregateGrads {
  const void* x;
  const int64_t* arg;
  const void* grad_out;
  int64_t grad_stride;
  void* grad_x;
  void* grad_weights;
  const void* own_grad;  // CPU: of the destinations' own rows, grad_stride apart, added to grad_x; NULL: none
};

namespace {

inline FsStatus check_aggregation(const char* operation, const FsAggregation& spec) {
  if (spec.reduce != FS_SUM && spec.reduce != FS_MEAN && spec.reduce != FS_MAX) {
    return fail(FS_INVALID_ARGUMENT, "%s: reduction %d; expected sum (0), mean (1) or max (2)", operation, spec.reduce);
  }
  const FsStatus status = check_element_type(operation, spec.type);
  if (status != FS_OK) return status;
  if (spec.num_heads < 1 || spec.width % spec.num_heads != 0) {
    return fail(FS_INVALID_ARGUMENT, "%s: %lld columns cannot be split between %lld heads", operation,
                static_cast<long long>(spec.width), static_cast<long long>(spec.num_heads));
  }
  if (spec.tile < 0) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: tile is %lld; expected a number of columns, or 0 for as many as registers hold", operation,
                static_cast<long long>(spec.tile));
  }
  return check_id_type(operation, spec.id_type);
}

template <typename T>
FS_HD typename Arithmetic<T>::type edge_weight(const FsAggregation& spec, int64_t edge, int64_t head) {
  using Real = typename Arithmetic<T>::type;
  const T* weights = static_cast<const T*>(spec.weights);
  return weights == nullptr ? Real(1) : load(weights[edge * spec.num_heads + head]);
}

// d out[v] / d x[src(e)]: the weight, divided by the degree for a mean.
template <typename T>
FS_HD typename Arithmetic<T>::type coefficient(const FsAggregation& spec, int64_t edge, int64_t dst, int64_t head) {
  using Real = typename Arithmetic<T>::type;
  const Real weight = edge_weight<T>(spec, edge, head);
  if (spec.reduce != FS_MEAN) return weight;
  return weight / static_cast<Real>(spec.indptr[dst + 1] - spec.indptr[dst]);
}

// Whether a value takes the place of the best so far: the first of equals wins; a NaN wins over every number and stays.
template <typename Real>
FS_HD bool wins(bool is_first, Real value, Real best) {
  return is_first || value > best || (value != value && best == best);
}

}  // namespace
}  // namespace fs

#endif  // FS_CORE_AGGREGATION_H_
