// Splits a run of rows evenly between OpenMP threads. Every row's result is independent of the split.
#ifndef FS_CPU_PARALLEL_ROWS_H_
#define FS_CPU_PARALLEL_ROWS_H_

#include <omp.h>
#include <stdint.h>

namespace fs {

constexpr int64_t kBytesPerThread = 1 << 16;  // less work than this is not worth waking a thread

// body(begin, end) on disjoint runs that cover 0 .. num_rows.
template <typename Body>
void parallel_rows(int64_t num_rows, int64_t bytes_per_row, int32_t num_threads, Body&& body) {
  const int64_t useful = num_rows * (bytes_per_row > 0 ? bytes_per_row : 1) / kBytesPerThread;
  const int threads = static_cast<int>(useful < num_threads ? (useful > 1 ? useful : 1) : num_threads);
  if (threads <= 1) {
    body(int64_t{0}, num_rows);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t count = omp_get_num_threads(), me = omp_get_thread_num();
    body(num_rows * me / count, num_rows * (me + 1) / count);
  }
}

}  // namespace fs

#endif  // FS_CPU_PARALLEL_ROWS_H_
