// Stress test of the C ABI, for the sanitizers: fastsample_stress CALLERS TEAM ROUNDS
//
// A problem is a small drawn graph with everything the operators need. Its oracle is the bytes that all operators write
// when one caller runs them with one thread. Then CALLERS threads run every problem ROUNDS times at once, each call
// with TEAM OpenMP threads and with the instruction set changed underneath, and must write the same bytes. With TEAM 1
// no OpenMP thread is started, which is what the thread sanitizer needs: it cannot see into the OpenMP library.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fastsample.h"

namespace {

constexpr int64_t kNodes = 1500, kEdges = 15000, kSeeds = 300;  // enough rows for two OpenMP threads, in little time
constexpr int64_t kRowBytes = 212;
constexpr int64_t kFanouts[] = {7, 5, 40};
constexpr int32_t kHops = 3;
const char* const kSets[] = {"baseline", "avx2", "avx512"};

void require(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "fastsample_stress: %s (last error: %s)\n", what, fs_last_error());
  _Exit(1);
}
void succeed(FsStatus status, const char* operation) { require(status == FS_OK, operation); }

struct Bfloat16 {
  uint16_t bits;
};

template <typename T>
constexpr int32_t type_code();
template <>
constexpr int32_t type_code<int32_t>() {
  return FS_INT32;
}
template <>
constexpr int32_t type_code<int64_t>() {
  return FS_INT64;
}
template <>
constexpr int32_t type_code<float>() {
  return FS_FLOAT32;
}
template <>
constexpr int32_t type_code<double>() {
  return FS_FLOAT64;
}
template <>
constexpr int32_t type_code<Bfloat16>() {
  return FS_BFLOAT16;
}

template <typename T>
T number(float value) {
  return static_cast<T>(value);
}
template <>
Bfloat16 number<Bfloat16>(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return {static_cast<uint16_t>(bits >> 16)};
}

using Generator = std::mt19937_64;

template <typename T>
std::vector<T> draw_numbers(int64_t count, Generator& generator) {
  std::uniform_real_distribution<float> values(-4, 4);
  std::vector<T> drawn(static_cast<size_t>(count));
  for (T& value : drawn) value = number<T>(values(generator));
  return drawn;
}

// The bytes that operators write, in the order of the calls: kept, or compared with those of an oracle.
class Written {
 public:
  explicit Written(const Written* oracle = nullptr) : oracle_(oracle) {}

  template <typename T>
  void add(const char* operation, const T* values, int64_t count) {
    const size_t size = static_cast<size_t>(count) * sizeof(T);
    if (size == 0) return;
    if (oracle_ == nullptr) {
      bytes_.append(reinterpret_cast<const char*>(values), size);
    } else {
      const bool equal = size_ + size <= oracle_->size_ && memcmp(oracle_->bytes_.data() + size_, values, size) == 0;
      require(equal, (std::string(operation) + ": another result than with one caller and one thread").c_str());
    }
    size_ += size;
  }
  template <typename T>
  void add(const char* operation, const std::vector<T>& values) {
    add(operation, values.data(), static_cast<int64_t>(values.size()));
  }
  size_t size() const { return size_; }

 private:
  const Written* oracle_;
  std::string bytes_;
  size_t size_ = 0;
};

struct FreeBatch {
  void operator()(FsMiniBatch* batch) const { fs_mini_batch_free(batch); }
};
using Batch = std::unique_ptr<FsMiniBatch, FreeBatch>;

// A graph, seeds and features; constant once drawn, so that callers share it.
template <typename Id>
class Problem {
 public:
  explicit Problem(uint64_t seed) : seed_(seed) {
    Generator generator(seed);
    std::uniform_int_distribution<int64_t> any_node(0, kNodes - 1), lower_node(0, kNodes * 3 / 4);
    std::vector<std::vector<Id>> rows(kNodes);  // a quarter of the nodes has no in-edge
    for (int64_t e = 0; e < kEdges; ++e) {
      rows[static_cast<size_t>(lower_node(generator))].push_back(static_cast<Id>(any_node(generator)));
    }
    indptr_.push_back(0);
    for (const std::vector<Id>& row : rows) {
      indices_.insert(indices_.end(), row.begin(), row.end());
      indptr_.push_back(static_cast<int64_t>(indices_.size()));
    }
    for (int64_t v = 0; v < kNodes; ++v) orig_ids_.push_back((v * 7919) % kNodes + (int64_t{1} << 40));
    for (int64_t i = 0; i < kSeeds; ++i) seeds_.push_back(static_cast<Id>((i * 4 + 1) % kNodes));
    table_ = draw_numbers<float>(kNodes * kRowBytes / 4, generator);
    wide_ = draw_numbers<float>(kNodes * kWide, generator);
    narrow_ = draw_numbers<double>(kNodes * kNarrow, generator);
    half_ = draw_numbers<Bfloat16>(kNodes * kNarrow, generator);
    weights_ = draw_numbers<float>(kEdges, generator);
    for (float weight : weights_) chances_.push_back(weight < -2 ? 0.0 : weight + 2.0);
  }

  void run(int32_t num_threads, Written& written) const {
    for (int32_t replace : {0, 1}) {
      const Batch batch = sample(replace, num_threads);
      record(*batch, written);
      const FsHop& seed_side = batch->hops[0];
      relabel_one_hop(replace, num_threads, seed_side);
      gather(*batch, num_threads, written);
      bucket(*batch, written);
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
    build_alias_tables(weights_by_edge(num_threads), written);
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

  FsGraph graph() const {
    return {indptr_.data(), indices_.data(), orig_ids_.data(), kNodes, static_cast<int64_t>(indices_.size()),
            type_code<Id>()};
  }

  FsSampleSpec spec(int32_t replace, int32_t num_threads) const {
    return {kFanouts, kHops, 0, replace, num_threads, seed_, 11};
  }

  Batch sample(int32_t replace, int32_t num_threads) const {
    const FsGraph view = graph();
    const FsSampleSpec how = spec(replace, num_threads);
    FsMiniBatch* batch = nullptr;
    succeed(fs_sample_mfg(&view, &how, seeds_.data(), kSeeds, &batch), "sample_mfg");
    return Batch(batch);
  }

  static void record(const FsMiniBatch& batch, Written& written) {
    require(batch.num_hops == kHops && batch.hops[0].num_dst == kSeeds, "sample_mfg: wrong number of hops or seeds");
    written.add("sample_mfg", static_cast<const Id*>(batch.nodes), batch.num_nodes);
    for (int32_t h = 0; h < kHops; ++h) {
      const FsHop& hop = batch.hops[h];
      require(hop.num_src == (h + 1 < kHops ? batch.hops[h + 1].num_dst : batch.num_nodes), "hops do not chain");
      written.add("sample_mfg", hop.indptr, hop.num_dst + 1);
      written.add("sample_mfg", static_cast<const Id*>(hop.indices), hop.num_edges);
    }
  }

  // sample_neighbors, then compact: the first hop of sample_mfg.
  void relabel_one_hop(int32_t replace, int32_t num_threads, const FsHop& expected) const {
    const FsGraph view = graph();
    FsSampleSpec how = spec(replace, num_threads);
    how.num_hops = 1;
    std::vector<int64_t> indptr(kSeeds + 1);
    succeed(fs_sample_neighbors_indptr(&view, &how, seeds_.data(), kSeeds, indptr.data()), "sample_neighbors_indptr");
    const int64_t num_edges = indptr.back();
    require(num_edges == expected.num_edges, "sample_neighbors: another number of picks than sample_mfg");
    std::vector<Id> neighbors(static_cast<size_t>(num_edges)), indices(neighbors.size());
    std::vector<Id> nodes(static_cast<size_t>(kSeeds + num_edges));
    succeed(fs_sample_neighbors(&view, &how, seeds_.data(), kSeeds, indptr.data(), neighbors.data()),
            "sample_neighbors");
    int64_t num_src = 0;
    succeed(fs_compact(type_code<Id>(), seeds_.data(), kSeeds, neighbors.data(), num_edges, nodes.data(),
                       indices.data(), &num_src),
            "compact");
    require(num_src == expected.num_src, "compact: another number of sources than sample_mfg");
    require(memcmp(indices.data(), expected.indices, indices.size() * sizeof(Id)) == 0, "compact: other local ids");
  }

  // A quarter of the weights is 0.
  FsEdgeWeights weights_by_edge(int32_t num_threads) const {
    return {indptr_.data(), chances_.data(), kNodes, kEdges, FS_FLOAT64, num_threads};
  }

  static void build_alias_tables(const FsEdgeWeights& edges, Written& written) {
    std::vector<uint32_t> table(static_cast<size_t>(edges.num_edges) * 2);
    std::vector<int64_t> num_positive(static_cast<size_t>(edges.num_rows));
    succeed(fs_alias_tables(&edges, table.data(), num_positive.data()), "alias_tables");
    written.add("alias_tables", table);
    written.add("alias_tables", num_positive);
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
    const FsRowPair pair = {rows.data(), table_.data(), count, kNodes, columns, FS_FLOAT32, FS_FLOAT32};
    succeed(fs_merge_rows(&pair, places.data(), count, FS_FLOAT64, merged.data(), num_threads), "merge_rows");
    written.add("merge_rows", merged);
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

  template <typename T>
  static void aggregate(const Reduction& what, const std::vector<T>& x, const T* weights, Written& written) {
    const FsHop& hop = what.hop;
    const FsAggregation how = {hop.indptr,  hop.indices, hop.num_dst,    hop.num_src, hop.num_edges,  type_code<Id>(),
                               what.reduce, weights,     what.num_heads, what.width,  type_code<T>(), what.num_threads};
    const size_t cells = static_cast<size_t>(hop.num_dst * what.width);
    std::vector<T> out(cells), grad_x(static_cast<size_t>(hop.num_src * what.width));
    std::vector<T> grad_weights(weights == nullptr ? 0 : static_cast<size_t>(hop.num_edges * what.num_heads));
    std::vector<int64_t> arg(cells);
    succeed(fs_aggregate(&how, x.data(), out.data(), what.width, arg.data()), "aggregate");
    succeed(fs_aggregate_backward(&how, x.data(), arg.data(), out.data(), what.width, grad_x.data(),
                                  weights == nullptr ? nullptr : grad_weights.data()),
            "aggregate_backward");
    written.add("aggregate", out);
    written.add("aggregate_backward", grad_x);
    written.add("aggregate_backward", grad_weights);
  }

  template <typename T>
  void drop(const std::vector<T>& x, int32_t activation, int32_t num_threads, Written& written) const {
    const int64_t width = static_cast<int64_t>(x.size()) / kNodes;
    const FsActDropout how = {orig_ids_.data(),
                              kNodes,
                              width,
                              type_code<T>(),
                              activation,
                              30000,
                              num_threads,
                              seed_,
                              11,
                              2,
                              activation == FS_RELU ? x.data() : nullptr};
    std::vector<T> y(x.size()), grad(x.size());
    succeed(fs_act_dropout(&how, x.data(), y.data()), "act_dropout");
    succeed(fs_act_dropout_backward(&how, y.data(), x.data(), grad.data()), "act_dropout_backward");
    written.add("act_dropout", y);
    written.add("act_dropout_backward", grad);
  }

  // Refused calls free what they took and leave a message in the calling thread.
  void refuse_bad_input(int32_t num_threads) const {
    const FsGraph view = graph();
    const FsSampleSpec how = spec(0, num_threads);
    FsMiniBatch* batch = nullptr;
    const Id repeated[] = {4, 9, 4}, outside[] = {4, static_cast<Id>(kNodes)};
    require(fs_sample_mfg(&view, &how, repeated, 3, &batch) == FS_INVALID_ARGUMENT, "a repeated seed was accepted");
    require(strstr(fs_last_error(), "positions 0 and 2") != nullptr, "the repeated seed is not named");
    require(fs_sample_mfg(&view, &how, outside, 2, &batch) == FS_INVALID_ARGUMENT, "a seed outside was accepted");
    require(batch == nullptr, "a refused call handed out a mini-batch");
    float row[kRowBytes / 4];
    require(fs_gather_rows(table_.data(), kNodes, kRowBytes, type_code<Id>(), outside + 1, 1, row, num_threads) ==
                FS_INVALID_ARGUMENT,
            "a row outside was accepted");
    std::vector<uint32_t> table(static_cast<size_t>(kEdges) * 2);
    std::vector<int64_t> num_positive(static_cast<size_t>(kNodes));
    FsEdgeWeights negative = weights_by_edge(num_threads);
    negative.weights = weights_.data();
    negative.type = FS_FLOAT32;
    require(fs_alias_tables(&negative, table.data(), num_positive.data()) == FS_INVALID_ARGUMENT,
            "a negative weight was accepted");
  }

  uint64_t seed_;
  std::vector<int64_t> indptr_, orig_ids_;
  std::vector<Id> indices_, seeds_;
  std::vector<float> table_, wide_, weights_;
  std::vector<double> narrow_, chances_;
  std::vector<Bfloat16> half_;
};

struct Load {
  int callers, team, rounds;
};

template <typename Id>
void stress(uint64_t seed, const Load& load) {
  const Problem<Id> problem(seed);
  Written oracle;
  problem.run(1, oracle);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < load.callers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < load.rounds; ++round) {
        const FsStatus status = fs_set_isa(kSets[(caller + round) % 3]);
        require(status == FS_OK || status == FS_INVALID_ARGUMENT, "set_isa");  // the machine may lack the set
        Written written(&oracle);
        problem.run(load.team, written);
        require(written.size() == oracle.size(), "fewer results than with one caller and one thread");
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace

int main(int argc, char** argv) {
  const Load load = {argc == 4 ? atoi(argv[1]) : 0, argc == 4 ? atoi(argv[2]) : 0, argc == 4 ? atoi(argv[3]) : 0};
  if (load.callers < 1 || load.team < 1 || load.rounds < 1) {
    fprintf(stderr, "usage: fastsample_stress CALLERS TEAM ROUNDS   (each 1 or more)\n");
    return 2;
  }
  stress<int32_t>(1, load);
  stress<int64_t>(2, load);
  printf("fastsample_stress: %d callers, %d threads a call, %d rounds: every result as with one thread\n", load.callers,
         load.team, load.rounds);
  return 0;
}
