// A checked call of fs_transit_sample: what all of its blocks of samples share.
#ifndef FS_CPU_TRANSIT_CALL_H_
#define FS_CPU_TRANSIT_CALL_H_

#include <atomic>
#include <mutex>
#include <vector>

#include "pick_run.h"
#include "status.h"
#include "transit_draw.h"
#include "transit_steps.h"

namespace fs {

// The failure that is reported: that of the first step, and there of the first sample, whatever the order of the work.
class FailureBoard {
 public:
  // Whether a block that has come to this step can stop: an earlier one has failed.
  bool is_past(int64_t step) const { return step > first_step_.load(std::memory_order_relaxed); }
  void report(const FsTransitFailure& failure);
  const FsTransitFailure& first() const { return first_; }
  bool is_empty() const { return first_.fault == FS_APP_FINE; }

 private:
  std::atomic<int64_t> first_step_{INT64_MAX};
  std::mutex mutex_;
  FsTransitFailure first_ = {0, 0, 0, 0, FS_APP_FINE, FS_IN_NEXT};
};

// FS_APP_ERROR, and the line that says what the application did.
FsStatus app_failed(const FsTransitFailure& failure, int64_t num_rows);

struct TransitCall {
  const FsGraph& graph;
  const FsTransitTables& tables;
  const FsTransitApp& app;
  const FsTransitRequest& request;
  StepKernels kernels;
  std::vector<int64_t> picks;  // of a sample, by step; of FS_ALL_NEIGHBORS 0
  int64_t width;               // vertices of a sample; -1: they differ
  FailureBoard failures;

  TransitCall(const FsGraph& a_graph, const FsTransitTables& some_tables, const FsTransitApp& an_app,
              const FsTransitRequest& a_request)
      : graph(a_graph),
        tables(some_tables),
        app(an_app),
        request(a_request),
        kernels(step_kernels(an_app, a_graph.id_type)),
        width(-1) {}

  FsStatus check();  // and sets picks and width
  FsStatus refuse_failure(FsTransitFailure* failure) const;

  int64_t sample_id(int64_t sample) const {
    return request.sample_ids == nullptr ? sample : request.sample_ids[sample];
  }
  bool is_unique(int64_t step) const { return app.unique != nullptr && app.unique[step] != 0; }
  bool takes_all(int64_t step) const { return app.sample_sizes[step] == FS_ALL_NEIGHBORS; }
  bool has_node(int64_t node) const { return node >= 0 && node < graph.num_rows; }
  PickedRows rows_to_pick_from(bool by_weight) const {
    return {graph.indptr, graph.indices, by_weight ? tables.walk_slots : nullptr, static_cast<uint64_t>(graph.num_rows),
            graph.num_edges};
  }
  StageKey key(RandomDomain domain, int64_t step) const {
    return transit_key(request.rng_seed, domain, step, request.step);
  }

 private:
  FsStatus check_app() const;
  FsStatus check_node2vec() const;
  FsStatus check_steps();
  FsStatus check_request() const;
};

}  // namespace fs

#endif  // FS_CPU_TRANSIT_CALL_H_
