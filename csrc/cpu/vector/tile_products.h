// Products of bfloat16 rows on the processor's matrix units (Intel AMX): what the gradient of a weight is made of.
#ifndef FS_CPU_VECTOR_TILE_PRODUCTS_H_
#define FS_CPU_VECTOR_TILE_PRODUCTS_H_

#include <stdint.h>

#include "number_types.h"

namespace fs {

constexpr int64_t kTileRows = 16;              // of a tile, and its float32 columns
constexpr int64_t kTileDepth = 32;             // bfloat16 numbers of a tile's row
constexpr int64_t kTileBlock = 2 * kTileRows;  // rows and columns of the result that are made at once
constexpr int64_t kRunRows = 512;              // rows that are packed together: both operands stay in a core's cache

// a [num_rows][a_width], b [num_rows][b_width]: at most kRunRows rows.
struct TileProduct {
  const Bfloat16 *a, *b;
  int64_t num_rows, a_width, b_width;
  uint32_t *packed_a, *packed_b;  // [padded width / 2][kRunRows], aligned to 64 bytes
  float* sums;                    // padded a_width * padded b_width of them, by blocks (sum_place), aligned to 64 bytes
  bool is_first;                  // sums are written, not added to
};

namespace {

inline int64_t padded_to_tiles(int64_t width) { return (width + kTileBlock - 1) / kTileBlock * kTileBlock; }

// Where in `sums` the sum of a row and a column is: blocks of 2 by 2 tiles, each row of tiles by itself.
inline int64_t sum_place(int64_t row, int64_t column, int64_t padded_columns) {
  const int64_t block = row / kTileBlock * kTileBlock * padded_columns + column / kTileBlock * kTileBlock * kTileBlock;
  const int64_t tile = row % kTileBlock / kTileRows * 2 + column % kTileBlock / kTileRows;
  return block + tile * kTileRows * kTileRows + row % kTileRows * kTileRows + column % kTileRows;
}

}  // namespace

#if defined(FS_MATRIX_UNITS)
// sums += a^T b. Subnormal numbers count as zero. Between open_tiles and close_tiles of the same thread.
void add_tile_product(const TileProduct& product);
void open_tiles();
void close_tiles();
#endif

}  // namespace fs

#endif  // FS_CPU_VECTOR_TILE_PRODUCTS_H_
