// Streaming partitioning and the order of a search for the stress test: against an oracle that counts again what the
// parts hold for every node. The oracle draws nothing: which of equal parts a node takes is seen from a graph without
// edges, the node first.
#ifndef FS_TESTS_STRESS_STREAM_H_
#define FS_TESTS_STRESS_STREAM_H_

#include <algorithm>
#include <cmath>
#include <numeric>

#include "stress_basics.h"

namespace stress {

template <typename Id>
class Streams {
 public:
  explicit Streams(Generator& generator) : indptr_{0}, order_(kNodes) {
    std::geometric_distribution<int64_t> degrees(0.1);
    std::uniform_int_distribution<int64_t> nodes(0, kNodes - 1);
    for (int64_t node = 0; node < kNodes; ++node) {
      const int64_t degree = node == 3 ? 200 : degrees(generator);  // some self-loops and parallel edges among them
      for (int64_t i = 0; i < degree; ++i) indices_.push_back(static_cast<Id>(nodes(generator)));
      indptr_.push_back(static_cast<int64_t>(indices_.size()));
      in_edges_.push_back(degrees(generator));
      kinds_.push_back(static_cast<uint8_t>(generator() & generator()));
    }
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), generator);
    see_draws();
  }

  void run(Written& written) const {
    for (int32_t score : {FS_LDG, FS_FENNEL}) {
      for (bool all : {false, true}) {
        for (double slack : {1.1, 0.7}) pass_twice(score, all, slack, written);  // with less than 1 no part has room
      }
    }
    std::vector<int32_t> none;
    FsStream empty = spec(FS_LDG, nullptr);
    const std::vector<int64_t> capacities(FS_STREAM_LIMITS, 1);
    empty.capacities = capacities.data();
    empty.num_nodes = empty.num_edges = 0;
    succeed(fs_stream_partition(&empty, none.data()), "stream_partition of no nodes");
    refuse();
    search(written);
  }

 private:
  static constexpr int64_t kNodes = 150;
  static constexpr int32_t kParts = 5;
  static constexpr int kKinds = FS_STREAM_LIMITS - 2;

  FsStream spec(int32_t score, const int64_t* capacities) const {
    return {indptr_.data(),
            indices_.data(),
            nullptr,
            nullptr,
            nullptr,
            capacities,
            kNodes,
            static_cast<int64_t>(indices_.size()),
            kParts,
            type_code<Id>(),
            score,
            0,
            0.5,
            uint64_t{99} << 32 | 7};
  }

  void see_draws() {
    const std::vector<int64_t> capacities(FS_STREAM_LIMITS, INT64_MAX), no_edges(kNodes + 1, 0);
    std::vector<int64_t> order(kNodes);
    FsStream what = spec(FS_LDG, capacities.data());
    what.indptr = no_edges.data();
    what.order = order.data();
    what.num_edges = 0;
    std::vector<int64_t> drawn(kParts, 0);
    for (int64_t node = 0; node < kNodes; ++node) {
      std::iota(order.begin(), order.end(), 0);
      std::swap(order[0], order[at(node)]);
      std::vector<int32_t> parts(kNodes, -1);
      succeed(fs_stream_partition(&what, parts.data()), "stream_partition without edges");
      first_.push_back(parts[at(node)]);
      ++drawn[at(first_.back())];
    }
    require(*std::min_element(drawn.begin(), drawn.end()) > kNodes / kParts / 2, "stream_partition: uneven draws");
  }

  // `all`: what may be left out is there.
  void pass_twice(int32_t score, bool all, double slack, Written& written) const {
    int64_t capacities[FS_STREAM_LIMITS] = {};
    FsStream what = spec(score, capacities);
    if (all) {
      what.order = order_.data();
      what.in_edges = in_edges_.data();
      what.kinds = kinds_.data();
    }
    for (int limit = 0; limit < FS_STREAM_LIMITS; ++limit) {
      int64_t total = 0;
      for (int64_t node = 0; node < kNodes; ++node) total += adds(what, node, limit);
      capacities[limit] = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(total) * slack / kParts));
    }
    if (!all) capacities[1] = INT64_MAX;
    std::vector<Id> by_turn;
    for (int64_t turn = 0; turn < kNodes; ++turn) {
      const size_t node = at(order_[at(turn)]);
      by_turn.insert(by_turn.end(), indices_.begin() + indptr_[node], indices_.begin() + indptr_[node + 1]);
    }
    std::vector<int32_t> parts(kNodes, -1), expected(parts);
    for (int pass = 0; pass < 2; ++pass) {
      FsStream call = what;
      if (all && pass == 1) {  // the same rows, lying otherwise
        call.indices = by_turn.data();
        call.rows_by_turn = 1;
      }
      succeed(fs_stream_partition(&call, parts.data()), "stream_partition");
      for (int64_t turn = 0; turn < kNodes; ++turn) assign(what, all ? order_[at(turn)] : turn, expected);
      require(parts == expected, "stream_partition: other parts");
      written.add("stream_partition", parts);
    }
  }

  // bfs_order against the queue, of all rows and of those of every seventh node (others isolated, levels narrow).
  void search(Written& written) const {
    for (int64_t step : {1, 7}) {
      std::vector<int64_t> indptr{0}, order(kNodes), queue;
      std::vector<Id> indices;
      for (int64_t node = 0; node < kNodes; ++node) {
        if (node % step == 0) {
          indices.insert(indices.end(), indices_.begin() + indptr_[at(node)], indices_.begin() + indptr_[at(node + 1)]);
          std::sort(indices.begin() + indptr.back(), indices.end());
        }
        indptr.push_back(static_cast<int64_t>(indices.size()));
      }
      FsGraph graph{};
      graph.indptr = indptr.data();
      graph.indices = indices.data();
      graph.num_rows = kNodes;
      graph.num_edges = indptr.back();
      graph.id_type = type_code<Id>();
      succeed(fs_bfs_order(&graph, order.data()), "bfs_order");
      std::vector<bool> found(kNodes, false);
      for (int64_t root = 0; root < kNodes; ++root) {
        if (found[at(root)]) continue;
        found[at(root)] = true;
        queue.push_back(root);
        for (size_t next = queue.size() - 1; next < queue.size(); ++next) {
          for (int64_t edge = indptr[at(queue[next])]; edge < indptr[at(queue[next] + 1)]; ++edge) {
            const int64_t other = indices[at(edge)];
            if (!found[at(other)]) queue.push_back(other);
            found[at(other)] = true;
          }
        }
      }
      require(order == queue, "bfs_order: another order");
      written.add("bfs_order", order);
      indices.back() = static_cast<Id>(kNodes);
      refused(fs_bfs_order(&graph, order.data()), "has a neighbour outside 0 to 149");
      graph.num_rows = int64_t{1} << 31;
      refused(fs_bfs_order(&graph, order.data()), "2147483648 nodes; expected at most 2^31 - 1");
    }
  }

  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  // What a node adds to a limit.
  static int64_t adds(const FsStream& what, int64_t node, int limit) {
    if (limit == 0) return 1;
    if (limit == 1) {
      return what.in_edges != nullptr ? what.in_edges[node] : what.indptr[node + 1] - what.indptr[node];
    }
    return what.kinds != nullptr ? what.kinds[node] >> (limit - 2) & 1 : 0;
  }

  // What a part holds of each limit.
  struct Held {
    int64_t of[FS_STREAM_LIMITS];
  };
  struct Choice {
    double after;  // share of the fullest limit that the node adds to, with the node
    double score;
    double fill;  // share of the fullest limit, without the node
  };

  void assign(const FsStream& what, int64_t node, std::vector<int32_t>& parts) const {
    parts[at(node)] = -1;
    std::vector<Held> loads(kParts);
    for (int64_t other = 0; other < kNodes; ++other) {
      if (parts[at(other)] < 0) continue;
      for (int limit = 0; limit < FS_STREAM_LIMITS; ++limit) {
        loads[at(parts[at(other)])].of[limit] += adds(what, other, limit);
      }
    }
    int32_t best = -1, least = -1;
    Choice of_best{}, of_least{};
    for (int32_t turn = 0; turn < kParts; ++turn) {
      const int32_t part = (first_[at(node)] + turn) % kParts;
      const Choice choice = weigh(what, node, loads[at(part)], links_to(what, node, part, parts));
      if (least < 0 || choice.after < of_least.after) {
        least = part;
        of_least = choice;
      }
      const bool better = choice.score > of_best.score || (choice.score == of_best.score && choice.fill < of_best.fill);
      if (choice.after <= 1 && (best < 0 || better)) {
        best = part;
        of_best = choice;
      }
    }
    parts[at(node)] = best < 0 ? least : best;
  }

  int64_t links_to(const FsStream& what, int64_t node, int32_t part, const std::vector<int32_t>& parts) const {
    int64_t links = 0;
    for (int64_t edge = what.indptr[node]; edge < what.indptr[node + 1]; ++edge) {
      links += parts[at(indices_[at(edge)])] == part;
    }
    return links;
  }

  static Choice weigh(const FsStream& what, int64_t node, const Held& held, int64_t links) {
    Choice choice{};
    for (int limit = 0; limit < FS_STREAM_LIMITS; ++limit) {
      const double capacity = static_cast<double>(what.capacities[limit]);
      const int64_t more = adds(what, node, limit);
      choice.fill = std::max(choice.fill, static_cast<double>(held.of[limit]) / capacity);
      if (more > 0) choice.after = std::max(choice.after, static_cast<double>(held.of[limit] + more) / capacity);
    }
    const double n = static_cast<double>(links);
    if (what.score == FS_LDG) {
      choice.score = n * (1 - choice.fill);
    } else {
      choice.score = n - what.alpha * 1.5 * std::sqrt(choice.fill * static_cast<double>(what.capacities[0]));
    }
    return choice;
  }

  void refuse() const {
    const std::vector<int64_t> capacities(FS_STREAM_LIMITS, INT64_MAX);
    const FsStream good = spec(FS_LDG, capacities.data());
    const auto refuse_with = [](const FsStream& what, const char* words) {
      std::vector<int32_t> parts(kNodes, -1);
      refused(fs_stream_partition(&what, parts.data()), words);
    };
    FsStream bad = good;
    bad.num_parts = 0;
    refuse_with(bad, "0 parts; expected 1 to 2^31 - 1");
    bad = good;
    bad.score = 7;
    refuse_with(bad, "score 7");
    bad = good;
    bad.id_type = FS_FLOAT64;
    refuse_with(bad, "stream_partition");
    bad = good;
    const std::vector<int64_t> none(FS_STREAM_LIMITS, 0);
    bad.capacities = none.data();
    refuse_with(bad, "capacity 0 is 0; expected at least 1");
    bad = good;
    bad.num_edges -= 1;
    refuse_with(bad, "expected non-decreasing offsets");
    bad = good;
    std::vector<int64_t> order(order_);
    order[5] = kNodes;
    bad.order = order.data();
    refuse_with(bad, "order has node 150; expected 0 to 149");
    std::fill(order.begin(), order.end(), 3);  // the longest row, again and again
    bad.rows_by_turn = 1;
    refuse_with(bad, "edges; expected each node once");
    for (const Id outside : {static_cast<Id>(-1), static_cast<Id>(kNodes)}) {
      std::vector<Id> indices(indices_);
      indices[at(indptr_[3])] = outside;
      bad = good;
      bad.indices = indices.data();
      refuse_with(bad, "node 3 has a neighbour outside 0 to 149");
    }
    std::vector<int32_t> parts(kNodes, kParts);
    refused(fs_stream_partition(&good, parts.data()), "node 0 is in part 5; expected -1 to 4");
  }

  std::vector<int64_t> indptr_, order_, in_edges_;
  std::vector<Id> indices_;
  std::vector<uint8_t> kinds_;
  std::vector<int32_t> first_;  // [kNodes] where a node's search for the best part begins
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_STREAM_H_
