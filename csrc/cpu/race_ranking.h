// The winners of an exponential race (core/exponential_race.h) over columns with weights.
//
// Few candidates need a logarithm, or all of their random word: E >= 1 - U already rules out whoever cannot beat the
// `wanted` best so far.
#ifndef FS_CPU_RACE_RANKING_H_
#define FS_CPU_RACE_RANKING_H_

#include <stdint.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "exponential_race.h"
#include "vector/vector_kernels.h"

namespace fs {

// Candidates i < count with weights > 0 and their original ids, uint32_t where all are that short.
template <typename OrigId>
struct RaceField {
  const double* weights;
  const OrigId* orig_ids;
  int64_t count;
};
template <typename OrigId>
RaceField(const double*, const OrigId*, int64_t) -> RaceField<OrigId>;

class RaceRanking {
 public:
  // Numbers of the first `wanted` candidates to arrive, in order of (time, original id); fewer if there are fewer.
  // `kind` is a small number that races of about the same candidates share: the step of a sample.
  template <typename OrigId>
  const std::vector<int64_t>& run(StageKey key, uint64_t sample_id, const RaceField<OrigId>& field, int64_t wanted,
                                  int64_t kind) {
    wanted_ = static_cast<size_t>(wanted);
    ranked_.clear();
    if (wanted == 0) return ranked_;
    // Races of a kind end at about the same time: a limit a little behind that leaves few candidates. Where it leaves
    // too few the race is run again with a later one.
    if (ends_.size() <= static_cast<size_t>(kind)) ends_.resize(static_cast<size_t>(kind) + 1, kNoLimit);
    double& end = ends_[static_cast<size_t>(kind)];
    double limit = field.count > wanted ? kSpareTime * end : kNoLimit;
    race(key, sample_id, field, limit);
    for (int attempt = 1; limit < kNoLimit && ahead_.size() < wanted_; ++attempt) {
      limit = attempt < kLimited ? kLaterTime * limit : kNoLimit;
      race(key, sample_id, field, limit);
    }
    std::sort(ahead_.begin(), ahead_.end());
    for (size_t i = 0; i < std::min(wanted_, ahead_.size()); ++i) ranked_.push_back(ahead_[i].number);
    if (ahead_.size() >= wanted_) {
      const double time = ahead_[wanted_ - 1].time;
      end = end == kNoLimit ? time : end + kNewShare * (time - end);
    }
    return ranked_;
  }

  size_t bytes() const {
    return ahead_.capacity() * sizeof(Arrival) + (left_.capacity() + ranked_.capacity()) * sizeof(int64_t) +
           ends_.capacity() * sizeof(double);
  }

 private:
  static constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  static constexpr int64_t kChunk = 1024;
  static constexpr size_t kTimed = 64;
  static constexpr size_t kSpare = 32;
  static constexpr double kSpareTime = 1.4, kLaterTime = 2;
  static constexpr double kNewShare = 0.2;
  static constexpr int kLimited = 3;                            // races with a limit, before one without
  static constexpr double kRoundingUp = 1 + 1.0 / (1ll << 50);  // above what two products lose

  struct Arrival {
    double time;
    uint64_t orig_id;
    int64_t number;
    bool operator<(const Arrival& other) const {
      return time < other.time || (time == other.time && orig_id < other.orig_id);
    }
  };

  static int64_t filter(StageKey key, const uint32_t* orig_ids, const double* weights, int64_t count,
                        uint64_t sample_id, double bound, int32_t* passed) {
    return vector_kernels().race_filter_32(key, orig_ids, weights, count, sample_id, bound, passed);
  }
  static int64_t filter(StageKey key, const uint64_t* orig_ids, const double* weights, int64_t count,
                        uint64_t sample_id, double bound, int32_t* passed) {
    return vector_kernels().race_filter_64(key, orig_ids, weights, count, sample_id, bound, passed);
  }

  // The candidates that arrive by the limit, or the first of them if they are many.
  template <typename OrigId>
  void race(StageKey key, uint64_t sample_id, const RaceField<OrigId>& field, double limit) {
    int32_t passed[kChunk];
    limit_ = limit;
    ahead_.clear();
    left_.clear();
    for (int64_t begin = 0; begin < field.count; begin += kChunk) {
      const int64_t count = std::min(kChunk, field.count - begin);
      const int64_t num_passed =
          filter(key, field.orig_ids + begin, field.weights + begin, count, sample_id, limit_ * kRoundingUp, passed);
      for (int64_t i = 0; i < num_passed; ++i) left_.push_back(begin + passed[i]);
      if (left_.size() >= kTimed) time_those_left(key, sample_id, field);
    }
    time_those_left(key, sample_id, field);
  }

  // Side by side: a logarithm is a long chain of products.
  template <typename OrigId>
  void time_those_left(StageKey key, uint64_t sample_id, const RaceField<OrigId>& field) {
    uint64_t orig_ids[kTimed], words[kTimed];
    double times[kTimed];
    for (size_t begin = 0; begin < left_.size(); begin += kTimed) {
      const size_t count = std::min(kTimed, left_.size() - begin);
      const int64_t* numbers = left_.data() + begin;
      for (size_t i = 0; i < count; ++i) orig_ids[i] = field.orig_ids[numbers[i]];
      vector_kernels().race_words(key, orig_ids, static_cast<int64_t>(count), sample_id, words);
      for (size_t i = 0; i < count; ++i) times[i] = race_time(race_log(words[i]), field.weights[numbers[i]]);
      for (size_t i = 0; i < count; ++i) {
        if (field.weights[numbers[i]] > 0 && times[i] <= limit_) enter({times[i], orig_ids[i], numbers[i]});
      }
    }
    left_.clear();
  }

  void enter(const Arrival& arrival) {
    ahead_.push_back(arrival);
    if (ahead_.size() >= 2 * wanted_ + kSpare) cut();
  }

  // Keeps the best `wanted`.
  __attribute__((noinline)) void cut() {
    const auto last = ahead_.begin() + static_cast<int64_t>(wanted_) - 1;
    std::nth_element(ahead_.begin(), last, ahead_.end());
    ahead_.resize(wanted_);
    limit_ = ahead_.back().time;
  }

  std::vector<int64_t> left_;  // by the filter, not timed yet
  std::vector<Arrival> ahead_;
  std::vector<int64_t> ranked_;
  double limit_ = 0;          // nobody later can be among the wanted
  std::vector<double> ends_;  // by kind: when its races end, an average in which the later ones count more
  size_t wanted_ = 0;
};

}  // namespace fs

#endif  // FS_CPU_RACE_RANKING_H_
