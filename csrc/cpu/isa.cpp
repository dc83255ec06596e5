// Which table of vector kernels is in use: the widest that this machine runs, unless fs_set_isa chose another.
#include <string.h>

#include <atomic>
#include <initializer_list>

#include "status.h"
#include "vector/vector_kernels.h"

namespace fs {

const VectorKernels& vector_kernels_baseline();
#if defined(FS_X86_SETS)
const VectorKernels& vector_kernels_avx2();
const VectorKernels& vector_kernels_avx512();
#endif

namespace {

const VectorKernels& vector_kernels_scalar() {
  static const VectorKernels kernels = [] {
    VectorKernels table = vector_kernels_baseline();
    table.name = "scalar";
    table.samples_plainly = true;
    return table;
  }();
  return kernels;
}

bool runs_here(const char* name) {
  if (strcmp(name, "baseline") == 0 || strcmp(name, "scalar") == 0) return true;
#if defined(FS_X86_SETS)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2");
  if (strcmp(name, "avx2") == 0) return avx2;
  if (strcmp(name, "avx512") == 0) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return false;
}

const VectorKernels* table_of(const char* name) {
  if (strcmp(name, "baseline") == 0) return &vector_kernels_baseline();
  if (strcmp(name, "scalar") == 0) return &vector_kernels_scalar();
#if defined(FS_X86_SETS)
  if (strcmp(name, "avx2") == 0) return &vector_kernels_avx2();
  if (strcmp(name, "avx512") == 0) return &vector_kernels_avx512();
#endif
  return nullptr;
}

const VectorKernels* widest() {
  for (const char* name : {"avx512", "avx2"}) {
    if (runs_here(name)) return table_of(name);
  }
  return table_of("baseline");
}

std::atomic<const VectorKernels*> in_use{nullptr};

}  // namespace

const VectorKernels& vector_kernels() {
  const VectorKernels* kernels = in_use.load(std::memory_order_acquire);
  if (kernels == nullptr) {
    kernels = widest();
    in_use.store(kernels, std::memory_order_release);
  }
  return *kernels;
}

}  // namespace fs

extern "C" {

const char* fs_isa(void) { return fs::vector_kernels().name; }

FsStatus fs_set_isa(const char* name) {
  if (fs::table_of(name) == nullptr || !fs::runs_here(name)) {
    return fs::fail(FS_INVALID_ARGUMENT,
                    "instruction set '%s' is not available here; expected scalar, baseline, or avx2 and avx512 if the "
                    "processor has them",
                    name);
  }
  fs::in_use.store(fs::table_of(name), std::memory_order_release);
  return FS_OK;
}

}  // extern "C"
