// Random words of many slots at hand: the first blocks of all streams are made side by side, later ones one by one.
#ifndef FS_CPU_VECTOR_SLOT_WORDS_H_
#define FS_CPU_VECTOR_SLOT_WORDS_H_

#include "philox_lanes.h"
#include "philox_nodes.h"
#include "walker_tasks.h"

namespace fs {
namespace {

// words [groups of kGroupNodes slots][kWords][kGroupNodes]; word w of a slot lies in row w mod kWords.
template <int kWords>
class SlotWords {
  static_assert(kWords % 4 == 0 && (kWords & (kWords - 1)) == 0, "whole blocks, a power of two");

 public:
  SlotWords(StageKey key, uint32_t* words) : key_(key), words_(words) {}

  // The first kWords words of the slots first .. first + count - 1 (first: a multiple of kGroupNodes), whose streams
  // are stream + first and those behind.
  void start(int64_t first, int64_t count, uint64_t stream) {
    uint64_t ids[kGroupNodes];
    for (int64_t group = first; group < first + count; group += kGroupNodes) {
      for (int l = 0; l < kGroupNodes; ++l) ids[l] = stream + static_cast<uint64_t>(group + l);
      stream_blocks(key_, ids, 1, 0, kWords / 4, words_ + group * kWords);
    }
  }

  // A slot's stream from word `used` on, as draw_below takes it.
  class Stream {
   public:
    FS_INLINE Stream(const SlotWords& all, int64_t slot, uint64_t stream, uint64_t* used)
        : all_(all),
          own_(all.words_ + slot / kGroupNodes * (kGroupNodes * kWords) + slot % kGroupNodes),
          stream_(stream),
          used_(*used) {}

    FS_INLINE uint32_t next() {
      const uint64_t word = used_++;
      if (__builtin_expect(word >= kWords && word % 4 == 0, 0)) make_block(word / 4);
      return own_[word % kWords * kGroupNodes];
    }

   private:
    __attribute__((noinline)) void make_block(uint64_t block) {
      uint32_t counter[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                             static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)};
      philox_block(all_.key_, counter);
      for (uint64_t w = 0; w < 4; ++w) own_[(block * 4 + w) % kWords * kGroupNodes] = counter[w];
    }

    const SlotWords& all_;
    uint32_t* own_;
    uint64_t stream_;
    uint64_t& used_;
  };

 private:
  StageKey key_;
  uint32_t* words_;
};

// The words of one stream, kLanes blocks at a time.
class StreamWords {
 public:
  StreamWords(StageKey key, uint64_t stream) : key_(key), stream_(stream) {}

  FS_INLINE uint32_t next() {
    if (__builtin_expect(used_ == 4 * kLanes, 0)) {
      philox_lanes(key_, stream_, block_, words_);
      block_ += kLanes;
      used_ = 0;
    }
    const int word = used_++;
    return words_[word % 4][word / 4];
  }

 private:
  StageKey key_;
  uint64_t stream_;
  uint64_t block_ = 0;
  int used_ = 4 * kLanes;
  alignas(64) uint32_t words_[4][kLanes];
};

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_SLOT_WORDS_H_
