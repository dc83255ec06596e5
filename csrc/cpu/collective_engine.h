// One sample of a collective application, from its roots to its last step (Jangda et al., EuroSys'21, section 3).
#ifndef FS_CPU_COLLECTIVE_ENGINE_H_
#define FS_CPU_COLLECTIVE_ENGINE_H_

#include <stdint.h>

#include <vector>

#include "fastsample_transit.h"
#include "race_ranking.h"
#include "record_edges.h"
#include "transit_draw.h"

namespace fs {

// Arguments of fs_collective_sample.
struct CollectiveCall {
  const FsGraph& graph;
  const FsTransitTables& tables;
  const FsTransitApp& app;
  const FsCollectiveSpec& spec;
  const FsTransitRequest& request;
};

// Why a sample failed; thrown.
struct AppFailure {
  FsTransitFailure line;
};

// Makes one sample after another in memory that it keeps.
template <typename Id>
class CollectiveEngine {
 public:
  // What a sample is, until the next one is made.
  struct Grown {
    const std::vector<int64_t>& vertices;  // roots and the picks of all steps that were run
    FsRecordedEdges edges;                 // the caller's
  };

  // The sample at this position of the request. Throws AppFailure, BadSource.
  Grown grow(const CollectiveCall& call, int64_t position);

  size_t bytes() const;

 private:
  int64_t sample_id() const;
  const int64_t* picks_of(int64_t k) const { return vertices_.data() + begins_[static_cast<size_t>(k)]; }

  void run_steps();
  bool has_transit() const;
  void find_transits(int64_t k);
  void rank(int64_t k);
  void make_distinct_picks(int64_t k);
  void fill_slots(int64_t k, int64_t attempt, const std::vector<int64_t>* slots);
  int64_t layer_pick(int64_t slot, PickStream& draw) const;
  void make_global_picks(const std::vector<int64_t>* slots, int64_t count, int64_t first_pick, int64_t* out) const;

  // The step as callbacks see it; of `domain`.
  FsStepTask task_of(int64_t k, RandomDomain domain);
  void call(FsStepKernel kernel, FsAppFunction function, FsStepTask& task, int64_t count);
  [[noreturn]] void fail_with(FsAppFault fault, FsAppFunction function, int64_t k, int64_t node = FS_NULL_NODE) const;

  const CollectiveCall* call_ = nullptr;
  CscView<Id> graph_ = {};
  int64_t position_ = 0;
  std::vector<int64_t> vertices_;  // roots, picks of step 0, 1, ...
  std::vector<int64_t> begins_;    // [steps + 2] where each of them begins
  int64_t filled_ = 0;             // vertices that are not NULL
  std::vector<int64_t> transits_, distinct_, ranked_, state_, slots_, left_;
  std::vector<const int64_t*> bases_;  // of vertices_, for callbacks
  std::vector<int64_t> widths_;
  StageKey key_ = {};  // of the step's picks
  CombinedRows<Id> combined_;
  ColumnSums<Id> columns_;
  RaceRanking race_;
  NodeIndex<Id> taken_;  // picks of a step that is to be unique
  EdgeRecorder<Id> recorder_;
};

}  // namespace fs

#endif  // FS_CPU_COLLECTIVE_ENGINE_H_
