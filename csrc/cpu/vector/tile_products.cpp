// sums += a^T b on tiles: compiled with -mamx-tile -mamx-bf16 and AVX-512; nothing of the C++ library is used.
//
// A tile of `a` has 16 columns of a as its rows, each with 32 numbers along the rows of the matrix; a tile of `b` has
// 16 pairs of neighbouring rows, each with 16 columns. Both are made of pairs {row 2 i, row 2 i + 1} of 16 columns, one
// 32-bit word a column; for `a` sixteen such vectors are transposed. Two tiles by two of the result are in registers
// while all rows of the run go by.
#include "tile_products.h"

#include <immintrin.h>

namespace fs {
namespace {

constexpr int64_t kTileWords = kTileRows * kTileDepth / 2;
constexpr int64_t kTilesOfRun = kRunRows / kTileDepth;
constexpr int kLine = 64;  // bytes of a packed tile's row

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};  // there are eight tiles
};

constexpr TileConfig kConfig;

// The compiler does not know that tile instructions read and write memory.
inline void memory_barrier() { asm volatile("" ::: "memory"); }

inline __m512i load_row(const Bfloat16* row, __mmask16 columns) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(columns, row));
}

// Words {row, row + 1} of 16 columns; a row that is not there is zeros.
inline __m512i pair_of_rows(const Bfloat16* rows, int64_t width, int64_t row, int64_t num_rows, __mmask16 columns) {
  if (row >= num_rows) return _mm512_setzero_si512();
  const __m512i first = load_row(rows + row * width, columns);
  if (row + 1 >= num_rows) return first;
  return _mm512_or_si512(first, _mm512_slli_epi32(load_row(rows + (row + 1) * width, columns), 16));
}

// words[i] holds word i of all sixteen.
inline void transpose(__m512i words[16]) {
  __m512i pairs[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(words[i], words[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(words[i], words[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {  // quarter q of fours[4 i + j] has word 4 q + j of the vectors 4 i .. 4 i + 3
    const __m512i even_low = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0xDD);
    const __m512i even_high = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0xDD);
    words[j] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    words[4 + j] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    words[8 + j] = _mm512_shuffle_i32x4(even_low, even_high, 0xDD);
    words[12 + j] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD);
  }
}

inline __mmask16 columns_left(int64_t width, int64_t column) {
  const int64_t left = width - column;
  return left >= kTileRows ? 0xFFFF : left <= 0 ? 0 : static_cast<__mmask16>((1 << left) - 1);
}

// Packed rows are [padded width / 16][kTilesOfRun] tiles; this is where the tile of a row and a column begins.
inline uint32_t* tile_of(uint32_t* packed, int64_t row, int64_t column) {
  return packed + (column / kTileRows * kTilesOfRun + row / kTileDepth) * kTileWords;
}

void pack_transposed(const Bfloat16* rows, int64_t num_rows, int64_t width, uint32_t* packed) {
  for (int64_t row = 0; row < num_rows; row += kTileDepth) {
    for (int64_t column = 0; column < padded_to_tiles(width); column += kTileRows) {
      const __mmask16 columns = columns_left(width, column);
      __m512i words[16];
      for (int i = 0; i < 16; ++i) words[i] = pair_of_rows(rows + column, width, row + 2 * i, num_rows, columns);
      transpose(words);
      uint32_t* tile = tile_of(packed, row, column);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * kTileRows, words[i]);
    }
  }
}

// Pair by pair of rows, as they lie in memory.
void pack_pairs(const Bfloat16* rows, int64_t num_rows, int64_t width, uint32_t* packed) {
  const int64_t end = (num_rows + kTileDepth - 1) / kTileDepth * kTileDepth;
  for (int64_t row = 0; row < end; row += 2) {
    uint32_t* words = tile_of(packed, row, 0) + row % kTileDepth / 2 * kTileRows;
    for (int64_t column = 0; column < padded_to_tiles(width); column += kTileRows) {
      _mm512_store_si512(words, pair_of_rows(rows + column, width, row, num_rows, columns_left(width, column)));
      words += kTilesOfRun * kTileWords;
    }
  }
}

// Four tiles of the result, which lie one after the other in `sums`: 0 1 over 2 3. Tiles 4 and 5 are those of `a`, 6
// and 7 those of `b`.
inline void multiply_block(const uint32_t* a, const uint32_t* b, int64_t tiles, float* sums, bool is_first) {
  constexpr int64_t kTileSums = kTileRows * kTileRows;
  if (is_first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kLine);
    _tile_loadd(1, sums + kTileSums, kLine);
    _tile_loadd(2, sums + 2 * kTileSums, kLine);
    _tile_loadd(3, sums + 3 * kTileSums, kLine);
  }
  const uint32_t *next_a = a + kTilesOfRun * kTileWords, *next_b = b + kTilesOfRun * kTileWords;
  for (int64_t at = 0; at < tiles * kTileWords; at += kTileWords) {
    _tile_loadd(4, a + at, kLine);
    _tile_loadd(6, b + at, kLine);
    _tile_loadd(7, next_b + at, kLine);
    _tile_loadd(5, next_a + at, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kLine);
  _tile_stored(1, sums + kTileSums, kLine);
  _tile_stored(2, sums + 2 * kTileSums, kLine);
  _tile_stored(3, sums + 3 * kTileSums, kLine);
}

}  // namespace

void open_tiles() { _tile_loadconfig(&kConfig); }

void close_tiles() { _tile_release(); }

void add_tile_product(const TileProduct& product) {
  pack_transposed(product.a, product.num_rows, product.a_width, product.packed_a);
  pack_pairs(product.b, product.num_rows, product.b_width, product.packed_b);
  memory_barrier();
  const int64_t tiles = (product.num_rows + kTileDepth - 1) / kTileDepth;
  const int64_t height = padded_to_tiles(product.a_width), width = padded_to_tiles(product.b_width);
  for (int64_t column = 0; column < width; column += kTileBlock) {
    for (int64_t row = 0; row < height; row += kTileBlock) {
      multiply_block(product.packed_a + row * kRunRows / 2, product.packed_b + column * kRunRows / 2, tiles,
                     product.sums + row * width + column * kTileBlock, product.is_first);
    }
  }
  memory_barrier();
}

}  // namespace fs
