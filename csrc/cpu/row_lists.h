// Numbers grouped by a key, ascending inside a group: a stable counting sort.
#ifndef FS_CPU_ROW_LISTS_H_
#define FS_CPU_ROW_LISTS_H_

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace fs {

struct RowLists {
  std::vector<int64_t> offsets;  // [num_keys + 1]
  std::vector<int32_t> numbers;  // [count] numbers with key k: numbers[offsets[k] .. offsets[k + 1])
  int64_t bad = -1;              // the first number whose key is out of range; the lists are then empty
};

// Groups 0 .. count - 1 (fewer than 2^31) by keys[i], 0 .. num_keys - 1.
inline RowLists group_by_key(const int32_t* keys, int64_t count, int64_t num_keys) {
  RowLists lists;
  lists.offsets.assign(static_cast<size_t>(num_keys) + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    if (keys[i] < 0 || keys[i] >= num_keys) {
      lists.bad = i;
      return lists;
    }
    ++lists.offsets[static_cast<size_t>(keys[i]) + 1];
  }
  for (size_t key = 0; key < static_cast<size_t>(num_keys); ++key) lists.offsets[key + 1] += lists.offsets[key];
  lists.numbers.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    lists.numbers[static_cast<size_t>(lists.offsets[static_cast<size_t>(keys[i])]++)] = static_cast<int32_t>(i);
  }
  for (size_t key = static_cast<size_t>(num_keys); key > 0; --key) lists.offsets[key] = lists.offsets[key - 1];
  lists.offsets[0] = 0;
  return lists;
}

}  // namespace fs

#endif  // FS_CPU_ROW_LISTS_H_
