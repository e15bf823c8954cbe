// Ranks in one process that train one tensor each. All-reduces are plain sums.
#pragma once

#include <gtest/gtest.h>

#include "compressors/compressor_test_support.h"
#include "compressors/power_sgd.h"
#include "training/reducer/error_feedback.h"

namespace unisono::test {

class Trainers {
 public:
  Trainers(size_t ranks, const ArcOptions& arc, const FeedbackOptions& feedback, uint32_t number, uint64_t rows,
           uint64_t columns)
      : Trainers(ranks, feedback, [&] {
          return *make_arc_top_k(arc, 0, {{.number = number, .shape = {rows, columns}}});
        }) {}
  Trainers(size_t ranks, const PowerOptions& power, const FeedbackOptions& feedback, uint64_t rows, uint64_t columns)
      : Trainers(ranks, feedback, [&] {
          return *make_power_sgd(power, 0, {{.number = 0, .shape = {rows, columns}}});
        }) {}
  template <typename Make>
  Trainers(size_t ranks, const FeedbackOptions& feedback, Make make_compressor) : stores(ranks), gradients(ranks) {
    for (size_t r = 0; r < ranks; ++r) {
      auto made = ErrorFeedback::make(feedback, make_compressor(), {"w"}, stores[r]);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      ranks_.push_back(std::move(*made));
    }
  }

  // Begins a step on all ranks and runs the first all-reduce.
  void begin(uint64_t step, bool whole = false) {
    buffers_.clear();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      float* const values[] = {gradients[r].data()};
      buffers_.push_back(ranks_[r]->begin(step, values, whole ? Sending::whole : Sending::compressed));
    }
    average(buffers_);
  }
  // Runs next() and the second all-reduce. Returns false if all ranks report a value that is not finite.
  bool next() {
    return all([&](size_t r) {
             auto buffer = ranks_[r]->next();
             if (buffer.ok()) buffers_[r] = *buffer;
             return buffer.ok();
           }) &&
           (average(buffers_), true);
  }
  bool finish() {
    return all([&](size_t r) { return ranks_[r]->finish().ok(); });
  }
  const Values& step(uint64_t number, bool whole = false) {
    begin(number, whole);
    EXPECT_TRUE(next());
    EXPECT_TRUE(finish());
    for (const auto& out : gradients) EXPECT_EQ(out, gradients[0]);
    return gradients[0];
  }
  ErrorFeedback& operator[](size_t r) { return *ranks_[r]; }
  size_t size() const { return ranks_.size(); }
  FeedbackState& state(size_t r) { return ranks_[r]->settle(), stores[r].at("w"); }
  void settle() {
    for (auto& rank : ranks_) rank->settle();
  }

  std::vector<FeedbackStore> stores;
  std::vector<Values> gradients;

 private:
  template <typename Does>
  bool all(Does does) {
    size_t yes = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) yes += does(r);
    EXPECT_TRUE(yes == 0 || yes == ranks_.size());
    return yes > 0;
  }

  std::vector<std::unique_ptr<ErrorFeedback>> ranks_;
  std::vector<std::span<float>> buffers_;
};

}  // namespace unisono::test
