// bfs_order: the nodes of a graph in the order of a breadth-first search, the rows of a level read front to back.
//
// The textbook's queue reads rows in the order in which their nodes were found, scattered over a file that is mapped.
// Here a level's rows are read by ascending node, and the next level is put in order afterwards. A node that is found
// keeps the least place in the queue of those that found it; with rows in ascending order, sorting the new nodes by
// (that place, node) gives the queue of the textbook. A level with a good share of all nodes is found by looking at
// every node, a smaller one is sorted by node: levels of one node cost no more than in the queue.
//
// Memory besides the result: 4 bytes per node (`places`) and those of the largest level that is sorted, 1/4 byte.
#include <algorithm>
#include <vector>

#include "csc_view.h"
#include "fastsample.h"
#include "graph_checks.h"
#include "status.h"

namespace fs {
namespace {

constexpr uint32_t kNew = ~uint32_t{0};         // not found yet
constexpr uint32_t kFound = uint32_t{1} << 31;  // found in this level; the rest is the place of who found it
constexpr int64_t kMostNodes = (int64_t{1} << 31) - 1;
constexpr int64_t kSweptShare = 16;  // a level of 1/16 of the nodes or more is not sorted by node

template <typename Id>
class Search {
 public:
  Search(const CscView<Id>& graph, int64_t* order)
      : graph_(graph), order_(order), places_(static_cast<size_t>(graph.num_rows), kNew) {}

  FsStatus run() {
    for (int64_t root = 0; root < graph_.num_rows; ++root) {
      if (place(root) != kNew) continue;
      place(root) = static_cast<uint32_t>(end_);
      order_[end_++] = root;
      for (int64_t begin = end_ - 1; begin < end_;) {
        const int64_t level_end = end_;
        if (!find_next(begin, level_end)) return failed_;
        put_in_order(level_end);
        begin = level_end;
      }
    }
    return FS_OK;
  }

 private:
  uint32_t& place(int64_t node) { return places_[static_cast<size_t>(node)]; }

  // Reads the rows of the level order_[begin .. level_end) by ascending node. False: refused.
  bool find_next(int64_t begin, int64_t level_end) {
    if (level_end - begin >= graph_.num_rows / kSweptShare) {
      const uint32_t least = static_cast<uint32_t>(begin), count = static_cast<uint32_t>(level_end - begin);
      for (int64_t node = 0; node < graph_.num_rows; ++node) {
        if (place(node) - least < count && !read_row(node)) return false;
      }
      return true;
    }
    level_.assign(order_ + begin, order_ + level_end);
    std::sort(level_.begin(), level_.end());
    return std::all_of(level_.begin(), level_.end(), [&](uint32_t node) { return read_row(node); });
  }

  bool read_row(int64_t node) {
    const int64_t begin = graph_.indptr[node], end = graph_.indptr[node + 1];
    if (begin < 0 || end < begin || end > graph_.num_edges) {
      failed_ = refuse(FS_REFUSED_OFFSETS, "bfs_order", {{node, begin, end, graph_.num_edges}});
      return false;
    }
    const uint32_t mine = place(node) | kFound;
    for (int64_t edge = begin; edge < end; ++edge) {
      const int64_t neighbour = graph_.indices[edge];
      if (neighbour < 0 || neighbour >= graph_.num_rows) {
        failed_ = refuse_neighbour("bfs_order", node, graph_.num_rows);
        return false;
      }
      uint32_t& found = place(neighbour);
      if (found == kNew) order_[end_++] = neighbour;
      if (found >= kFound) found = std::min(found, mine);  // kNew is the largest
    }
    return true;
  }

  // Sorts what was found since by (place of who found it, node), and gives places.
  void put_in_order(int64_t begin) {
    for (int64_t at = begin; at < end_; ++at) order_[at] |= static_cast<int64_t>(place(order_[at]) & ~kFound) << 32;
    std::sort(order_ + begin, order_ + end_);
    for (int64_t at = begin; at < end_; ++at) {
      order_[at] &= 0xffffffff;
      place(order_[at]) = static_cast<uint32_t>(at);
    }
  }

  const CscView<Id>& graph_;
  int64_t* order_;
  int64_t end_ = 0;  // of the queue
  std::vector<uint32_t> places_;
  std::vector<uint32_t> level_;
  FsStatus failed_ = FS_OK;
};

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_bfs_order(const FsGraph* graph, int64_t* order) {
  return fs::guarded("bfs_order", [&] {
    if (graph->num_rows > fs::kMostNodes) {
      return fs::fail(FS_INVALID_ARGUMENT, "bfs_order: %lld nodes; expected at most 2^31 - 1",
                      static_cast<long long>(graph->num_rows));
    }
    return fs::with_id_type("bfs_order", graph->id_type, [&](auto zero) {
      return fs::Search<decltype(zero)>(fs::view_of<decltype(zero)>(*graph), order).run();
    });
  });
}
