// Embedding training under stress: draws, gradients and updates, the same bytes whatever the threads.
#ifndef FS_TESTS_STRESS_EMBEDDING_H_
#define FS_TESTS_STRESS_EMBEDDING_H_

#include "fastsample_embedding.h"
#include "stress_basics.h"

namespace stress {

// Pairs over drawn rows; constant once drawn, so that callers share it.
template <typename T>
class EmbeddingProblem {
 public:
  explicit EmbeddingProblem(uint64_t seed) : seed_(seed), generator_(seed) {
    rows_ = draw_numbers<T>(kRows * kWidth, generator_);
    for (int64_t i = 0; i < kPairs; ++i) numbers_.push_back(static_cast<int64_t>(generator_() % kRows));
    for (int64_t i = 0; i < kPairs; ++i) centers_.push_back(static_cast<int32_t>(generator_() % 97));  // hubs
    for (int64_t i = 0; i < kPairs * kContexts; ++i) contexts_.push_back(static_cast<int32_t>(generator_() % kRows));
    const std::vector<float> weights(static_cast<size_t>(kRows), 1.5f);
    const int64_t offsets[] = {0, kRows};
    const FsEdgeWeights table = {offsets, weights.data(), 1, kRows, FS_FLOAT32, 1};
    alias_.resize(static_cast<size_t>(kRows) * 2);
    int64_t num_positive = 0;
    succeed(fs_alias_tables(&table, alias_.data(), &num_positive), "alias_tables");
  }

  void run(int32_t num_threads, Written& written) const {
    std::vector<int64_t> drawn(static_cast<size_t>(kPairs * 2));
    const FsAliasDraws draws = {alias_.data(), numbers_.data(), numbers_.data(), kRows, kPairs, 2, seed_, 7,
                                num_threads};
    succeed(fs_alias_draws(&draws, drawn.data()), "alias_draws");
    written.add("alias_draws", drawn);

    std::vector<T> first(static_cast<size_t>(kPairs * kWidth));
    const FsRandomRows random = {numbers_.data(), kPairs, kWidth, seed_, 0.5, type_code<T>(), num_threads};
    succeed(fs_random_rows(&random, first.data()), "random_rows");
    written.add("random_rows", first);

    std::vector<T> grads(rows_.size());
    double loss = 0;
    FsSkipGram pairs = {rows_.data(), centers_.data(), contexts_.data(), kRows, kWidth, kPairs, kContexts,
                        0.25,         type_code<T>(),  num_threads};
    succeed(fs_skipgram_gradients(&pairs, grads.data(), &loss), "skipgram_gradients");
    written.add("skipgram_gradients", grads);
    written.add("skipgram_gradients", &loss, 1);

    update(grads, num_threads, written);
    const int32_t outside = static_cast<int32_t>(kRows);
    pairs.centers = &outside;
    pairs.num_pairs = 1;
    refused(fs_skipgram_gradients(&pairs, grads.data(), &loss), "skipgram_gradients");
  }

 private:
  static constexpr int64_t kRows = 900, kWidth = 71, kPairs = 2000, kContexts = 3;

  void update(const std::vector<T>& grads, int32_t num_threads, Written& written) const {
    std::vector<T> table = rows_, first(rows_.size()), second(rows_.size());
    std::vector<int64_t> rows, places;
    std::vector<int32_t> slots;
    for (int64_t row = kRows - 1; row >= 0; row -= 2) rows.push_back(row);
    for (int64_t i = 0; i < kRows; ++i) {
      slots.push_back(static_cast<int32_t>(i % static_cast<int64_t>(rows.size())));
      places.push_back(i % 3 == 0 ? -1 - i : i);
    }
    FsRowUpdate how = {table.data(),
                       first.data(),
                       second.data(),
                       rows.data(),
                       slots.data(),
                       places.data(),
                       grads.data(),
                       rows_.data(),
                       kRows,
                       kWidth,
                       static_cast<int64_t>(rows.size()),
                       kRows,
                       kRows,
                       kRows,
                       0.01,
                       0.1,
                       0.001,
                       1e-8,
                       type_code<T>(),
                       num_threads};
    succeed(fs_update_rows(&how), "update_rows");
    how.first_moments = how.second_moments = nullptr;
    succeed(fs_update_rows(&how), "update_rows");
    written.add("update_rows", table);
    written.add("update_rows", first);
    written.add("update_rows", second);
    how.num_rows = 1;
    refused(fs_update_rows(&how), "update_rows");
  }

  uint64_t seed_;
  Generator generator_;
  std::vector<T> rows_;
  std::vector<int64_t> numbers_;
  std::vector<int32_t> centers_, contexts_;
  std::vector<uint32_t> alias_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_EMBEDDING_H_
