// compact on CUDA: one hop's neighbours become local ids by the steps that end a hop of sample_mfg (hop_kernels.cuh);
// here the rows are given, and so are the sources of the edges.
#include <limits>

#include "sample_kernels.cuh"

namespace fs {
namespace {

constexpr int kReportWords = 4;  // see fs_cuda_compact

template <typename Id>
struct CompactScratch {
  uint64_t* state;  // of a batch of one hop
  DeviceIdTable<Id> table;
  int64_t cleared_bytes;
  uint64_t* scan;  // of the edges that bring a node
  int64_t bytes;
};

template <typename Id>
CompactScratch<Id> carve_compact(int64_t num_dst, int64_t num_edges, void* workspace) {
  CompactScratch<Id> scratch = {};
  Carver carver(workspace);
  // Ids are not bounded here, so that the table is never one slot per id.
  const IdTableSize size = id_table_size(num_dst + num_edges, std::numeric_limits<int64_t>::max() / 8, sizeof(Id));
  scratch.state = carver.take<uint64_t>(state_words(1));
  scratch.table.slots = size.slots;
  scratch.table.bits = size.bits;
  scratch.table.values = carver.take<uint64_t>(size.slots);
  scratch.table.keys = carver.take<Id>(size.slots);
  scratch.scan = carver.take<uint64_t>(scan_words(num_edges));
  scratch.cleared_bytes = carver.bytes();
  scratch.bytes = carver.bytes();
  return scratch;
}

// Destinations, which are the first sources.
template <typename Id>
FS_KERNEL void add_destinations(DeviceHop<Id> hop, const Id* dst_nodes, int64_t num_dst, int64_t num_edges) {
  if (thread_number() == 0) {
    hop.state[kNumSeeds] = static_cast<uint64_t>(num_dst);
    hop.state[num_edges_word(0)] = static_cast<uint64_t>(num_edges);
  }
  for (int64_t i = thread_number(); i < num_dst; i += num_threads()) {
    const Id node = dst_nodes[i];
    hop.nodes[i] = node;
    if (!hop.graph.has_source(node)) {
      atomic_min(hop.state + kBadSeed, static_cast<uint64_t>(i));
    } else {
      atomic_min(hop.table.values + hop.table.insert(node), hop.stamp() + static_cast<uint64_t>(i));
    }
  }
}

template <typename Id>
FS_KERNEL void add_neighbors(DeviceHop<Id> hop, int64_t num_dst, const Id* neighbors, int64_t num_edges) {
  for (int64_t i = thread_number(); i < num_dst; i += num_threads()) {
    const Id node = hop.nodes[i];
    if (hop.graph.has_source(node) &&
        hop.table.values[hop.table.insert(node)] != hop.stamp() + static_cast<uint64_t>(i)) {
      atomic_min(hop.state + kRepeatedSeed, static_cast<uint64_t>(i));
    }
  }
  for (int64_t e = thread_number(); e < num_edges; e += num_threads()) put_source(hop, e, neighbors[e]);
}

template <typename Id>
FS_KERNEL void report_compact(DeviceHop<Id> hop, int64_t* report) {
  if (thread_number() != 0) return;
  const int64_t words[kReportWords] = {num_src_word(0), kBadSeed, kRepeatedSeed, bad_edge_word(0)};
  for (int w = 0; w < kReportWords; ++w) report[w] = static_cast<int64_t>(hop.state[words[w]]);
}

struct Compact {
  const void* dst_nodes;
  int64_t num_dst;
  const void* neighbors;
  int64_t num_edges;
  void* out_src_nodes;
  void* out_indices;
  int64_t* out_report;
  void* workspace;
  cudaStream_t stream;
};

template <typename Id>
void compact(const Compact& c) {
  const CompactScratch<Id> scratch = carve_compact<Id>(c.num_dst, c.num_edges, c.workspace);
  DeviceHop<Id> hop = {};
  hop.graph.num_rows = hop.graph.num_sources = std::numeric_limits<Id>::max();
  hop.indices = static_cast<Id*>(c.out_indices);
  hop.state = scratch.state;
  hop.scans.edges = scratch.scan;
  hop.table = scratch.table;
  hop.nodes = static_cast<Id*>(c.out_src_nodes);
  const int64_t words = scratch.cleared_bytes / static_cast<int64_t>(sizeof(uint64_t));
  launch(clear_batch, blocks_for(words), c.stream, BatchMemory{scratch.state, words, nullptr, nullptr, 0, nullptr});
  launch(add_destinations<Id>, blocks_for(c.num_dst), c.stream, hop, static_cast<const Id*>(c.dst_nodes), c.num_dst,
         c.num_edges);
  const int64_t most = c.num_dst > c.num_edges ? c.num_dst : c.num_edges;
  launch(add_neighbors<Id>, blocks_for(most), c.stream, hop, c.num_dst, static_cast<const Id*>(c.neighbors),
         c.num_edges);
  launch(assign_new<Id>, tile_blocks(c.num_edges), c.stream, hop);
  launch(relabel<Id>, blocks_for(c.num_edges), c.stream, hop);
  launch(report_compact<Id>, 1, c.stream, hop, c.out_report);
}

}  // namespace
}  // namespace fs

extern "C" {

int64_t fs_cuda_compact_workspace(int32_t id_type, int64_t num_dst, int64_t num_edges) {
  return id_type == FS_INT32 ? fs::carve_compact<int32_t>(num_dst, num_edges, nullptr).bytes
                             : fs::carve_compact<int64_t>(num_dst, num_edges, nullptr).bytes;
}

FsStatus fs_cuda_compact(int32_t id_type, const void* dst_nodes, int64_t num_dst, const void* neighbors,
                         int64_t num_edges, void* out_src_nodes, void* out_indices, int64_t* out_report,
                         void* workspace, void* stream) {
  const FsStatus status = fs::check_id_type("compact", id_type);
  if (status != FS_OK) return status;
  const fs::Compact compact = {dst_nodes,  num_dst,       neighbors,
                               num_edges,  out_src_nodes, out_indices,
                               out_report, workspace,     static_cast<cudaStream_t>(stream)};
  if (id_type == FS_INT32) {
    fs::compact<int32_t>(compact);
  } else {
    fs::compact<int64_t>(compact);
  }
  return fs::launch_status("compact");
}

}  // extern "C"
