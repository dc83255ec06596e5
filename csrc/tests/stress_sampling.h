// The samplers under stress: every method, with and without replacement, edge ids, whole rows and large fanouts; many
// batches at once; single hops of slices of the graph; what has to be refused, in the middle of the work too.
#ifndef FS_TESTS_STRESS_SAMPLING_H_
#define FS_TESTS_STRESS_SAMPLING_H_

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "stress_basics.h"

namespace stress {

constexpr int64_t kNodes = 2200, kEdges = 22000, kSeeds = 1600;  // rows enough for three OpenMP threads in every hop
constexpr int64_t kHubEdges = 1200;                              // of node 0: more than are looked at in one go
constexpr int64_t kFewSeeds = 300;
constexpr int32_t kHops = 3;
constexpr uint64_t kStep = 11;

struct Draw {
  const char* name;
  FsSampleMethod method;
  int32_t replace, layer_dependency, edge_ids;
  bool skewed;  // weights: a quarter is 0 and some are larger than all the rest; else positive and float32
  int64_t fanouts[kHops];
};

constexpr Draw kDraws[] = {
    {"uniform", FS_UNIFORM, 0, 0, 0, false, {7, 5, 4}},
    {"uniform, replaced", FS_UNIFORM, 1, 0, 0, false, {7, 5, 40}},
    {"uniform, large, edge ids", FS_UNIFORM, 0, 0, 1, false, {40, 7, -1}},
    {"uniform, replaced, edge ids", FS_UNIFORM, 1, 0, 1, false, {33, 2, 7}},
    {"weighted", FS_WEIGHTED, 0, 0, 0, true, {7, 5, 40}},
    {"weighted, edge ids", FS_WEIGHTED, 0, 0, 1, true, {7, -1, 6}},
    {"weighted, replaced", FS_WEIGHTED, 1, 0, 0, true, {7, 40, 3}},
    {"weighted, replaced, edge ids", FS_WEIGHTED, 1, 0, 1, false, {5, 33, 2}},
    {"weighted, positive, edge ids", FS_WEIGHTED, 0, 0, 1, false, {33, 4, -1}},
    {"labor", FS_LABOR, 0, 0, 0, false, {7, 40, 3}},
    {"labor, edge ids", FS_LABOR, 0, 0, 1, false, {5, -1, 2}},
    {"labor, one layer, edge ids", FS_LABOR, 0, 1, 1, false, {7, 5, 4}},
};

struct FreeBatch {
  void operator()(FsMiniBatch* batch) const { fs_mini_batch_free(batch); }
};
using Batch = std::unique_ptr<FsMiniBatch, FreeBatch>;

// Callers leave a batch here and free the one that another left.
class Exchange {
 public:
  void swap(Batch* batch) {
    const std::lock_guard<std::mutex> hold(mutex_);
    left_.swap(*batch);
  }

 private:
  std::mutex mutex_;
  Batch left_;
};

// A graph over which sampling needs all that it can need; constant once drawn, so that callers share it.
template <typename Id>
struct DrawnGraph {
  std::vector<int64_t> indptr, orig_ids, num_positive;
  std::vector<Id> indices;
  std::vector<double> skewed;
  std::vector<float> positive;
  std::vector<uint32_t> skewed_table, positive_table;
  FsWeightTables skewed_weights, positive_weights;

  explicit DrawnGraph(Generator& generator) {
    draw_rows(generator);
    std::uniform_real_distribution<float> unit(0, 1);
    for (int64_t e = 0; e < kEdges; ++e) {
      const float u = unit(generator);
      skewed.push_back(u < 0.25f ? 0.0 : u < 0.35f ? 1e200 * u : u < 0.5f ? 1e-300 : u);
      positive.push_back(unit(generator) < 0.05f ? 1e30f : u + 1e-30f);
    }
    num_positive.resize(static_cast<size_t>(kNodes));
    std::vector<int64_t> degrees(num_positive.size());
    build_table(skewed, &skewed_table, num_positive.data());
    build_table(positive, &positive_table, degrees.data());
    skewed_weights = {skewed.data(), skewed_table.data(), num_positive.data(), FS_FLOAT64};
    positive_weights = {positive.data(), positive_table.data(), nullptr, FS_FLOAT32};
  }
  DrawnGraph(const DrawnGraph&) = delete;

  const FsWeightTables* weights_of(const Draw& draw) const {
    if (draw.method != FS_WEIGHTED) return nullptr;
    return draw.skewed ? &skewed_weights : &positive_weights;
  }

  FsGraph view(const Draw& draw) const {
    return {indptr.data(), indices.data(), orig_ids.data(), nullptr, weights_of(draw), kNodes, 0,
            kEdges,        type_code<Id>()};
  }

 private:
  // Degrees fall with the square root of the id; a quarter of the nodes has no in-edge. Rows ascend by original id.
  void draw_rows(Generator& generator) {
    std::uniform_int_distribution<int64_t> any_node(0, kNodes - 1);
    std::uniform_real_distribution<double> unit(0, 1);
    std::vector<std::vector<Id>> rows(static_cast<size_t>(kNodes));
    for (int64_t e = 0; e < kEdges; ++e) {
      const double root = unit(generator);
      const int64_t row = e < kHubEdges ? 0 : static_cast<int64_t>(root * root * (kNodes * 3 / 4));
      rows[static_cast<size_t>(row)].push_back(static_cast<Id>(any_node(generator)));
    }
    for (int64_t v = 0; v < kNodes; ++v) orig_ids.push_back((v * 7919) % kNodes + (int64_t{1} << 40));
    const auto is_before = [&](Id a, Id b) {
      return orig_ids[static_cast<size_t>(a)] < orig_ids[static_cast<size_t>(b)];
    };
    indptr.push_back(0);
    for (std::vector<Id>& row : rows) {
      std::sort(row.begin(), row.end(), is_before);
      indices.insert(indices.end(), row.begin(), row.end());
      indptr.push_back(static_cast<int64_t>(indices.size()));
    }
  }

  template <typename Weight>
  void build_table(const std::vector<Weight>& weights, std::vector<uint32_t>* table, int64_t* counts) const {
    const FsEdgeWeights edges = {indptr.data(), weights.data(), kNodes, kEdges, type_code<Weight>(), 1};
    table->resize(static_cast<size_t>(kEdges) * 2);
    succeed(fs_alias_tables(&edges, table->data(), counts), "alias_tables");
  }
};

// All samplers over one graph.
template <typename Id>
class Samplers {
 public:
  Samplers(const DrawnGraph<Id>& graph, uint64_t rng_seed) : graph_(graph), rng_seed_(rng_seed) {
    for (int64_t i = 0; i < kSeeds; ++i) seeds_.push_back(static_cast<Id>((i * 7 + 1) % kNodes));
  }

  Batch sample(const Draw& draw, int64_t num_seeds, int32_t num_threads) const {
    const FsGraph view = graph_.view(draw);
    const FsSampleSpec how = spec(draw, num_threads);
    FsMiniBatch* batch = nullptr;
    succeed(fs_sample_mfg(&view, &how, seeds_.data(), num_seeds, &batch), draw.name);
    return Batch(batch);
  }

  void run(int32_t num_threads, Exchange* exchange, Written& written) const {
    for (const Draw& draw : kDraws) {
      Batch batch = sample(draw, kSeeds, num_threads);
      check(draw, *batch);
      record(draw, *batch, written);
      relabel_one_hop(draw, num_threads, batch->hops[0]);
      sample_a_slice(draw, num_threads, written);
      sample_many(draw, num_threads);
      exchange->swap(&batch);
    }
    reach_the_sum_tree();
    refuse_seeds(num_threads);
    refuse_many(num_threads);
    refuse_specs();
    refuse_damaged_graphs(num_threads);
  }

 private:
  FsSampleSpec spec(const Draw& draw, int32_t num_threads) const {
    return {draw.fanouts,          kHops,         0,           draw.method, draw.replace,
            draw.layer_dependency, draw.edge_ids, num_threads, rng_seed_,   kStep};
  }

  // What every batch must hold, whatever was drawn.
  void check(const Draw& draw, const FsMiniBatch& batch) const {
    require(batch.num_hops == kHops && batch.hops[0].num_dst == kSeeds, "wrong number of hops or seeds");
    const Id* nodes = static_cast<const Id*>(batch.nodes);
    require(std::set<Id>(nodes, nodes + batch.num_nodes).size() == static_cast<size_t>(batch.num_nodes),
            "nodes repeat");
    for (int32_t h = 0; h < kHops; ++h) {
      const FsHop& hop = batch.hops[h];
      require(hop.num_src == (h + 1 < kHops ? batch.hops[h + 1].num_dst : batch.num_nodes), "hops do not chain");
      require((hop.edge_ids != nullptr) == (draw.edge_ids != 0), "edge ids that were not asked for, or none");
      if (hop.edge_ids != nullptr) check_edges(draw, hop, nodes);
    }
  }

  void check_edges(const Draw& draw, const FsHop& hop, const Id* nodes) const {
    const Id* indices = static_cast<const Id*>(hop.indices);
    for (int64_t row = 0; row < hop.num_dst; ++row) {
      const int64_t first = graph_.indptr[static_cast<size_t>(nodes[row])];
      const int64_t last = graph_.indptr[static_cast<size_t>(nodes[row]) + 1];
      std::vector<int64_t> edges(hop.edge_ids + hop.indptr[row], hop.edge_ids + hop.indptr[row + 1]);
      for (int64_t k = hop.indptr[row]; k < hop.indptr[row + 1]; ++k) {
        const size_t edge = static_cast<size_t>(hop.edge_ids[k]);
        require(hop.edge_ids[k] >= first && hop.edge_ids[k] < last, "an edge id outside its row");
        require(graph_.indices[edge] == nodes[indices[k]], "an edge id of another source");
        require(draw.method != FS_WEIGHTED || (draw.skewed ? graph_.skewed[edge] : graph_.positive[edge]) > 0,
                "an edge of weight 0");
      }
      std::sort(edges.begin(), edges.end());
      require(draw.replace != 0 || std::adjacent_find(edges.begin(), edges.end()) == edges.end(), "an edge twice");
    }
  }

  static void record(const Draw& draw, const FsMiniBatch& batch, Written& written) {
    written.add(draw.name, static_cast<const Id*>(batch.nodes), batch.num_nodes);
    for (int32_t h = 0; h < batch.num_hops; ++h) {
      const FsHop& hop = batch.hops[h];
      written.add(draw.name, hop.indptr, hop.num_dst + 1);
      written.add(draw.name, static_cast<const Id*>(hop.indices), hop.num_edges);
      if (hop.edge_ids != nullptr) written.add(draw.name, hop.edge_ids, hop.num_edges);
    }
  }

  Batch sample_neighbors(const FsGraph& view, const Draw& draw, const std::vector<Id>& rows,
                         int32_t num_threads) const {
    FsSampleSpec how = spec(draw, num_threads);
    how.num_hops = 1;
    FsMiniBatch* batch = nullptr;
    succeed(fs_sample_neighbors(&view, &how, rows.data(), static_cast<int64_t>(rows.size()), &batch), draw.name);
    require(batch->num_hops == 1 && batch->nodes == nullptr, "sample_neighbors: more than one hop without nodes");
    return Batch(batch);
  }

  // sample_neighbors, then compact: the first hop of sample_mfg.
  void relabel_one_hop(const Draw& draw, int32_t num_threads, const FsHop& expected) const {
    const Batch batch = sample_neighbors(graph_.view(draw), draw, seeds_, num_threads);
    const FsHop& hop = batch->hops[0];
    require(hop.num_edges == expected.num_edges, "sample_neighbors: another number of picks than sample_mfg");
    std::vector<Id> nodes(static_cast<size_t>(kSeeds + hop.num_edges)), indices(static_cast<size_t>(hop.num_edges));
    int64_t num_src = 0;
    succeed(fs_compact(type_code<Id>(), seeds_.data(), kSeeds, hop.indices, hop.num_edges, nodes.data(), indices.data(),
                       &num_src),
            "compact");
    require(num_src == expected.num_src, "compact: another number of sources than sample_mfg");
    require(memcmp(indices.data(), expected.indices, indices.size() * sizeof(Id)) == 0, "compact: other local ids");
  }

  // Rows of a slice, named again and again: what the whole graph gives for them.
  void sample_a_slice(const Draw& draw, int32_t num_threads, Written& written) const {
    constexpr int64_t kFirst = 20, kRows = 900;
    const int64_t first_edge = graph_.indptr[kFirst], num_edges = graph_.indptr[kFirst + kRows] - first_edge;
    std::vector<int64_t> indptr;
    for (int64_t row = 0; row <= kRows; ++row) indptr.push_back(graph_.indptr[kFirst + row] - first_edge);
    std::vector<Id> rows, rows_of_all;
    for (int64_t i = 0; i < kSeeds; ++i) {
      rows.push_back(static_cast<Id>(i * 31 % kRows));
      rows_of_all.push_back(static_cast<Id>(rows.back() + kFirst));
    }
    FsGraph view = graph_.view(draw);
    const Batch expected = sample_neighbors(view, draw, rows_of_all, num_threads);
    record(draw, *expected, written);
    FsWeightTables weights = {};
    if (view.weights != nullptr) {
      weights = slice_of(*view.weights, kFirst, first_edge);
      view.weights = &weights;
    }
    view.indptr = indptr.data();
    view.indices = graph_.indices.data() + first_edge;
    view.orig_ids = graph_.orig_ids.data() + kFirst;
    view.src_orig_ids = graph_.orig_ids.data();
    view.num_rows = kRows;
    view.num_sources = kNodes;
    view.num_edges = num_edges;
    const Batch found = sample_neighbors(view, draw, rows, num_threads);
    const FsHop &a = found->hops[0], &b = expected->hops[0];
    require(a.num_edges == b.num_edges && memcmp(a.indptr, b.indptr, (kSeeds + 1) * sizeof(int64_t)) == 0 &&
                memcmp(a.indices, b.indices, static_cast<size_t>(a.num_edges) * sizeof(Id)) == 0,
            "other picks from a slice");
    for (int64_t k = 0; draw.edge_ids != 0 && k < a.num_edges; ++k) {
      require(a.edge_ids[k] + first_edge == b.edge_ids[k], "other edge ids from a slice");
    }
  }

  static FsWeightTables slice_of(const FsWeightTables& all, int64_t first_row, int64_t first_edge) {
    const int64_t width = all.weight_type == FS_FLOAT32 ? sizeof(float) : sizeof(double);
    return {static_cast<const char*>(all.weights) + first_edge * width, all.alias_table + 2 * first_edge,
            all.num_positive == nullptr ? nullptr : all.num_positive + first_row, all.weight_type};
  }

  // Seeds of several batches: runs of the seeds, of several lengths; one of them is empty.
  struct ManySeeds {
    std::vector<const void*> seeds;
    std::vector<int64_t> counts;
    int64_t size() const { return static_cast<int64_t>(counts.size()); }
  };
  ManySeeds many_seeds() const {
    ManySeeds many;
    for (int64_t count : {100, 0, 250, 30, 1, 120}) {
      many.seeds.push_back(seeds_.data() + 40 * many.size());
      many.counts.push_back(count);
    }
    return many;
  }

  // Many batches at once: one by one they are the same.
  void sample_many(const Draw& draw, int32_t num_threads) const {
    const FsGraph view = graph_.view(draw);
    FsSampleSpec how = spec(draw, num_threads);
    const ManySeeds many = many_seeds();
    std::vector<FsMiniBatch*> batches(many.counts.size());
    succeed(fs_sample_many(&view, &how, many.seeds.data(), many.counts.data(), many.size(), batches.data()), draw.name);
    for (size_t b = 0; b < batches.size(); ++b, ++how.step) {
      const Batch found(batches[b]);
      FsMiniBatch* alone = nullptr;
      succeed(fs_sample_mfg(&view, &how, many.seeds[b], many.counts[b], &alone), draw.name);
      Written expected;
      record(draw, *alone, expected);
      fs_mini_batch_free(alone);
      Written same(&expected);
      record(draw, *found, same);
      require(same.size() == expected.size(), "a batch of sample_many lacks something");
    }
  }

  // In a thread of its own the scratch of a call is all there is: offsets, and the tree where it was needed. The
  // definition of a hop keeps no scratch.
  void reach_the_sum_tree() const {
    if (strcmp(fs_isa(), "scalar") == 0) return;
    std::thread([&] {
      sample_neighbors(graph_.view(kDraws[4]), kDraws[4], seeds_, 1);
      require(fs_sampler_scratch_bytes() > kSeeds * 16, "no row of these weights needed a sum tree");
    }).join();
  }

  void refuse_seeds(int32_t num_threads) const {
    const Id repeated[] = {4, 9, 4}, outside[] = {4, static_cast<Id>(kNodes)}, negative[] = {4, -2};
    for (const Draw& draw : kDraws) {
      const FsGraph view = graph_.view(draw);
      const FsSampleSpec how = spec(draw, num_threads);
      FsMiniBatch* batch = nullptr;
      refused(fs_sample_mfg(&view, &how, repeated, 3, &batch), "positions 0 and 2");
      refused(fs_sample_mfg(&view, &how, outside, 2, &batch), "node id 2200 is outside 0 to 2199");
      refused(fs_sample_mfg(&view, &how, negative, 2, &batch), "seed -2 at position 1 is negative");
      refused(fs_sample_neighbors(&view, &how, outside, 2, &batch), "node id 2200 is outside 0 to 2199");
      require(batch == nullptr, "a refused call handed out a mini-batch");
    }
  }

  // Half of the batches are refused: nothing comes back, and the line is that of the first, however many fail at once.
  void refuse_many(int32_t num_threads) const {
    constexpr int64_t kBatches = 24;
    const Id first[] = {8, 9, 1, 8};
    std::vector<Id> later = seeds_;
    later.push_back(seeds_[0]);
    ManySeeds many;
    for (int64_t b = 0; b < kBatches; ++b) {
      many.seeds.push_back(b == 1 ? first : b % 2 == 1 ? later.data() : seeds_.data());
      many.counts.push_back(b == 1 ? 4 : b % 2 == 1 ? kSeeds + 1 : 50);
    }
    for (const Draw& draw : kDraws) {
      const FsGraph view = graph_.view(draw);
      const FsSampleSpec how = spec(draw, num_threads);
      FsMiniBatch unset;
      std::vector<FsMiniBatch*> batches(kBatches, &unset);
      refused(fs_sample_many(&view, &how, many.seeds.data(), many.counts.data(), kBatches, batches.data()),
              "positions 0 and 3");
      for (const FsMiniBatch* batch : batches) require(batch == nullptr, "a refused call handed out a mini-batch");
    }
  }

  void refuse_specs() const {
    const Draw below = {"", FS_UNIFORM, 0, 0, 0, false, {7, -2, 4}}, all = {"", FS_UNIFORM, 1, 0, 0, false, {7, -1, 4}};
    const Draw labor = {"", FS_LABOR, 1, 0, 0, false, {7, 5, 4}};
    FsGraph view = graph_.view(kDraws[0]);
    FsMiniBatch* batch = nullptr;
    const auto sample = [&](const FsSampleSpec& how) { return fs_sample_mfg(&view, &how, seeds_.data(), 5, &batch); };
    refused(sample(spec(below, 1)), "fanouts holds -2; expected -1 (all neighbours) or more in hop 1");
    refused(sample(spec(all, 1)), "cannot be drawn with replacement");
    refused(sample(spec(labor, 1)), "2 (labor) with replace 0");
    refused(sample(spec(kDraws[0], 0)), "num_threads is 0");
    refused(sample(spec(kDraws[4], 1)), "method weighted without weights");
    view.id_type = FS_FLOAT32;
    refused(sample(spec(kDraws[0], 1)), "id type 2");
  }

  // Sources and offsets that are none. A later row holds another wrong source, at an earlier place of `indices`; the
  // line must name the first row's, however many threads come upon both.
  void refuse_damaged_graphs(int32_t num_threads) const {
    const auto middling = [&](Id row) {
      const int64_t degree = graph_.indptr[static_cast<size_t>(row) + 1] - graph_.indptr[static_cast<size_t>(row)];
      return degree > 3 && degree <= 32;
    };
    std::vector<Id> order;  // the rows of every call: descending, so that a later row lies earlier in `indices`
    for (int64_t row = kNodes - 1; row >= 0; --row) order.push_back(static_cast<Id>(row));
    const auto first = std::find_if(order.begin() + 700, order.end(), middling);
    const auto second = std::find_if(order.begin() + 1900, order.end(), middling);
    std::vector<Id> damaged = graph_.indices;
    std::fill_n(damaged.begin() + graph_.indptr[static_cast<size_t>(*first)], 4, static_cast<Id>(kNodes + 5));
    std::fill_n(damaged.begin() + graph_.indptr[static_cast<size_t>(*second)], 4, static_cast<Id>(-7));
    std::vector<int64_t> descending = graph_.indptr;
    std::swap(descending[900], descending[901]);
    const Draw draws[] = {{"", FS_UNIFORM, 0, 0, 0, false, {32, 2, 2}},  {"", FS_UNIFORM, 0, 0, 0, false, {40, 2, 2}},
                          {"", FS_UNIFORM, 0, 0, 1, false, {-1, 2, 2}},  {"", FS_WEIGHTED, 0, 0, 1, false, {32, 2, 2}},
                          {"", FS_WEIGHTED, 0, 0, 0, false, {40, 2, 2}}, {"", FS_LABOR, 0, 0, 0, false, {2, 2, 2}},
                          {"", FS_LABOR, 0, 0, 1, false, {-1, 2, 2}}};
    for (const Draw& draw : draws) {
      FsGraph view = graph_.view(draw);
      const FsSampleSpec how = spec(draw, num_threads);
      FsMiniBatch* batch = nullptr;
      view.indices = damaged.data();
      refused(fs_sample_mfg(&view, &how, order.data(), kNodes, &batch), "the source id 2205; expected 0 to 2199");
      view.indices = graph_.indices.data();
      view.indptr = descending.data();
      refused(fs_sample_mfg(&view, &how, order.data(), kNodes, &batch), "expected non-decreasing offsets up to 22000");
      require(batch == nullptr, "a refused call handed out a mini-batch");
    }
  }

  const DrawnGraph<Id>& graph_;
  uint64_t rng_seed_;
  std::vector<Id> seeds_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_SAMPLING_H_
