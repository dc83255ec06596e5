// Edge lists for the stress test: counted, grouped piece by piece and sorted bucket by bucket, against one stable sort
// of the whole list.
#ifndef FS_TESTS_STRESS_EDGES_H_
#define FS_TESTS_STRESS_EDGES_H_

#include <algorithm>

#include "stress_basics.h"

namespace stress {

// A drawn list with self-loops and equal edges; constant once drawn, so that callers share it.
template <typename Id>
class EdgeLists {
 public:
  explicit EdgeLists(Generator& generator) {
    std::geometric_distribution<int64_t> skewed(0.005);
    std::uniform_int_distribution<int> weights(0, 5);  // few, so that equal edges often weigh the same
    for (int64_t i = 0; i < kEdges; ++i) {
      src_.push_back(static_cast<Id>(skewed(generator) % kNodes));
      dst_.push_back(static_cast<Id>(skewed(generator) % kNodes));
      single_.push_back(static_cast<float>(weights(generator)));
      exact_.push_back(static_cast<double>(weights(generator)));
    }
    for (int32_t undirected : {0, 1}) {
      for (int32_t merge : {0, 1}) {
        for (int32_t weight_type : {kUnweighted, int32_t{FS_FLOAT32}, int32_t{FS_FLOAT64}}) {
          std::vector<Edge> edges = list(undirected, weight_type);
          cases_.push_back({undirected, merge, weight_type, edges, sorted(edges, merge != 0)});
        }
      }
    }
  }

  void run(int32_t num_threads, Written& written) const {
    for (const Case& how : cases_) {
      if (how.weight_type == FS_FLOAT64) {
        sort<double>(how, &exact_, num_threads, written);
      } else {
        sort<float>(how, how.weight_type == FS_FLOAT32 ? &single_ : nullptr, num_threads, written);
      }
    }
    for (const Case& how : cases_) {  // with the positions, in the type of the ids
      if (how.weight_type == FS_FLOAT64) {
        sort<double>(how, &exact_, num_threads, written, true);
      } else {
        sort<float>(how, how.weight_type == FS_FLOAT32 ? &single_ : nullptr, num_threads, written, true);
      }
    }
    sort_nothing(0);
    sort_nothing(3);
    refuse_ends();
    refuse_buckets(num_threads);
  }

 private:
  static constexpr int64_t kNodes = 1000;
  static constexpr int64_t kEdges = 40000;  // undirected, more than two tasks of fs_sort_edges in the third bucket
  static constexpr int64_t kPieces = 3;
  static constexpr int64_t kBounds[] = {0, 2, 2, 400, kNodes};  // the second bucket is empty, the first has long rows
  static constexpr int64_t kBuckets = 4;

  static constexpr int32_t kUnweighted = -1;

  struct Edge {
    int64_t dst, src, position;
    double weight;
    int32_t count;   // of equal edges that it stands for
    int32_t unlike;  // of these, of another weight; 0 where the source is below the destination
  };

  // What to do with the list, and what the oracle makes of it.
  struct Case {
    int32_t undirected, merge, weight_type;
    std::vector<Edge> listed, sorted;
  };

  // One bucket: its edges in listing order.
  template <typename Weight>
  struct Bucket {
    std::vector<uint64_t> keys;
    std::vector<Weight> weights;
    std::vector<Id> positions;
  };

  FsEdgeList piece(int64_t begin, int64_t end, int32_t undirected) const {
    return {src_.data() + begin, dst_.data() + begin, nullptr,   end - begin, kNodes, begin,
            type_code<Id>(),     FS_FLOAT32,          undirected};
  }

  std::vector<Edge> list(int32_t undirected, int32_t weight_type) const {
    std::vector<Edge> edges;
    for (size_t i = 0; i < src_.size(); ++i) {
      const double weight = weight_type == FS_FLOAT32 ? single_[i] : weight_type == FS_FLOAT64 ? exact_[i] : 0;
      const int64_t position = static_cast<int64_t>(i);
      edges.push_back({dst_[i], src_[i], position, weight, 1, 0});
      if (undirected && src_[i] != dst_[i]) edges.push_back({src_[i], dst_[i], position, weight, 1, 0});
    }
    return edges;
  }

  static std::vector<Edge> sorted(std::vector<Edge> edges, bool merge) {
    std::stable_sort(edges.begin(), edges.end(), [merge](const Edge& a, const Edge& b) {
      if (a.dst != b.dst) return a.dst < b.dst;
      if (a.src != b.src) return a.src < b.src;
      return !merge && a.weight < b.weight;
    });
    if (!merge) return edges;
    std::vector<Edge> merged;
    for (const Edge& edge : edges) {
      if (!merged.empty() && merged.back().dst == edge.dst && merged.back().src == edge.src) {
        ++merged.back().count;
        merged.back().unlike += edge.src >= edge.dst && edge.weight != merged.back().weight;
      } else {
        merged.push_back(edge);
      }
    }
    return merged;
  }

  template <typename Weight>
  void sort(const Case& how, const std::vector<Weight>* weights, int32_t num_threads, Written& written,
            bool with_positions = false) const {
    count(how);
    std::vector<Bucket<Weight>> buckets = group(how, weights, with_positions);
    size_t next = 0;
    for (int64_t b = 0; b < kBuckets; ++b) {
      Bucket<Weight>& bucket = buckets[static_cast<size_t>(b)];
      const int64_t first = kBounds[b], num_rows = kBounds[b + 1] - first;
      std::vector<int32_t> counts(bucket.keys.size());
      int64_t unlike = 0;
      const FsEdgeBucket what = {bucket.keys.data(),
                                 weights == nullptr ? nullptr : bucket.weights.data(),
                                 with_positions ? bucket.positions.data() : nullptr,
                                 how.merge ? counts.data() : nullptr,
                                 static_cast<int64_t>(bucket.keys.size()),
                                 first,
                                 num_rows,
                                 type_code<Id>(),
                                 type_code<Weight>(),
                                 type_code<Id>(),
                                 how.merge,
                                 num_threads,
                                 how.merge ? &unlike : nullptr};
      std::vector<int64_t> degrees(static_cast<size_t>(num_rows));
      int64_t num_edges = -1;
      succeed(fs_sort_edges(&what, degrees.data(), &num_edges), "sort_edges");
      const Id* sources = reinterpret_cast<const Id*>(bucket.keys.data());
      int64_t place = 0;
      for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t i = 0; i < degrees[static_cast<size_t>(row)]; ++i, ++place, ++next) {
          require(next < how.sorted.size(), "sort_edges: too many edges");
          const Edge& edge = how.sorted[next];
          require(edge.dst == first + row && edge.src == sources[place], "sort_edges: another edge");
          require(weights == nullptr || edge.weight == static_cast<double>(bucket.weights[static_cast<size_t>(place)]),
                  "sort_edges: another weight");
          require(!with_positions || edge.position == bucket.positions[static_cast<size_t>(place)],
                  "sort_edges: another position");
          require(!how.merge || edge.count == counts[static_cast<size_t>(place)], "sort_edges: another count");
          unlike -= edge.unlike;
        }
      }
      require(unlike == 0, "sort_edges: another number of other weights");
      require(place == num_edges, "sort_edges: degrees that do not add up");
      written.add("sort_edges", degrees);
      written.add("sort_edges", sources, num_edges);
      written.add("sort_edges", counts.data(), how.merge ? num_edges : 0);
    }
    require(next == how.sorted.size(), "sort_edges: too few edges");
  }

  void count(const Case& how) const {
    std::vector<int64_t> degrees(static_cast<size_t>(kNodes)), expected(degrees.size());
    for (int64_t p = 0; p < kPieces; ++p) {
      const FsEdgeList edges = piece(kEdges * p / kPieces, kEdges * (p + 1) / kPieces, how.undirected);
      succeed(fs_edge_degrees(&edges, degrees.data()), "edge_degrees");
    }
    for (const Edge& edge : how.listed) ++expected[static_cast<size_t>(edge.dst)];
    require(degrees == expected, "edge_degrees: other degrees");
  }

  template <typename Weight>
  std::vector<Bucket<Weight>> group(const Case& how, const std::vector<Weight>* weights, bool with_positions) const {
    std::vector<Bucket<Weight>> buckets(kBuckets), expected(kBuckets);
    for (int64_t p = 0; p < kPieces; ++p) {
      const int64_t begin = kEdges * p / kPieces, end = kEdges * (p + 1) / kPieces;
      FsEdgeList edges = piece(begin, end, how.undirected);
      edges.weights = weights == nullptr ? nullptr : weights->data() + begin;
      edges.weight_type = type_code<Weight>();
      const size_t room = static_cast<size_t>(end - begin) * (how.undirected ? 2 : 1);
      std::vector<uint64_t> keys(room);
      std::vector<Weight> grouped(weights == nullptr ? 0 : room);
      std::vector<Id> positions(with_positions ? room : 0);
      int64_t counts[kBuckets];
      const FsGroupedEdges out = {keys.data(), weights == nullptr ? nullptr : grouped.data(),
                                  with_positions ? positions.data() : nullptr, counts, type_code<Id>()};
      succeed(fs_group_edges(&edges, kBounds, kBuckets, &out), "group_edges");
      int64_t place = 0;
      for (size_t b = 0; b < buckets.size(); place += counts[b], ++b) {
        buckets[b].keys.insert(buckets[b].keys.end(), keys.begin() + place, keys.begin() + place + counts[b]);
        if (with_positions) {
          buckets[b].positions.insert(buckets[b].positions.end(), positions.begin() + place,
                                      positions.begin() + place + counts[b]);
        }
        if (weights == nullptr) continue;
        buckets[b].weights.insert(buckets[b].weights.end(), grouped.begin() + place,
                                  grouped.begin() + place + counts[b]);
      }
    }
    for (const Edge& edge : how.listed) {
      size_t b = 0;
      while (kBounds[b + 1] <= edge.dst) ++b;
      expected[b].keys.push_back(static_cast<uint64_t>(edge.dst) << 32 | static_cast<uint64_t>(edge.src));
      if (weights != nullptr) expected[b].weights.push_back(static_cast<Weight>(edge.weight));
      if (with_positions) expected[b].positions.push_back(static_cast<Id>(edge.position));
    }
    for (size_t b = 0; b < buckets.size(); ++b) {
      require(buckets[b].keys == expected[b].keys, "group_edges: other edges");
      require(buckets[b].weights == expected[b].weights, "group_edges: other weights");
      require(buckets[b].positions == expected[b].positions, "group_edges: other positions");
    }
    return buckets;
  }

  static void sort_nothing(int64_t num_nodes) {
    const FsEdgeList none = {nullptr, nullptr, nullptr, 0, num_nodes, 0, type_code<Id>(), FS_FLOAT32, 1};
    std::vector<int64_t> degrees(static_cast<size_t>(num_nodes), 0);
    const std::vector<int64_t> zeros(degrees);
    succeed(fs_edge_degrees(&none, degrees.data()), "edge_degrees of no edges");
    require(degrees == zeros, "edge_degrees: edges from nowhere");
    const int64_t bounds[] = {0, 0, num_nodes};
    int64_t counts[] = {-1, -1};
    const FsGroupedEdges out = {nullptr, nullptr, nullptr, counts, FS_INT32};
    succeed(fs_group_edges(&none, bounds, 2, &out), "group_edges of no edges");
    require(counts[0] == 0 && counts[1] == 0, "group_edges: edges from nowhere");
    const FsEdgeBucket empty = {nullptr,         nullptr,    nullptr,  nullptr, 0, 0,      num_nodes,
                                type_code<Id>(), FS_FLOAT32, FS_INT32, 0,       2, nullptr};
    int64_t num_edges = -1;
    succeed(fs_sort_edges(&empty, degrees.data(), &num_edges), "sort_edges of no edges");
    require(num_edges == 0 && degrees == zeros, "sort_edges: edges from nowhere");
  }

  void refuse_ends() const {
    std::vector<int64_t> degrees(static_cast<size_t>(kNodes), 0);
    const std::vector<int64_t> before(degrees);
    std::vector<uint64_t> keys(6);
    int64_t counts[kBuckets];
    const FsGroupedEdges out = {keys.data(), nullptr, nullptr, counts, FS_INT32};
    for (const Id outside : {static_cast<Id>(-1), static_cast<Id>(kNodes)}) {
      for (int end = 0; end < 2; ++end) {
        std::vector<Id> ends[2] = {{1, 2, 3}, {3, 2, 1}};
        ends[end][2] = outside;
        const FsEdgeList edges = {ends[0].data(),  ends[1].data(), nullptr, 3, kNodes, 70,
                                  type_code<Id>(), FS_FLOAT32,     1};
        const std::string words = std::string(end == 0 ? "source" : "destination") + " of edge 72 is " +
                                  std::to_string(outside) + "; expected 0 to 999";
        refused(fs_edge_degrees(&edges, degrees.data()), words.c_str());
        refused(fs_group_edges(&edges, kBounds, kBuckets, &out), words.c_str());
      }
    }
    require(degrees == before, "edge_degrees: changed though refused");
    FsEdgeList edges = piece(0, 3, 0);
    edges.num_nodes = 0;
    refused(fs_edge_degrees(&edges, degrees.data()), "of edge 0 is");
    edges = piece(0, 3, 0);
    edges.id_type = FS_FLOAT32;
    refused(fs_edge_degrees(&edges, degrees.data()), "edge_degrees");
  }

  void refuse_buckets(int32_t num_threads) const {
    const FsEdgeList edges = piece(0, 3, 0);
    std::vector<uint64_t> keys(3);
    int64_t counts[kBuckets];
    FsGroupedEdges out = {keys.data(), nullptr, nullptr, counts, FS_INT32};
    refused(fs_group_edges(&edges, kBounds, 0, &out), "0 buckets");
    refused(fs_group_edges(&edges, kBounds, kBuckets - 1, &out), "3 buckets");
    out.position_type = FS_FLOAT32;
    refused(fs_group_edges(&edges, kBounds, kBuckets, &out), "group_edges");
    for (uint64_t outside : {9, 20}) {
      keys = {uint64_t{11} << 32, outside << 32 | 1, uint64_t{12} << 32};
      const FsEdgeBucket bucket = {keys.data(),     nullptr,    nullptr,  nullptr, 3,           10,     10,
                                   type_code<Id>(), FS_FLOAT32, FS_INT32, 0,       num_threads, nullptr};
      std::vector<int64_t> degrees(10);
      int64_t num_edges;
      refused(fs_sort_edges(&bucket, degrees.data(), &num_edges), "in a bucket of nodes 10 to 19");
    }
    std::vector<int32_t> multiplicities(3);
    const FsEdgeBucket uncounted = {
        keys.data(), nullptr,  nullptr, multiplicities.data(), 3,      10, 10, type_code<Id>(),
        FS_FLOAT32,  FS_INT32, 0,       num_threads,           nullptr};
    std::vector<int64_t> degrees(10);
    int64_t num_edges;
    refused(fs_sort_edges(&uncounted, degrees.data(), &num_edges), "counts without merge");
  }

  std::vector<Id> src_, dst_;
  std::vector<float> single_;
  std::vector<double> exact_;
  std::vector<Case> cases_;
};

template <typename Id>
constexpr int64_t EdgeLists<Id>::kBounds[];

}  // namespace stress

#endif  // FS_TESTS_STRESS_EDGES_H_
