// sample_neighbors: one hop for rows that the caller names, without relabelling (what the vanilla scheme answers to the
// other ranks).
#include "mini_batch.h"
#include "sample_hop.h"

namespace fs {
namespace {

template <typename Id>
FsStatus sample_neighbors(const FsGraph& graph, const FsSampleSpec& spec, const Id* rows, int64_t num_rows,
                          FsMiniBatch** out) {
  OwnedBatch batch = make_batch(1);
  FsHop* hop = batch->hops;
  hop->num_dst = num_rows;
  hop->indptr = take_array<int64_t>(num_rows + 1);
  const HopRows<Id> asked = {rows, num_rows, thread_row_edges().require_array<RowEdges>(num_rows), hop->indptr};
  const auto allocate = [&](const CscView<Id>& view, const HopSpec& how, const HopRows<Id>& counted) {
    return allocate_edges(view, how, counted, spec.edge_ids != 0, hop);
  };
  const HopSampler<Id> sampler("sample_neighbors", graph, hop_spec(spec, 0, vector_kernels().samples_plainly));
  const FsStatus status = sampler.run(asked, nullptr, allocate);
  if (status == FS_OK) *out = batch.release();
  return status;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_sample_neighbors(const FsGraph* graph, const FsSampleSpec* spec, const void* rows,
                                        int64_t num_rows_asked, FsMiniBatch** out) {
  *out = nullptr;
  const FsStatus status = fs::check_request("sample_neighbors", *graph, *spec);
  if (status != FS_OK) return status;
  return fs::guarded("sample_neighbors", [&] {
    return fs::with_id_type("sample_neighbors", graph->id_type, [&](auto zero) {
      using Id = decltype(zero);
      return fs::sample_neighbors<Id>(*graph, *spec, static_cast<const Id*>(rows), num_rows_asked, out);
    });
  });
}
