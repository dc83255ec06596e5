// bucket_by_part: group node ids by the part that owns them (stable counting sort), with counts and the way back.
#include <stddef.h>

#include <algorithm>
#include <vector>

#include "part_owner.h"
#include "status.h"

namespace fs {
namespace {

template <typename Id>
FsStatus bucket_by_part(const Id* ids, int64_t num_ids, const int64_t* part_ranges, int64_t num_parts, Id* out_ids,
                        int64_t* counts, int64_t* places) {
  std::fill(counts, counts + num_parts, int64_t{0});
  std::vector<int32_t> owner(static_cast<size_t>(num_ids));
  for (int64_t i = 0; i < num_ids; ++i) {
    const int64_t id = ids[i];
    if (id < part_ranges[0] || id >= part_ranges[num_parts]) {
      return refuse(FS_REFUSED_OWNER, "bucket_by_part", {{id, i, part_ranges[0], part_ranges[num_parts] - 1}});
    }
    const int64_t part = owner_of(id, part_ranges, num_parts);
    owner[static_cast<size_t>(i)] = static_cast<int32_t>(part);
    ++counts[part];
  }
  std::vector<int64_t> next(static_cast<size_t>(num_parts), 0);
  for (int64_t part = 1; part < num_parts; ++part) {
    next[static_cast<size_t>(part)] = next[static_cast<size_t>(part) - 1] + counts[part - 1];
  }
  for (int64_t i = 0; i < num_ids; ++i) {
    const int64_t place = next[static_cast<size_t>(owner[static_cast<size_t>(i)])]++;
    places[i] = place;
    out_ids[place] = ids[i];
  }
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_bucket_by_part(int32_t id_type, const void* ids, int64_t num_ids, const int64_t* part_ranges,
                                      int64_t num_parts, void* out_ids, int64_t* out_counts, int64_t* out_places) {
  const FsStatus status = fs::check_parts("bucket_by_part", num_parts);
  if (status != FS_OK) return status;
  return fs::guarded("bucket_by_part", [&] {
    return fs::with_id_type("bucket_by_part", id_type, [&](auto zero) {
      using Id = decltype(zero);
      return fs::bucket_by_part<Id>(static_cast<const Id*>(ids), num_ids, part_ranges, num_parts,
                                    static_cast<Id*>(out_ids), out_counts, out_places);
    });
  });
}
