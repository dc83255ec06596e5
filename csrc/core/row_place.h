// The place of a row that merge_rows reads (FsRowTables): place < 0 is row -1 - place of the fetched rows; any other
// holds the number of a table above FS_ROW_BITS and of its row below. A row of table 0 is its own place.
#ifndef FS_CORE_ROW_PLACE_H_
#define FS_CORE_ROW_PLACE_H_

#include <stdint.h>

#include "fastsample.h"
#include "platform.h"

namespace fs {

static_assert(FS_MOST_TABLES <= (int64_t{1} << (63 - FS_ROW_BITS)), "a table's number must fit above the row");

FS_HD int64_t place_table(int64_t place) { return place >> FS_ROW_BITS; }
FS_HD int64_t place_row(int64_t place) { return place & ((int64_t{1} << FS_ROW_BITS) - 1); }

FS_HD int64_t place_in(int64_t table, int64_t row) { return (table << FS_ROW_BITS) + row; }

// The table whose largest place a refusal of `place` shows: the one that it names, or the last.
FS_HD int64_t refused_table(int64_t place, int64_t num_tables) {
  const int64_t named = place < 0 ? 0 : place_table(place);
  return named < num_tables ? named : num_tables - 1;
}

}  // namespace fs

#endif  // FS_CORE_ROW_PLACE_H_
