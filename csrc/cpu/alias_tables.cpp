// alias_tables: one alias table per row of in-edges, for drawing edges by weight.
#include "alias_rows.h"

namespace fs {
namespace {

struct TableSink {
  AliasEntry* table;      // [num_edges]
  int64_t* num_positive;  // [num_rows]

  bool needs_scratch() const { return false; }
  AliasEntry* place(int64_t begin, AliasEntry*) const { return table + begin; }
  template <typename Weight>
  void done(const AliasRow<Weight>& row) const {
    num_positive[row.row] = row.sum.num_positive;
  }
};

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_alias_tables(const FsEdgeWeights* edges, uint32_t* out_table, int64_t* out_num_positive) {
  return fs::guarded("alias_tables", [&] {
    const fs::TableSink sink = {reinterpret_cast<fs::AliasEntry*>(out_table), out_num_positive};
    return fs::alias_rows("alias_tables", *edges, sink);
  });
}
