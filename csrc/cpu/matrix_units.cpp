// Finding the matrix units: see matrix_units.h. Linux saves their 8 KiB of state only for processes that asked for it.
#include "matrix_units.h"

#include "fastsample.h"

#if defined(FS_MATRIX_UNITS)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fs {
namespace {

#if defined(FS_MATRIX_UNITS)
constexpr int kRequestState = 0x1023, kTileData = 18;        // <asm/prctl.h>, which older headers lack
constexpr unsigned kTiles = 1u << 24, kBfloat16 = 1u << 22;  // of leaf 7 in edx: amx-tile, amx-bf16

bool find_matrix_units() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if ((edx & kTiles) == 0 || (edx & kBfloat16) == 0) return false;
  __builtin_cpu_init();
  const bool packs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return packs && syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
}
#else
bool find_matrix_units() { return false; }
#endif

}  // namespace

bool has_matrix_units() {
  static const bool found = find_matrix_units();
  return found;
}

}  // namespace fs

extern "C" int32_t fs_has_matrix_units(void) { return fs::has_matrix_units() ? 1 : 0; }
