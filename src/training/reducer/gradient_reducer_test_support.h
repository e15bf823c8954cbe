// Ranks that reduce the gradients of a small model over real groups, and a ledger that checks that no value is lost.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "compressors/compressor_test_support.h"
#include "training/reducer/feedback_checkpoint.h"
#include "unisono/training.h"

namespace unisono::test {

inline const std::vector<Parameter> model{{"a", {40, 50}}, {"b", {33}}, {"c", {31, 5, 13}}, {"d", {0, 5}}, {"e", {64, 32}}};

inline Compression arc(const std::string& options = "") {
  return *Compression::parse("arc:start=0,auto_off=off,min_elements=0" + (options.empty() ? "" : "," + options));
}

inline Compression power_sgd(const std::string& options = "") {
  return *Compression::parse("power_sgd:rank=2,start=0,auto_off=off,min_elements=0" + (options.empty() ? "" : "," + options));
}

// A gradient reducer on one rank, with random gradients for each step.
class ReducerRank {
 public:
  explicit ReducerRank(Group& group) : group_(group) {
    for (const auto& parameter : model) values.emplace_back(matrix_of(parameter.shape).elements());
  }
  Status make(const Compression& compression, const std::vector<Parameter>& parameters = model) {
    auto made = GradientReducer::make(group_, parameters, compression);
    if (made.ok()) reducer = *std::move(made);
    return made.status();
  }
  void fill(uint64_t step) {
    for (uint32_t i = 0; i < model.size(); ++i) values[i] = normals(7, step, 100 * group_.rank() + i, values[i].size());
  }
  Status reduce(std::initializer_list<uint32_t> bucket) {
    std::vector<Gradient> gradients;
    for (const auto i : bucket) gradients.push_back({.name = model[i].name, .values = values[i].data()});
    return reducer->reduce(gradients);
  }
  // Runs a step with two buckets: tensors 4 and 3, then 2, 1 and 0.
  Result<CompressionReport> step() {
    EXPECT_TRUE(reduce({4, 3}).ok());
    EXPECT_TRUE(reduce({2, 1, 0}).ok());
    return reducer->finish();
  }
  Result<CompressionReport> step(uint64_t number) { return fill(number), step(); }

  std::vector<Values> values;
  std::optional<GradientReducer> reducer;

 private:
  Group& group_;
};

inline FeedbackStore kept_by(ReducerRank& rank) {
  auto checkpoint = decode_checkpoint(rank.reducer->save());
  EXPECT_TRUE(checkpoint.ok());
  return checkpoint->store;
}

// Sums over all ranks: the gradients given must equal the averages delivered plus the residuals.
class Ledger {
 public:
  Ledger() {
    for (const auto& parameter : model)
      given_.emplace_back(matrix_of(parameter.shape).elements()), delivered_.emplace_back(given_.back().size()),
          left_.emplace_back(given_.back().size());
  }
  void give(const ReducerRank& rank) { give(rank.values); }
  void give(const std::vector<Values>& gradients) { add(given_, gradients, 1); }
  void deliver(const ReducerRank& rank) { add(delivered_, rank.values, 1); }
  void keep(ReducerRank& rank) {
    auto store = kept_by(rank);
    std::vector<Values> residuals(model.size());
    for (size_t i = 0; i < model.size(); ++i) {
      residuals[i] = store[model[i].name].residual;
      residuals[i].resize(left_[i].size());
    }
    keep(residuals);
  }
  void keep(const std::vector<Values>& residuals) { add(left_, residuals, 1); }
  void expect_balanced(double tolerance = 1e-5) {
    double off = 0, all = 0;
    for (size_t i = 0; i < given_.size(); ++i) {
      for (size_t k = 0; k < given_[i].size(); ++k) {
        off += std::pow(given_[i][k] - delivered_[i][k] - left_[i][k], 2);
        all += std::pow(given_[i][k], 2);
      }
    }
    EXPECT_LT(std::sqrt(off / all), tolerance);
  }

 private:
  void add(std::vector<std::vector<double>>& to, const std::vector<Values>& values, double factor) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < to.size(); ++i) {
      for (size_t k = 0; k < to[i].size(); ++k) to[i][k] += factor * values[i][k];
    }
  }
  std::mutex mutex_;
  std::vector<std::vector<double>> given_, delivered_, left_;
};

}  // namespace unisono::test
