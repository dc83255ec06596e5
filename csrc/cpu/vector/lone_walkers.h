// Draws of nodes and edges, and walks, which do not wait for each other: kChunkDraws of them side by side in plain
// loops, each of which requests from memory what the next one reads (as walk_steps.h; the draws are those of
// fastsample_subgraph.h).
#ifndef FS_CPU_VECTOR_LONE_WALKERS_H_
#define FS_CPU_VECTOR_LONE_WALKERS_H_

#include "fastsample_subgraph.h"
#include "slot_words.h"

namespace fs {
namespace {

constexpr int64_t kChunkDraws = 128;

template <typename Id>
__attribute__((noinline)) int64_t root_again(const RootList<Id>& roots, uint64_t stream) {
  NodeStream words(roots.key, stream);
  return static_cast<int64_t>(words.below(roots.count));
}

// The nodes at drawn places of a list; their offsets are requested. False: one is no node.
template <typename Id>
bool read_roots(const CscView<Id>& graph, const RootList<Id>& roots, const int64_t* places, int64_t count, Id* nodes) {
  for (int64_t i = 0; i < count; ++i) __builtin_prefetch(roots.nodes + places[i]);
  bool are_nodes = true;
  for (int64_t i = 0; i < count; ++i) {
    nodes[i] = roots.nodes[places[i]];
    are_nodes &= graph.has_row(nodes[i]);
    __builtin_prefetch(graph.indptr + nodes[i]);
  }
  return are_nodes;
}

// Roots of the draws first .. first + count - 1, at most kChunkDraws. False: one is no node.
template <typename Id>
bool draw_roots(const CscView<Id>& graph, const RootList<Id>& roots, int64_t first, int64_t count, Id* nodes) {
  uint64_t streams[kChunkDraws] = {};
  uint32_t words[kChunkDraws];
  int64_t places[kChunkDraws];
  for (int64_t i = 0; i < count; ++i) streams[i] = static_cast<uint64_t>(first + i);
  first_words(roots.key, streams, count, words);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t product = static_cast<uint64_t>(words[i]) * roots.count;
    places[i] = static_cast<int64_t>(product >> 32);
    const bool is_again = roots.count > 0xFFFFFFFFull || static_cast<uint32_t>(product) < roots.count;
    if (__builtin_expect(is_again, 0)) places[i] = root_again(roots, streams[i]);
  }
  return read_roots(graph, roots, places, count, nodes);
}

// One chunk of walkers that hop in lock step.
template <typename Id, int kWords>
class WalkerChunk {
 public:
  WalkerChunk(const CscView<Id>& graph, StageKey key, int64_t first, int64_t count)
      : graph_(graph), words_(key, memory_), first_(first), count_(count) {
    words_.start(0, count, static_cast<uint64_t>(first));
    for (int64_t i = 0; i < count; ++i) used_[i] = 0;
  }

  // Draws nodes of a list by the first words of the streams. False: one is no node.
  bool start(const RootList<Id>& roots, Id* nodes) {
    for (int64_t i = 0; i < count_; ++i) {
      typename SlotWords<kWords>::Stream stream(words_, i, static_cast<uint64_t>(first_ + i), used_ + i);
      positions_[i] = static_cast<int64_t>(draw_below(stream, roots.count));
    }
    return read_roots(graph_, roots, positions_, count_, nodes);
  }

  // Draws a position in the row of nodes[i * stride]; -1: the row is empty. False: its offsets are none.
  bool draw(const Id* nodes, int64_t stride) {
    bool are_rows = true;
    for (int64_t i = 0; i < count_; ++i) {
      const Id node = nodes[i * stride];
      positions_[i] = -1;
      if (node < 0) continue;
      const int64_t begin = graph_.indptr[node], end = graph_.indptr[node + 1];
      if (__builtin_expect(begin < 0 || end < begin || end > graph_.num_edges, 0)) {
        are_rows = false;
      } else if (end > begin) {
        typename SlotWords<kWords>::Stream stream(words_, i, static_cast<uint64_t>(first_ + i), used_ + i);
        positions_[i] = begin + static_cast<int64_t>(draw_below(stream, static_cast<uint64_t>(end - begin)));
        __builtin_prefetch(graph_.indices + positions_[i]);
      }
    }
    return are_rows;
  }

  // nodes[i * stride] becomes the neighbour there, -1 where there is none; adds to *num_ended. False: one is no node.
  bool take(Id* nodes, int64_t stride, int64_t* num_ended) const {
    bool are_nodes = true;
    for (int64_t i = 0; i < count_; ++i) {
      const bool has_ended = positions_[i] < 0;
      const Id node = has_ended ? Id{-1} : graph_.indices[positions_[i]];
      nodes[i * stride] = node;
      are_nodes &= has_ended || graph_.has_row(node);
      *num_ended += has_ended;
      __builtin_prefetch(graph_.indptr + node);
    }
    return are_nodes;
  }

 private:
  const CscView<Id>& graph_;
  alignas(64) uint32_t memory_[kChunkDraws * kWords];
  SlotWords<kWords> words_;
  const int64_t first_, count_;
  uint64_t used_[kChunkDraws];
  int64_t positions_[kChunkDraws];
};

template <typename Id>
class LoneWalkers {
 public:
  explicit LoneWalkers(const LoneTask<Id>& task) : task_(task) {}

  DrawnVisits run() {
    if (task_.method == FS_SUBGRAPH_NODE && task_.degree_sums[task_.roots.count] <= 0) return {0, 0};
    if (task_.method == FS_SUBGRAPH_EDGE && task_.roots.count == 0) return {0, 0};
    for (int64_t first = 0; first < task_.count; first += kChunkDraws) {
      const int64_t rest = task_.count - first, count = rest < kChunkDraws ? rest : kChunkDraws;
      const bool is_fine = task_.method == FS_SUBGRAPH_NODE   ? draw_nodes(first, count)
                           : task_.method == FS_SUBGRAPH_EDGE ? draw_edges(first, count)
                           : task_.walk_length <= 4           ? walk<4>(first, count)
                                                              : walk<kWalkWords>(first, count);
      if (!is_fine) return {-1, 0};
    }
    return {num_visits_, num_steps_};
  }

 private:
  bool draw_nodes(int64_t first, int64_t count) {
    alignas(64) uint32_t memory[kChunkDraws * 4];
    SlotWords<4> words(task_.roots.key, memory);
    words.start(0, count, static_cast<uint64_t>(first));
    const int64_t* sums = task_.degree_sums;
    const uint64_t total = static_cast<uint64_t>(sums[task_.roots.count]);
    int64_t drawn[kChunkDraws], places[kChunkDraws];
    for (int64_t i = 0; i < count; ++i) {
      uint64_t used = 0;
      SlotWords<4>::Stream stream(words, i, static_cast<uint64_t>(first + i), &used);
      drawn[i] = static_cast<int64_t>(draw_below(stream, total));
      places[i] = 0;
    }
    for (int64_t rest = static_cast<int64_t>(task_.roots.count); rest > 1; rest -= rest / 2) {
      const int64_t half = rest / 2;  // the last place whose sum is at most the number is among `rest` places
      for (int64_t i = 0; i < count; ++i) places[i] += sums[places[i] + half] <= drawn[i] ? half : 0;
    }
    Id* visits = task_.visits + num_visits_;
    bool are_nodes = true;
    for (int64_t i = 0; i < count; ++i) {
      visits[i] = task_.roots.nodes[places[i]];
      are_nodes &= task_.graph.has_row(visits[i]);
    }
    num_visits_ += count;
    num_steps_ += count;
    return are_nodes;
  }

  bool draw_edges(int64_t first, int64_t count) {
    Id heads[kChunkDraws];
    WalkerChunk<Id, 4> chunk(task_.graph, task_.roots.key, first, count);
    if (!chunk.start(task_.roots, heads)) return false;
    Id* visits = task_.visits + num_visits_;
    int64_t num_ended = 0;
    if (!chunk.draw(heads, 1) || !chunk.take(visits + 1, 2, &num_ended) || num_ended > 0) return false;
    for (int64_t i = 0; i < count; ++i) visits[2 * i] = heads[i];
    num_visits_ += 2 * count;
    num_steps_ += count;
    return true;
  }

  template <int kWords>
  bool walk(int64_t first, int64_t count) {
    const int64_t stride = task_.walk_length + 1;
    Id roots[kChunkDraws];
    Id* visits = task_.visits + num_visits_;
    if (!draw_roots(task_.graph, task_.roots, first, count, roots)) return false;
    for (int64_t i = 0; i < count; ++i) visits[i * stride] = roots[i];
    WalkerChunk<Id, kWords> chunk(task_.graph, task_.hops_key, first, count);
    int64_t num_missing = 0;
    for (int64_t hop = 0; hop < task_.walk_length; ++hop) {
      if (!chunk.draw(visits + hop, stride) || !chunk.take(visits + hop + 1, stride, &num_missing)) return false;
    }
    int64_t kept = count * stride;
    if (num_missing > 0) {  // the visits move together
      kept = 0;
      for (int64_t i = 0; i < count * stride; ++i) {
        visits[kept] = visits[i];
        kept += visits[i] >= 0;
      }
    }
    num_visits_ += kept;
    num_steps_ += kept - count;
    return true;
  }

  const LoneTask<Id>& task_;
  int64_t num_visits_ = 0, num_steps_ = 0;
};

template <typename Id>
DrawnVisits lone_visits(const LoneTask<Id>& task) {
  return LoneWalkers<Id>(task).run();
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_LONE_WALKERS_H_
