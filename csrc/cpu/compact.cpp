// compact: relabel one hop's neighbours to local ids; destinations first, new nodes in order of first appearance.
#include "relabel.h"
#include "status.h"

namespace fs {
namespace {

template <typename Id>
FsStatus compact(const Id* dst_nodes, int64_t num_dst, const Id* neighbors, int64_t num_edges, Id* src_nodes,
                 Id* indices, int64_t* num_src) {
  Relabeler<Id>& relabeler = thread_relabeler<Id>();
  relabeler.begin(num_dst);
  *num_src = 0;
  for (int64_t i = 0; i < num_dst; ++i) {
    const long long node = static_cast<long long>(dst_nodes[i]);
    if (node < 0) return fail(FS_INVALID_ARGUMENT, "compact: dst_nodes holds the negative id %lld", node);
    const Id local = relabeler.local(dst_nodes[i], src_nodes, num_src);
    if (local != static_cast<Id>(i)) {
      return fail(FS_INVALID_ARGUMENT,
                  "compact: dst_nodes holds node %lld at positions %lld and %lld; expected each node once", node,
                  static_cast<long long>(local), static_cast<long long>(i));
    }
  }
  const int64_t bad = relabeler.relabel(neighbors, num_edges, src_nodes, num_src, indices);
  if (bad >= 0) {
    return fail(FS_INVALID_ARGUMENT, "compact: neighbors holds the negative id %lld at position %lld",
                static_cast<long long>(neighbors[bad]), static_cast<long long>(bad));
  }
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
