// compact: relabel one hop's neighbours to local ids; destinations first, new nodes in order of first appearance.
#include <string.h>

#include <limits>

#include "status.h"
#include "table_memory.h"
#include "uniform_rows.h"

namespace fs {
namespace {

template <typename Id>
FsStatus compact(const Id* dst_nodes, int64_t num_dst, const Id* neighbors, int64_t num_edges, Id* src_nodes,
                 Id* indices, int64_t* num_src) {
  TableMemory<Id>& table = thread_table<Id>();
  Relabeling<Id> ids = table.start(src_nodes, num_dst, std::numeric_limits<Id>::max());
  for (int64_t i = 0; i < num_dst; ++i) {
    Id local = dst_nodes[i];
    relabel_edges(&local, 0, 1, &ids);
    if (ids.bad >= 0) return refuse(FS_REFUSED_NEGATIVE_DST, "compact", {{dst_nodes[i]}});
    if (local != static_cast<Id>(i)) {
      return refuse(FS_REFUSED_REPEATED_DST, "compact", {{dst_nodes[i], local, i}});
    }
  }
  if (num_edges > 0) memcpy(indices, neighbors, static_cast<size_t>(num_edges) * sizeof(Id));
  relabel_edges(indices, 0, num_edges, &ids);
  if (ids.bad >= 0) {
    return refuse(FS_REFUSED_NEGATIVE_NEIGHBOR, "compact", {{neighbors[ids.bad], ids.bad}});
  }
  *num_src = ids.num_nodes;
  table.finish(ids);
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_compact(int32_t id_type, const void* dst_nodes, int64_t num_dst, const void* neighbors,
                               int64_t num_edges, void* out_src_nodes, void* out_indices, int64_t* out_num_src) {
  return fs::guarded("compact", [&] {
    return fs::with_id_type("compact", id_type, [&](auto zero) {
      using Id = decltype(zero);
      return fs::compact<Id>(static_cast<const Id*>(dst_nodes), num_dst, static_cast<const Id*>(neighbors), num_edges,
                             static_cast<Id*>(out_src_nodes), static_cast<Id*>(out_indices), out_num_src);
    });
  });
}
