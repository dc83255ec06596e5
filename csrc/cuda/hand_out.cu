// The last kernel of a recorded batch: its arrays, which every replay writes again, go to memory that outlives the next
// replay, each as long as it has become; the state words go to the host in the same launch.
#include "hop_chain.cuh"

namespace fs {
namespace {

struct HandedArray {
  const char* from;
  int64_t count_word;  // of the state: its entries
  int64_t more;        // entries beside those
  int64_t most;        // entries that there is room for
  int64_t width;       // bytes of one
};

struct HandedBatch {
  const uint64_t* state;
  int64_t* words;  // [num_words] on the host
  int64_t num_words;
  int32_t num_arrays;
  HandedArray arrays[1 + 3 * FS_CUDA_MAX_HOPS];
};
static_assert(sizeof(HandedBatch) <= 4096, "what a kernel takes as parameters");

// Bytes of the array; of a batch that is refused, whose counts say nothing, at most its room.
FS_DEVICE int64_t handed_bytes(const HandedArray& array, const uint64_t* state) {
  const uint64_t entries = state[array.count_word] + static_cast<uint64_t>(array.more);
  return array.width * (entries < static_cast<uint64_t>(array.most) ? static_cast<int64_t>(entries) : array.most);
}

template <typename Word>
FS_DEVICE void copy_range(const char* from, char* to, int64_t begin, int64_t end) {
  for (int64_t i = begin + thread_number(); i < end; i += num_threads()) {
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  }
}

FS_KERNEL void hand_out(HandedBatch batch) {
  for (int64_t i = thread_number(); i < batch.num_words; i += num_threads()) {
    batch.words[i] = static_cast<int64_t>(batch.state[i]);
  }
  const int64_t moved_by = static_cast<int64_t>(batch.state[kMovedBy]);
  for (int number = 0; number < batch.num_arrays; ++number) {
    const HandedArray& array = batch.arrays[number];
    const int64_t bytes = handed_bytes(array, batch.state), lines = bytes / static_cast<int64_t>(sizeof(int4));
    char* to = const_cast<char*>(array.from) + moved_by;
    copy_range<int4>(array.from, to, 0, lines);
    copy_range<int32_t>(array.from, to, lines * 4, bytes / 4);
  }
}

HandedBatch handed_batch(const FsCudaBatch& batch, const FsSampleSpec& spec, const FsCudaSampleSizes& sizes,
                         int64_t id_bytes, int64_t* words) {
  HandedBatch handed = {static_cast<const uint64_t*>(batch.workspace), words, sizes.state_words, 0, {}};
  const auto add = [&](const void* from, HandedArray array) {
    if (from == nullptr) return;
    array.from = static_cast<const char*>(from);
    handed.arrays[handed.num_arrays++] = array;
  };
  add(batch.nodes, {nullptr, num_rows_word(spec.num_hops), 0, sizes.max_nodes, id_bytes});
  for (int hop = 0; hop < spec.num_hops; ++hop) {
    const HandedArray edges = {nullptr, num_edges_word(hop), 0, sizes.max_edges[hop], id_bytes};
    add(batch.indptr[hop], {nullptr, num_rows_word(hop), 1, sizes.max_rows[hop] + 1, sizeof(int64_t)});
    add(batch.indices[hop], edges);
    add(batch.edge_ids[hop], {nullptr, edges.count_word, 0, edges.most, sizeof(int64_t)});
  }
  return handed;
}

int64_t most_bytes(const HandedBatch& batch) {
  int64_t bytes = 0;
  for (int number = 0; number < batch.num_arrays; ++number) {
    bytes = std::max(bytes, batch.arrays[number].most * batch.arrays[number].width);
  }
  return bytes;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_cuda_hand_out(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSampleSizes* sizes,
                                     const FsCudaBatch* batch, int64_t* words, void* stream) {
  const FsStatus status = fs::check_cuda_request("sample_mfg", *graph, *spec);
  if (status != FS_OK) return status;
  const int64_t id_bytes = graph->id_type == FS_INT32 ? 4 : 8;
  const fs::HandedBatch handed = fs::handed_batch(*batch, *spec, *sizes, id_bytes, words);
  const int64_t lines = fs::most_bytes(handed) / static_cast<int64_t>(sizeof(int4));
  fs::launch(fs::hand_out, fs::blocks_for(lines), static_cast<cudaStream_t>(stream), handed);
  return fs::launch_status("sample_mfg");
}
