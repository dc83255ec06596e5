// Stress test of the C ABI, for the sanitizers: fastsample_stress CALLERS TEAM ROUNDS 32|64
//
// A problem is a small drawn graph with everything the operators need. Its oracle is the bytes that all operators write
// when one caller runs them with one thread. Then CALLERS threads run every problem ROUNDS times at once, each call
// with TEAM threads and with the instruction set changed underneath, and must write the same bytes. What is
// sampled is checked against the graph as well (stress_sampling.h).
#include "fastsample_bench.h"
#include "stress_callers.h"
#include "stress_embedding.h"
#include "stress_induced.h"
#include "stress_layers.h"
#include "stress_pinsage.h"
#include "stress_queries.h"
#include "stress_queue.h"
#include "stress_sampling.h"
#include "stress_subgraphs.h"
#include "stress_transit.h"
#include "stress_weights.h"

namespace {

using namespace stress;

constexpr int64_t kRowBytes = 212;

// A graph, seeds and features; constant once drawn, so that callers share it.
template <typename Id>
class Problem {
 public:
  explicit Problem(uint64_t seed)
      : seed_(seed),
        generator_(seed),
        graph_(generator_),
        samplers_(graph_, seed),
        embeddings_(seed),
        wide_embeddings_(seed) {
    table_ = draw_numbers<float>(kNodes * kRowBytes / 4, generator_);
    wide_ = draw_numbers<float>(kNodes * kWide, generator_);
    narrow_ = draw_numbers<double>(kNodes * kNarrow, generator_);
    half_ = draw_numbers<Bfloat16>(kNodes * kNarrow, generator_);
    weights_ = draw_numbers<float>(kEdges, generator_);
  }

  void run(int32_t num_threads, Exchange* exchange, Written& written) const {
    samplers_.run(num_threads, exchange, written);
    for (const Draw& draw : {kDraws[0], kDraws[1]}) {
      const Batch batch = samplers_.sample(draw, kFewSeeds, num_threads);
      const FsHop& seed_side = batch->hops[0];
      gather(*batch, num_threads, written);
      bucket(*batch, written);
      locate(*batch, num_threads, written);
      for (int32_t reduce : {FS_SUM, FS_MEAN, FS_MAX}) {
        aggregate<float>({seed_side, reduce, 4, kWide, num_threads}, wide_, nullptr, written);
        aggregate<float>({batch->hops[1], reduce, 1, kNarrow, num_threads}, wide_, weights_.data(), written);
        aggregate<double>({batch->hops[1], reduce, 1, kNarrow, num_threads}, narrow_, nullptr, written);
        aggregate<Bfloat16>({batch->hops[1], reduce, 1, kNarrow, num_threads}, half_, nullptr, written);
      }
      for (int32_t activation : {FS_IDENTITY, FS_RELU}) {
        drop(table_, activation, num_threads, written);
        drop(narrow_, activation, num_threads, written);
        drop(half_, activation, num_threads, written);
      }
    }
    build_alias_tables(num_threads, written);
    score_nodes(num_threads, written);
    Queries<Id>(graph_).run(num_threads, written);
    Applications<Id>(graph_).run(num_threads, written);
    Layers<Id>(graph_).run(num_threads, written);
    Neighborhoods<Id>(graph_).run(num_threads, written);
    Induced<Id>(graph_).run(num_threads, written);
    SubgraphWeights<Id>(graph_).run(num_threads, written);
    Subgraphs<Id>(graph_).run(num_threads, written);
    read_at_random(num_threads, written);
    embeddings_.run(num_threads, written);
    wide_embeddings_.run(num_threads, written);
    refuse_bad_input(num_threads);
  }

 private:
  static constexpr int64_t kWide = 520;   // more than one tile of columns
  static constexpr int64_t kNarrow = 43;  // no multiple of a vector

  struct Reduction {
    const FsHop& hop;
    int32_t reduce;
    int64_t num_heads, width;
    int32_t num_threads;
  };

  FsEdgeWeights skewed(int32_t num_threads) const {
    return {graph_.indptr.data(), graph_.skewed.data(), kNodes, kEdges, FS_FLOAT64, num_threads};
  }

  void build_alias_tables(int32_t num_threads, Written& written) const {
    const FsEdgeWeights edges = skewed(num_threads);
    std::vector<uint32_t> table(static_cast<size_t>(kEdges) * 2);
    std::vector<int64_t> num_positive(static_cast<size_t>(kNodes));
    succeed(fs_alias_tables(&edges, table.data(), num_positive.data()), "alias_tables");
    written.add("alias_tables", table);
    written.add("alias_tables", num_positive);
  }

  // Three hops from every tenth node, of all kinds of picks.
  void score_nodes(int32_t num_threads, Written& written) const {
    FsInclusion hop = inclusion(num_threads);
    for (bool weighted : {false, true}) {
      for (int32_t replace : {0, 1}) {
        std::vector<int64_t> hazards(static_cast<size_t>(kNodes)), reached(hazards.size());
        for (size_t node = 0; node < hazards.size(); node += 10) hazards[node] = int64_t{1} << FS_HAZARD_BITS;
        for (int64_t fanout : {15, 5, 2}) {
          hop.hazards = hazards.data();
          hop.weights = weighted ? graph_.skewed.data() : nullptr;
          hop.replace = replace;
          hop.fanout = fanout;
          succeed(fs_inclusion_probabilities(&hop, reached.data()), "inclusion_probabilities");
          written.add("inclusion_probabilities", reached);
          hazards.swap(reached);
        }
      }
    }
  }

  FsInclusion inclusion(int32_t num_threads) const {
    FsInclusion hop = {};
    hop.indptr = graph_.indptr.data();
    hop.indices = graph_.indices.data();
    hop.num_nodes = kNodes;
    hop.num_edges = kEdges;
    hop.id_type = type_code<Id>();
    hop.weight_type = FS_FLOAT64;
    hop.num_threads = num_threads;
    return hop;
  }

  void read_at_random(int32_t num_threads, Written& written) const {
    const FsRandomReads how = {graph_.indices.data(), wide_.data(), kEdges, kNodes * kWide, 5000, sizeof(Id), 4, 20, 0,
                               num_threads,           seed_};
    uint64_t sum = 0;
    succeed(fs_random_reads(&how, &sum), "random_reads");
    written.add("random_reads", &sum, 1);
  }

  void gather(const FsMiniBatch& batch, int32_t num_threads, Written& written) const {
    const Id* nodes = static_cast<const Id*>(batch.nodes);
    const int64_t count = batch.num_nodes, columns = kRowBytes / 4;
    std::vector<float> rows(static_cast<size_t>(count * columns));
    succeed(fs_gather_rows(table_.data(), kNodes, kRowBytes, type_code<Id>(), nodes, count, rows.data(), num_threads),
            "gather_rows");
    for (int64_t i = 0; i < count; ++i) {
      require(memcmp(&rows[static_cast<size_t>(i * columns)], &table_[static_cast<size_t>(nodes[i] * columns)],
                     kRowBytes) == 0,
              "gather_rows: another row than asked for");
    }
    std::vector<int64_t> places(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) places[static_cast<size_t>(i)] = i % 3 == 0 ? i : -1 - i;
    std::vector<double> merged(rows.size());
    const FsRowTable parts[] = {{rows.data(), count, nullptr, 0, 0}, {table_.data(), kNodes, nullptr, 0, 0}};
    for (int64_t i = 0; i < count; i += 5) places[static_cast<size_t>(i)] = (int64_t{1} << FS_ROW_BITS) + i % kNodes;
    const FsRowTables tables = {parts, table_.data(), kNodes, columns, 2, FS_FLOAT32, FS_FLOAT32, 0};
    succeed(fs_merge_rows(&tables, places.data(), count, FS_FLOAT64, merged.data(), num_threads), "merge_rows");
    written.add("merge_rows", merged);
    merge_scaled(places, num_threads, written);
  }

  // Of the same places: the table's bytes as numbers, with scales of their own and packed.
  void merge_scaled(const std::vector<int64_t>& places, int32_t num_threads, Written& written) const {
    constexpr int32_t kWidth = kRowBytes - FS_SCALE_BYTES;
    const char* bytes = reinterpret_cast<const char*>(table_.data());
    const FsRowTable parts[] = {{bytes, kNodes, table_.data(), kRowBytes, FS_SCALE_BYTES},
                                {bytes, kNodes, bytes + kWidth, kRowBytes, kRowBytes}};
    const FsRowTables tables = {parts, bytes, kNodes, kWidth, 2, FS_INT8, FS_INT8, 1};
    const int64_t count = static_cast<int64_t>(places.size());
    std::vector<double> values(places.size() * kWidth);
    std::vector<char> packed(places.size() * kRowBytes);
    succeed(fs_merge_rows(&tables, places.data(), count, FS_FLOAT64, values.data(), num_threads), "merge_rows");
    succeed(fs_merge_rows(&tables, places.data(), count, FS_INT8, packed.data(), num_threads), "merge_rows");
    written.add("scaled rows", values);
    written.add("packed rows", packed);
  }

  static void bucket(const FsMiniBatch& batch, Written& written) {
    const int64_t ranges[] = {0, kNodes / 3, kNodes / 3, kNodes};  // the second part is empty
    std::vector<Id> grouped(static_cast<size_t>(batch.num_nodes));
    std::vector<int64_t> counts(3), places(grouped.size());
    succeed(fs_bucket_by_part(type_code<Id>(), batch.nodes, batch.num_nodes, ranges, 3, grouped.data(), counts.data(),
                              places.data()),
            "bucket_by_part");
    require(counts[0] + counts[2] == batch.num_nodes && counts[1] == 0, "bucket_by_part: wrong counts");
    written.add("bucket_by_part", grouped);
    written.add("bucket_by_part", places);
  }

  static void locate(const FsMiniBatch& batch, int32_t num_threads, Written& written) {
    const int64_t ranges[] = {0, kNodes / 3, kNodes / 2, kNodes}, first_rows[] = {0, 0, 7}, cached[] = {1, kNodes / 3};
    const int32_t owners[] = {0, 1, 2}, tables[] = {-1, 0, 1};
    Id pairs[8];
    succeed(fs_hash_slots(cached, 2, type_code<Id>(), 4, pairs), "hash_slots");
    const int32_t kind = sizeof(Id) == 4 ? FS_SLOTS_HASHED32 : FS_SLOTS_HASHED64;
    const FsRowIndex index = {ranges, owners, tables, first_rows, pairs, 4, 3, 3, 1, 2, kind};
    std::vector<Id> missing(static_cast<size_t>(batch.num_nodes));
    std::vector<int64_t> places(missing.size()), counts(6);
    succeed(fs_locate_rows(&index, type_code<Id>(), batch.nodes, batch.num_nodes, num_threads, places.data(),
                           missing.data(), counts.data()),
            "locate_rows");
    require(counts[0] + counts[3] + counts[4] + counts[5] == batch.num_nodes, "locate_rows: wrong counts");
    written.add("locate_rows", places);
    missing.resize(static_cast<size_t>(counts[0]));
    written.add("locate_rows", missing);
  }

  template <typename T>
  static void aggregate(const Reduction& what, const std::vector<T>& x, const T* weights, Written& written) {
    const FsHop& hop = what.hop;
    const FsAggregation how = {hop.indptr,
                               hop.indices,
                               hop.num_dst,
                               hop.num_src,
                               hop.num_edges,
                               type_code<Id>(),
                               what.reduce,
                               weights,
                               what.num_heads,
                               what.width,
                               type_code<T>(),
                               what.num_threads,
                               0,
                               0};
    FsAggregation by_tiles = how;
    by_tiles.tile = 24;
    by_tiles.tiles_outer = 1;
    const size_t cells = static_cast<size_t>(hop.num_dst * what.width);
    std::vector<T> out(cells), grad_x(static_cast<size_t>(hop.num_src * what.width));
    std::vector<T> grad_weights(weights == nullptr ? 0 : static_cast<size_t>(hop.num_edges * what.num_heads));
    std::vector<int64_t> arg(cells);
    succeed(fs_aggregate(&how, x.data(), out.data(), what.width, arg.data()), "aggregate");
    succeed(fs_aggregate_backward(&how, x.data(), arg.data(), out.data(), what.width, grad_x.data(),
                                  weights == nullptr ? nullptr : grad_weights.data()),
            "aggregate_backward");
    std::vector<T> again(cells), grad_again(grad_x.size());
    succeed(fs_aggregate(&by_tiles, x.data(), again.data(), what.width, arg.data()), "aggregate by tiles");
    succeed(fs_aggregate_backward(&by_tiles, x.data(), arg.data(), out.data(), what.width, grad_again.data(), nullptr),
            "aggregate_backward by tiles");
    require(memcmp(out.data(), again.data(), cells * sizeof(T)) == 0, "aggregate: a tile changed a sum");
    require(memcmp(grad_x.data(), grad_again.data(), grad_x.size() * sizeof(T)) == 0, "a tile changed a gradient");
    if (hop.num_dst <= hop.num_src) {
      std::vector<T> both(2 * cells), grad_both(grad_x.size());
      succeed(fs_aggregate_concat(&how, x.data(), both.data(), arg.data()), "aggregate_concat");
      if (what.reduce != FS_MAX) {
        succeed(fs_aggregate_concat_backward(&how, both.data(), grad_both.data()), "aggregate_concat_backward");
        written.add("aggregate_concat_backward", grad_both);
      }
      written.add("aggregate_concat", both);
    }
    written.add("aggregate", out);
    written.add("aggregate_backward", grad_x);
    written.add("aggregate_backward", grad_weights);
  }

  template <typename T>
  void drop(const std::vector<T>& x, int32_t activation, int32_t num_threads, Written& written) const {
    const int64_t width = static_cast<int64_t>(x.size()) / kNodes;
    const FsActDropout how = {graph_.orig_ids.data(),
                              kNodes,
                              width,
                              type_code<T>(),
                              activation,
                              30000,
                              num_threads,
                              seed_,
                              kStep,
                              2,
                              activation == FS_RELU ? x.data() : nullptr};
    std::vector<T> y(x.size()), grad(x.size());
    succeed(fs_act_dropout(&how, x.data(), y.data()), "act_dropout");
    succeed(fs_act_dropout_backward(&how, y.data(), x.data(), grad.data()), "act_dropout_backward");
    written.add("act_dropout", y);
    written.add("act_dropout_backward", grad);
    std::vector<double> sums(static_cast<size_t>(width));  // zeros, and room for either type of sums
    succeed(fs_act_dropout_backward_sums(&how, y.data(), x.data(), grad.data(), sums.data()),
            "act_dropout_backward_sums");
    written.add("act_dropout_backward_sums", grad);
    written.add("act_dropout_backward_sums", sums);
    if (fs_has_matrix_units() != 0 && how.type == FS_BFLOAT16) {
      std::vector<float> row_sums(static_cast<size_t>(width));
      std::vector<T> weight(static_cast<size_t>(width * width));
      succeed(
          fs_weight_gradient(&how, y.data(), x.data(), grad.data(), row_sums.data(), x.data(), width, weight.data()),
          "weight_gradient");
      written.add("weight_gradient", grad);
      written.add("weight_gradient", row_sums);
      written.add("weight_gradient", weight);
    }
  }

  void refuse_bad_input(int32_t num_threads) const {
    const Id outside = static_cast<Id>(kNodes);
    float row[kRowBytes / 4];
    refused(fs_gather_rows(table_.data(), kNodes, kRowBytes, type_code<Id>(), &outside, 1, row, num_threads), "2200");
    std::vector<uint32_t> table(static_cast<size_t>(kEdges) * 2);
    std::vector<int64_t> num_positive(static_cast<size_t>(kNodes));
    FsEdgeWeights negative = skewed(num_threads);
    negative.weights = weights_.data();
    negative.type = FS_FLOAT32;
    refused(fs_alias_tables(&negative, table.data(), num_positive.data()), "alias_tables");
    std::vector<int64_t> hazards(static_cast<size_t>(kNodes), -1);
    FsInclusion hop = inclusion(num_threads);
    hop.hazards = hazards.data();
    refused(fs_inclusion_probabilities(&hop, hazards.data()), "the hazard of node 0 is -1");
  }

  uint64_t seed_;
  Generator generator_;
  DrawnGraph<Id> graph_;
  Samplers<Id> samplers_;
  EmbeddingProblem<float> embeddings_;
  EmbeddingProblem<double> wide_embeddings_;
  std::vector<float> table_, wide_, weights_;
  std::vector<double> narrow_;
  std::vector<Bfloat16> half_;
};

template <typename Id>
void run_problem(uint64_t seed, const Load& load) {
  const Problem<Id> problem(seed);
  Exchange exchange;
  run_at_once(load, [&](int32_t num_threads, Written& written) { problem.run(num_threads, &exchange, written); });
}

}  // namespace

int main(int argc, char** argv) {
  const Load load = read_load(argc, argv);
  if (load.id_bits == 32) run_problem<int32_t>(1, load);
  if (load.id_bits == 64) run_problem<int64_t>(2, load);
  run_queues();
  say_done(argv[0], load);
  return 0;
}
