// sample_neighbors: one hop for rows that the caller names, without relabelling (what the vanilla scheme answers to the
// other ranks). Two calls: offsets first, so that the caller can allocate, then the picks.
#include <vector>

#include "sample_hop.h"

namespace fs {
namespace {

template <typename Id>
FsStatus indptr_of(const FsGraph& graph, const FsSampleSpec& spec, const Id* rows, int64_t num_rows, int64_t* indptr) {
  std::vector<int64_t> starts(static_cast<size_t>(num_rows));
  return count_picks("sample_neighbors", view_of<Id>(graph), hop_spec(spec, 0), rows, num_rows, indptr, starts.data());
}

template <typename Id>
void picks_of(const FsGraph& raw, const FsSampleSpec& spec, const Id* rows, int64_t num_rows, const int64_t* indptr,
              Id* out) {
  const CscView<Id> graph = view_of<Id>(raw);
  std::vector<int64_t> starts(static_cast<size_t>(num_rows));
  for (int64_t i = 0; i < num_rows; ++i) starts[static_cast<size_t>(i)] = graph.indptr[rows[i]];
  fill_picks(graph, hop_spec(spec, 0), rows, num_rows, indptr, starts.data(), out);
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_sample_neighbors_indptr(const FsGraph* graph, const FsSampleSpec* spec, const void* rows,
                                    int64_t num_rows_asked, int64_t* out_indptr) {
  return fs::guarded("sample_neighbors", [&] {
    const FsStatus status = fs::check_spec("sample_neighbors", *spec);
    if (status != FS_OK) return status;
    return fs::with_id_type("sample_neighbors", graph->id_type, [&](auto zero) {
      using Id = decltype(zero);
      return fs::indptr_of<Id>(*graph, *spec, static_cast<const Id*>(rows), num_rows_asked, out_indptr);
    });
  });
}

FsStatus fs_sample_neighbors(const FsGraph* graph, const FsSampleSpec* spec, const void* rows, int64_t num_rows_asked,
                             const int64_t* indptr, void* out_neighbors) {
  return fs::guarded("sample_neighbors", [&] {
    return fs::with_id_type("sample_neighbors", graph->id_type, [&](auto zero) {
      using Id = decltype(zero);
      fs::picks_of<Id>(*graph, *spec, static_cast<const Id*>(rows), num_rows_asked, indptr,
                       static_cast<Id*>(out_neighbors));
      return FS_OK;
    });
  });
}

}  // extern "C"
