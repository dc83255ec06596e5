// The winners of an exponential race (core/exponential_race.h) over columns with weights.
//
// Few candidates need a logarithm: E >= 1 - U already rules out whoever cannot beat the `wanted` best so far.
#ifndef FS_CPU_RACE_RANKING_H_
#define FS_CPU_RACE_RANKING_H_

#include <stdint.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "exponential_race.h"
#include "vector/vector_kernels.h"

namespace fs {

// Candidates i < count with weights > 0 and their original ids.
struct RaceField {
  const double* weights;
  const uint64_t* orig_ids;
  int64_t count;
};

class RaceRanking {
 public:
  // Numbers of the first `wanted` candidates to arrive, in order of (time, original id); fewer if there are fewer.
  const std::vector<int64_t>& run(StageKey key, uint64_t sample_id, const RaceField& field, int64_t wanted) {
    wanted_ = static_cast<size_t>(wanted);
    limit_ = std::numeric_limits<double>::infinity();
    ahead_.clear();
    uint64_t words[kChunk];
    for (int64_t begin = 0; begin < field.count && wanted > 0; begin += kChunk) {
      const int64_t count = std::min(kChunk, field.count - begin);
      vector_kernels().race_words(key, field.orig_ids + begin, count, sample_id, words);
      for (int64_t i = 0; i < count; ++i) consider(words[i], field, begin + i);
    }
    std::sort(ahead_.begin(), ahead_.end());
    ranked_.clear();
    for (size_t i = 0; i < std::min(wanted_, ahead_.size()); ++i) ranked_.push_back(ahead_[i].number);
    return ranked_;
  }

  size_t bytes() const { return ahead_.capacity() * sizeof(Arrival) + ranked_.capacity() * sizeof(int64_t); }

 private:
  static constexpr int64_t kChunk = 512;
  static constexpr double kRoundingUp = 1 + 1.0 / (1ll << 50);  // above what two products lose

  struct Arrival {
    double time;
    uint64_t orig_id;
    int64_t number;
    bool operator<(const Arrival& other) const {
      return time < other.time || (time == other.time && orig_id < other.orig_id);
    }
  };

  FS_INLINE void consider(uint64_t word, const RaceField& field, int64_t number) {
    const double weight = field.weights[number];
    const double least = static_cast<double>(static_cast<int64_t>(race_log_at_least(word)));
    if (least > limit_ * weight * kRoundingUp || !(weight > 0)) return;
    const double time = race_time(race_log(word), weight);
    if (time > limit_) return;
    ahead_.push_back({time, field.orig_ids[number], number});
    if (ahead_.size() >= 2 * wanted_ + kSpare) cut();
  }

  // Keeps the best `wanted`.
  __attribute__((noinline)) void cut() {
    const auto last = ahead_.begin() + static_cast<int64_t>(wanted_) - 1;
    std::nth_element(ahead_.begin(), last, ahead_.end());
    ahead_.resize(wanted_);
    limit_ = ahead_.back().time;
  }

  static constexpr size_t kSpare = 32;

  std::vector<Arrival> ahead_;
  std::vector<int64_t> ranked_;
  double limit_ = 0;  // nobody later can be among the wanted
  size_t wanted_ = 0;
};

}  // namespace fs

#endif  // FS_CPU_RACE_RANKING_H_
