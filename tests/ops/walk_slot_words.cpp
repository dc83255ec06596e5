// Words of walk slots for few and for very many rows: every draw next to a threshold, or that differs from it in one
// bit, is decided as by the threshold itself. Prints the first one that is not.
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <vector>

#include "walk_slot.h"

namespace {

constexpr int64_t kSlots = 3;
constexpr uint32_t kThresholds[] = {0, 1, 0x80000000u, 0xABCD1234u, 0xABCDFFFFu, UINT32_MAX};
constexpr int64_t kNode24 = int64_t{1} << 24, kNode31 = int64_t{1} << 31;
constexpr int64_t kRows[] = {1,       255,         65535,        65536,           1 << 21,     kNode24 - 1,
                             kNode24, kNode24 * 8, kNode24 * 32, kNode31 / 2 + 1, kNode31 - 1, kNode31};

bool is_right(int64_t rows, uint32_t threshold, const fs::WalkSlots<int32_t>& slots, uint32_t word) {
  const int64_t own = word < threshold ? rows - 1 : 0;
  if (slots.pick(0, word) == own && slots.pick(1, word) == rows - 1 - own && slots.pick(2, word) == -1) return true;
  printf("rows %" PRId64 " threshold %x word %x: %" PRId64 ", %" PRId64 "\n", rows, threshold, word,
         slots.pick(0, word), slots.pick(1, word));
  return false;
}

}  // namespace

int main() {
  for (const int64_t rows : kRows) {
    const fs::WalkSlotBits bits(rows);
    for (const uint32_t threshold : kThresholds) {
      const uint64_t words[kSlots] = {bits.word(threshold, rows - 1, 0), bits.word(threshold, 0, rows - 1),
                                      bits.word(0, -1, -1)};
      std::vector<uint64_t> memory(2 * kSlots);
      memcpy(memory.data(), words, sizeof(words));
      const uint32_t thresholds[kSlots] = {threshold, threshold, 0};
      memcpy(memory.data() + kSlots, thresholds, sizeof(thresholds));
      const fs::WalkSlots<int32_t> slots(memory.data(), rows, kSlots);
      if (!slots.has_ids(0) || !slots.has_ids(1) || slots.has_ids(2)) return 1;
      for (int bit = -1; bit < 32; ++bit) {
        const uint32_t word = bit < 0 ? threshold : threshold ^ 1u << bit;
        for (const uint32_t draw : {word, word - 1, word + 1}) {
          if (!is_right(rows, threshold, slots, draw)) return 1;
        }
      }
    }
  }
  return 0;
}
