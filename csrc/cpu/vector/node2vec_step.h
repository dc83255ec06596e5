// One step of node2vec for a block of walks, in lock step: the picks of core/node2vec.h, bit for bit.
//
// A step waits for memory three times: for the record of the walk's node, a neighbour, and a bucket of the row that the
// walk came from. Walks are taken in chunks, and each stage is a loop of its own over the chunk that asks for what the
// next stage, or the next step, reads. Whether a coin accepts, rejects or leaves it open is as good as random, so
// lists are written without branches. The few walks whose pick was rejected are gathered over all chunks and tried
// again together, so that there are always many to wait for.
#ifndef FS_CPU_VECTOR_NODE2VEC_STEP_H_
#define FS_CPU_VECTOR_NODE2VEC_STEP_H_

#include "bucket_lanes.h"
#include "node2vec_task.h"
#include "philox_nodes.h"

namespace fs {
namespace {

template <typename Id, bool kWeighted>
class Node2VecStep {
 public:
  explicit Node2VecStep(const FsStepTask& task) : task_(task), step_(task), rows_(step_.rows), law_(step_.law) {}

  // Places begin .. end - 1 of the task's list of samples (or the samples themselves), of one pick each.
  void run(int64_t begin, int64_t end) const {
    int32_t rejected[kSpan];
    for (int64_t first = begin; first < end; first += kSpan) {
      const int64_t last = first + kSpan < end ? first + kSpan : end;
      int64_t count = 0;
      for (int64_t at = first; at < last; at += kWalks) {
        if (task_.step_index == 0) ask_for_records(at + kWalks, last);
        Chunk chunk;
        chunk.count = static_cast<int>(at + kWalks < last ? kWalks : last - at);
        for (int i = 0; i < chunk.count; ++i) chunk.samples[i] = static_cast<int32_t>(at - first) + i;
        count += try_once(chunk, first, 0, rejected + count);
      }
      for (int64_t trial = 1; count > 0; ++trial) count = try_again(first, trial, count, rejected);
    }
  }

 private:
  static constexpr int kWalks = 128;                     // of a chunk
  static constexpr int64_t kSpan = 4096;                 // samples whose rejected walks are gathered
  static constexpr int64_t kWords = kWeighted ? 3 : 2;   // of a trial: neighbour, alias, coin
  static constexpr int32_t kBlocks = kWeighted ? 2 : 1;  // that hold them

  struct Chunk {
    int count;                 // walks
    int32_t samples[kWalks];   // counted from the first of the span
    int64_t previous[kWalks];  // where the walk came from
    uint64_t ids[kWalks];      // of samples
    uint32_t words[kWalks * 4 * kBlocks];
    int live_count, open_count;
    uint8_t live[kWalks];  // walks that draw a neighbour
    uint8_t open[kWalks];  // walks whose row must be asked
    int64_t places[kWalks];
    Id picks[kWalks];
    HashedNode from[kWalks];  // record of `previous`, by place in `open`
  };
  static_assert(kWalks <= 256 && kWalks % kGroupNodes == 0, "walks are numbered by a byte and drawn in groups");

  FS_INLINE int64_t sample_at(int64_t place) const { return task_.slots == nullptr ? place : task_.slots[place]; }

  // Of roots; those of later transits are asked for when they are picked.
  FS_INLINE void ask_for_records(int64_t begin, int64_t end) const {
    if (begin + kWalks < end) end = begin + kWalks;
    for (int64_t place = begin; place < end; ++place) {
      const int64_t transit = task_.transits[sample_at(place) * task_.transit_stride];
      __builtin_prefetch(rows_.nodes + (transit < 0 ? 0 : transit));
    }
  }

  // One more trial of the rejected walks; returns how many of them are rejected again.
  FS_INLINE int64_t try_again(int64_t first, int64_t trial, int64_t count, int32_t* rejected) const {
    int64_t again = 0;  // written before what is read next
    for (int64_t at = 0; at < count; at += kWalks) {
      Chunk chunk;
      chunk.count = static_cast<int>(at + kWalks < count ? kWalks : count - at);
      for (int i = 0; i < chunk.count; ++i) chunk.samples[i] = rejected[at + i];
      again += try_once(chunk, first, trial, rejected + again);
    }
    return again;
  }

  // Trial number `trial` of a chunk's walks. Returns how many picks were rejected, and whose.
  FS_INLINE int64_t try_once(Chunk& chunk, int64_t first, int64_t trial, int32_t* rejected) const {
    draw_words(chunk, first, trial);
    draw_places(chunk, first, static_cast<int>(trial * kWords % 4));
    const int64_t closed = toss_coins(chunk, first, static_cast<int>(trial * kWords % 4), rejected);
    ask_for_buckets(chunk);
    return closed + query(chunk, static_cast<int>(trial * kWords % 4), rejected + closed);
  }

  FS_INLINE void draw_words(Chunk& chunk, int64_t first, int64_t trial) const {
    for (int i = 0; i < chunk.count; ++i) {
      chunk.ids[i] = static_cast<uint64_t>(task_.sample_ids[sample_at(first + chunk.samples[i])]);
    }
    const int groups = (chunk.count + kGroupNodes - 1) / kGroupNodes;
    for (int i = chunk.count; i < groups * kGroupNodes; ++i) chunk.ids[i] = 0;
    stream_blocks(step_.key, chunk.ids, groups, static_cast<uint32_t>(trial * kWords / 4), kBlocks, chunk.words);
  }

  FS_INLINE static uint32_t word(const Chunk& chunk, int walk, int number) {
    return chunk.words[(walk / kGroupNodes * 4 * kBlocks + number) * kGroupNodes + walk % kGroupNodes];
  }

  // Draws a place in each walk's row and asks for it.
  FS_INLINE void draw_places(Chunk& chunk, int64_t first, int word_number) const {
    chunk.live_count = 0;
    for (int i = 0; i < chunk.count; ++i) {
      const int64_t sample = sample_at(first + chunk.samples[i]);
      const int64_t transit = task_.transits[sample * task_.transit_stride];
      const HashedNode row = transit < 0 ? HashedNode{} : rows_.nodes[transit];
      const uint64_t product = static_cast<uint64_t>(word(chunk, i, word_number)) * row.degree;
      const uint32_t low = static_cast<uint32_t>(product);
      if (__builtin_expect(low < row.degree && low < (0u - row.degree) % row.degree, 0)) {
        task_.out[sample * task_.out_stride] = step_.pick(sample, 0, transit, 0);  // the word is refused: others count
        continue;
      }
      const int64_t place = row.begin() + static_cast<int64_t>(product >> 32);
      chunk.places[i] = place;
      chunk.live[chunk.live_count] = static_cast<uint8_t>(i);
      chunk.live_count += row.degree > 0;
      if (kWeighted) {
        __builtin_prefetch(step_.slots.first(place));
        if (step_.slots.kCrossesLines) __builtin_prefetch(step_.slots.last(place));
      } else {
        __builtin_prefetch(rows_.indices + place);
      }
      if (__builtin_expect(row.degree == 0, 0)) task_.out[sample * task_.out_stride] = FS_NULL_NODE;
    }
  }

  // Reads the neighbours. Writes them all; lists those that the coin rejects, and those that it leaves open.
  FS_INLINE int64_t toss_coins(Chunk& chunk, int64_t first, int word_number, int32_t* rejected) const {
    const uint64_t least = law_.least(), most = law_.most();
    int64_t num_rejected = 0;
    chunk.open_count = 0;
    for (int l = 0; l < chunk.live_count; ++l) {
      const int i = chunk.live[l];
      const int64_t sample = sample_at(first + chunk.samples[i]), previous = step_.previous_of(sample, 0);
      const uint64_t coin = word(chunk, i, word_number + static_cast<int>(kWords) - 1);
      int64_t u;
      bool is_null = false;
      if (kWeighted) {
        u = step_.slots.pick(chunk.places[i], word(chunk, i, word_number + 1));
        is_null = u < 0;
      } else {
        u = rows_.indices[chunk.places[i]];
      }
      const bool is_back = u == previous;
      const uint64_t accepted = is_back ? law_.back : least, open = is_back ? law_.back : most;
      task_.out[sample * task_.out_stride] = u;
      __builtin_prefetch(rows_.nodes + u);
      chunk.picks[i] = static_cast<Id>(u);
      chunk.previous[i] = previous;
      rejected[num_rejected] = chunk.samples[i];
      num_rejected += (coin >= open) & !is_null;
      chunk.open[chunk.open_count] = static_cast<uint8_t>(i);
      chunk.open_count += (coin >= accepted) & (coin < open) & !is_null;
    }
    return num_rejected;
  }

  FS_INLINE void ask_for_buckets(Chunk& chunk) const {
    for (int o = 0; o < chunk.open_count; ++o) {
      const int i = chunk.open[o];
      const int64_t previous = chunk.previous[i];
      chunk.from[o] = previous < 0 ? HashedNode{} : rows_.nodes[previous];
      __builtin_prefetch(rows_.first_read(chunk.from[o], chunk.picks[i]));
    }
  }

  FS_INLINE int64_t query(const Chunk& chunk, int word_number, int32_t* rejected) const {
    int64_t num_rejected = 0;
    for (int o = 0; o < chunk.open_count; ++o) {
      const int i = chunk.open[o];
      const uint64_t coin = word(chunk, i, word_number + static_cast<int>(kWords) - 1);
      const bool is_near = rows_.template has_by<WideLanes>(chunk.from[o], chunk.picks[i]);
      rejected[num_rejected] = chunk.samples[i];
      num_rejected += coin >= (is_near ? law_.near : law_.far);
    }
    return num_rejected;
  }

  const FsStepTask& task_;
  const Node2VecTask<Id, kWeighted> step_;
  const HashedRows<Id> rows_;
  const Node2VecLaw law_;
};

template <typename Id, bool kWeighted>
struct Node2VecSteps {
  static void run(const FsStepTask& task, int64_t begin, int64_t end) {
    Node2VecStep<Id, kWeighted>(task).run(begin, end);
  }
};

void node2vec_step(const FsStepTask& task, int64_t begin, int64_t end) {
  with_node2vec_types<Node2VecSteps>(task, begin, end);
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_NODE2VEC_STEP_H_
