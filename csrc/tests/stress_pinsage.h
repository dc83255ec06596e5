// PinSAGE's neighbourhoods under stress: walks of the paper's numbers, whole walks, walks that fill several blocks;
// many batches at once; what has to be refused in the middle of the work.
#ifndef FS_TESTS_STRESS_PINSAGE_H_
#define FS_TESTS_STRESS_PINSAGE_H_

#include "fastsample_transit.h"
#include "stress_basics.h"
#include "stress_sampling.h"

namespace stress {

template <typename Id>
class Neighborhoods {
 public:
  explicit Neighborhoods(const DrawnGraph<Id>& graph) : graph_(graph), view_(graph.view(kDraws[0])) {
    for (int64_t i = 0; i < kSeeds; ++i) seeds_.push_back(static_cast<Id>((i * 7 + 1) % kNodes));
  }

  void run(int32_t num_threads, Written& written) const {
    const int64_t half = int64_t{1} << 62, survival[] = {half, half / 2};
    sample({survival, 4, 3, 5, 3, 0, num_threads, 11, 2}, written);
    sample({nullptr, 30, 6, 3, 1, 2, num_threads, 11, 2}, written);
    sample({nullptr, 1500, 1, 2000, 1, 0, num_threads, 11, 2}, written);
    refuse({survival, 4, 3, 5, 3, 0, num_threads, 11, 2});
  }

 private:
  // One batch of all seeds; batches of some.
  void sample(const FsPinsageSpec& spec, Written& written) const {
    const int64_t few = spec.num_walks > 1000 ? 40 : kSeeds;
    const std::vector<Batch> alone = batches(spec, {few});
    check(spec, *alone[0], written);
    for (const Batch& batch : batches(spec, {20, 0, 33, 7})) check(spec, *batch, written);
  }

  std::vector<Batch> batches(const FsPinsageSpec& spec, const std::vector<int64_t>& counts) const {
    const std::vector<const void*> seeds(counts.size(), seeds_.data());
    std::vector<FsMiniBatch*> found(counts.size());
    succeed(fs_sample_pinsage(&view_, &spec, seeds.data(), counts.data(), static_cast<int64_t>(counts.size()),
                              found.data()),
            "sample_pinsage");
    return std::vector<Batch>(found.begin(), found.end());
  }

  void check(const FsPinsageSpec& spec, const FsMiniBatch& batch, Written& written) const {
    require(batch.num_hops == spec.num_hops, "sample_pinsage: wrong number of hops");
    written.add("sample_pinsage", static_cast<const Id*>(batch.nodes), batch.num_nodes);
    for (int32_t h = 0; h < batch.num_hops; ++h) {
      const FsHop& hop = batch.hops[h];
      require(hop.num_src == (h + 1 < batch.num_hops ? batch.hops[h + 1].num_dst : batch.num_nodes),
              "sample_pinsage: hops do not chain");
      written.add("sample_pinsage", hop.indptr, hop.num_dst + 1);
      written.add("sample_pinsage", static_cast<const Id*>(hop.indices), hop.num_edges);
      written.add("sample_pinsage", hop.edge_weights, hop.num_edges);
      for (int64_t row = 0; row < hop.num_dst; ++row) {
        const int64_t begin = hop.indptr[row], end = hop.indptr[row + 1];
        double sum = 0;
        for (int64_t e = begin; e < end; ++e) {
          require(static_cast<const Id*>(hop.indices)[e] != static_cast<Id>(row), "sample_pinsage: its own neighbour");
          require(e == begin || hop.edge_weights[e - 1] >= hop.edge_weights[e], "sample_pinsage: out of order");
          sum += static_cast<double>(hop.edge_weights[e]);
        }
        require(end - begin <= spec.num_neighbors, "sample_pinsage: too many neighbours");
        require(begin == end || (sum > 0.999 && sum < 1.001), "sample_pinsage: weights do not add up to 1");
      }
    }
  }

  void refuse(FsPinsageSpec spec) const {
    const Id repeated[] = {5, 7, 5};
    const void* seeds[] = {seeds_.data(), repeated};
    const int64_t counts[] = {kSeeds, 3};
    FsMiniBatch* found[] = {nullptr, nullptr};
    refused(fs_sample_pinsage(&view_, &spec, seeds, counts, 2, found), "node 5");
    require(found[0] == nullptr && found[1] == nullptr, "sample_pinsage: refused, but with a result");
    const std::vector<Id> damaged(graph_.indices.size(), static_cast<Id>(-3));
    FsGraph broken = view_;
    broken.indices = damaged.data();
    refused(fs_sample_pinsage(&broken, &spec, seeds, counts, 1, found), "the negative source id -3");
    spec.num_walks = 0;
    refused(fs_sample_pinsage(&view_, &spec, seeds, counts, 1, found), "num_walks is 0");
    spec.num_walks = FS_MOST_VISITS;
    refused(fs_sample_pinsage(&view_, &spec, seeds, counts, 1, found), "expected at most 16777216 steps");
  }

  const DrawnGraph<Id>& graph_;
  const FsGraph view_;
  std::vector<Id> seeds_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_PINSAGE_H_
