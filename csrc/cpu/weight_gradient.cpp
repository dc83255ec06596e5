// weight_gradient: activation and dropout go back, and the rows that come out are multiplied with the layer's inputs
// while they are in the cache. Threads take slabs of rows, each with sums of its own, which are added up in order.
#include <algorithm>
#include <atomic>
#include <new>

#include "act_dropout.h"
#include "buffer.h"
#include "matrix_units.h"
#include "parallel_rows.h"
#include "row_sums.h"
#include "status.h"
#include "vector/tile_products.h"
#include "vector/vector_kernels.h"

namespace fs {
namespace {

#if defined(FS_MATRIX_UNITS)

constexpr int64_t kSlabRows = 4096;
static_assert(kSlabRows % kRunRows == 0 && kRunRows % FS_SUM_ROWS == 0, "a run is whole blocks, a slab whole runs");

struct WeightTask {
  const FsActDropout& spec;
  const Bfloat16 *y, *grad_y;
  Bfloat16* grad_x;          // NULL: not asked for
  RowSums<float>* row_sums;  // NULL: not asked for
  const Bfloat16* inputs;
  int64_t num_columns;

  // grad_y as it is: a product alone.
  bool is_plain() const {
    return grad_x == nullptr && row_sums == nullptr && spec.activation == FS_IDENTITY && spec.drop_threshold == 0;
  }
  int64_t padded_width() const { return padded_to_tiles(spec.width); }
  int64_t padded_columns() const { return padded_to_tiles(num_columns); }
  int64_t num_sums() const { return padded_width() * padded_columns(); }
};

// The gradient of the rows [begin, begin + count) before activation and dropout; `begin` is where a block of sums
// begins.
void write_rows(const WeightTask& task, int64_t begin, int64_t count, Bfloat16* out) {
  for (int64_t row = 0; row < count; row += FS_SUM_ROWS) {
    const int64_t at = (begin + row) * task.spec.width;
    FsActDropout block = task.spec;
    block.num_rows = std::min<int64_t>(FS_SUM_ROWS, count - row);
    if (block.node_ids != nullptr) block.node_ids += begin + row;
    float* sums = task.row_sums == nullptr ? nullptr : task.row_sums->block((begin + row) / FS_SUM_ROWS);
    vector_kernels().act_dropout_grad(block, task.y == nullptr ? nullptr : task.y + at, task.grad_y + at,
                                      out + row * task.spec.width, 0, block.num_rows, sums);
  }
}

// sums [num_sums] of the rows [begin, end).
void multiply_slab(const WeightTask& task, int64_t begin, int64_t end, float* sums) {
  static thread_local Buffer packed_a, packed_b, rows;
  uint32_t* a = packed_a.require_array<uint32_t>(task.padded_width() * kRunRows / 2);
  uint32_t* b = packed_b.require_array<uint32_t>(task.padded_columns() * kRunRows / 2);
  Bfloat16* own_rows = task.grad_x == nullptr ? rows.require_array<Bfloat16>(kRunRows * task.spec.width) : nullptr;
  open_tiles();
  for (int64_t row = begin; row < end; row += kRunRows) {
    const int64_t count = std::min(kRunRows, end - row);
    const Bfloat16* factors = task.grad_y + row * task.spec.width;
    if (!task.is_plain()) {
      Bfloat16* written = task.grad_x == nullptr ? own_rows : task.grad_x + row * task.spec.width;
      write_rows(task, row, count, written);
      factors = written;
    }
    add_tile_product({factors, task.inputs + row * task.num_columns, count, task.spec.width, task.num_columns, a, b,
                      sums, row == begin});
  }
  close_tiles();
}

void weight_gradient(const WeightTask& task, Bfloat16* out) {
  static thread_local Buffer of_slabs;
  const int64_t num_rows = task.spec.num_rows, slabs = (num_rows + kSlabRows - 1) / kSlabRows;
  float* sums = of_slabs.require_array<float>(std::max<int64_t>(slabs, 1) * task.num_sums());
  const int64_t row_bytes = 2 * (task.spec.width + task.num_columns);
  std::atomic<bool> has_room{true};  // an exception must not leave a thread
  parallel_rows(slabs, kSlabRows * row_bytes, task.spec.num_threads, [&](int64_t begin, int64_t end) {
    try {
      for (int64_t slab = begin; slab < end; ++slab) {
        const int64_t first = slab * kSlabRows;
        multiply_slab(task, first, std::min(first + kSlabRows, num_rows), sums + slab * task.num_sums());
      }
    } catch (const std::bad_alloc&) {
      has_room = false;
    }
  });
  if (!has_room) throw std::bad_alloc();
  if (slabs == 0) std::fill(sums, sums + task.num_sums(), 0.0f);
  for (int64_t slab = 1; slab < slabs; ++slab) {
    const float* own = sums + slab * task.num_sums();
    for (int64_t i = 0; i < task.num_sums(); ++i) sums[i] += own[i];
  }
  for (int64_t row = 0; row < task.spec.width; ++row) {
    for (int64_t column = 0; column < task.num_columns; ++column) {
      store(out + row * task.num_columns + column, sums[sum_place(row, column, task.padded_columns())]);
    }
  }
}

#endif

FsStatus check_weight_gradient(const FsActDropout& spec) {
  const FsStatus status = check_act_dropout("weight_gradient", spec);
  if (status != FS_OK) return status;
  if (spec.type != FS_BFLOAT16) {
    return fail(FS_INVALID_ARGUMENT, "weight_gradient: element type %d; expected bfloat16 (%d)", spec.type,
                FS_BFLOAT16);
  }
  if (!has_matrix_units()) {
    return fail(FS_INVALID_ARGUMENT,
                "weight_gradient: there are no matrix units; use act_dropout_backward_sums and a matrix product");
  }
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_weight_gradient(const FsActDropout* spec, const void* y, const void* grad_y, void* grad_x,
                                       float* sums, const void* inputs, int64_t num_columns, void* out_weight) {
  const FsStatus status = fs::check_weight_gradient(*spec);
  if (status != FS_OK) return status;
#if defined(FS_MATRIX_UNITS)
  return fs::guarded("weight_gradient", [&] {
    fs::RowSums<float> row_sums(*spec);
    fs::weight_gradient({*spec, static_cast<const fs::Bfloat16*>(y), static_cast<const fs::Bfloat16*>(grad_y),
                         static_cast<fs::Bfloat16*>(grad_x), sums == nullptr ? nullptr : &row_sums,
                         static_cast<const fs::Bfloat16*>(inputs), num_columns},
                        static_cast<fs::Bfloat16*>(out_weight));
    if (sums != nullptr) row_sums.add_to(sums);
    return FS_OK;
  });
#else
  (void)y, (void)grad_y, (void)grad_x, (void)sums, (void)inputs, (void)num_columns, (void)out_weight;
  return FS_OK;  // refused above
#endif
}
