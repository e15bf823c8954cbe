// One rank's error feedback, for tests that run out of memory. The averages are the values that the rank sends.
#pragma once

#include <array>
#include <memory>
#include <new>
#include <ostream>

#include "compressors/compressor_test_support.h"
#include "compressors/power_sgd.h"
#include "training/reducer/error_feedback.h"

namespace unisono::test {

struct Case {
  const char* name;
  FeedbackOptions feedback;
  ArcOptions arc = arc_options(200'000, 4, 5);
  Sending sending = Sending::compressed;
  bool first = false;     // the allocation fails in the first step, not in a later one
  bool for_good = false;  // all later allocations of the step fail, too
  bool anew = false;      // the tensors move to a new bucket before the step
  bool power = false;     // PowerSGD instead of ARC-Top-K
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

// A group of one rank, so that each average is the value sent. It has one compressed tensor and one dense tensor.
class OneRank {
 public:
  explicit OneRank(const Case& c) : case_(c) { make(); }
  void make() {
    feedback_.reset();
    const std::vector<GroupTensor> tensors{{.number = 0, .shape = {30, 40}}, {.number = 1, .shape = {70}}};
    auto compressor = case_.power ? make_power_sgd({.rule = {.min_elements = 0}, .rank = 2}, 0, tensors)
                                  : make_arc_top_k(case_.arc, 0, tensors);
    auto made = ErrorFeedback::make(case_.feedback, *std::move(compressor), {"w", "v"}, store_);
    feedback_ = std::move(*made);
  }
  void fill(uint64_t step) { gradients_ = {normals(1, step, 0, 1200), normals(1, step, 1, 70)}; }
  // Runs one step with the calls that the reducer's thread makes.
  Status step(uint64_t number, Sending sending) {
    float* const values[] = {gradients_[0].data(), gradients_[1].data()};
    try {
      feedback_->begin(number, values, sending);
      if (auto status = feedback_->choose(); !status.ok()) return feedback_->abandon(), status;
      feedback_->pack();
      const auto lost = feedback_->encode_errors();
      std::fill(lost.begin(), lost.end(), 0.0f);
      if (auto status = feedback_->finish(); !status.ok()) return feedback_->abandon(), status;
      return {};
    } catch (const std::bad_alloc&) {
      feedback_->abandon();
      return {Code::unavailable, "out of memory"};
    }
  }
  FeedbackState& kept(const char* name) { return feedback_->settle(), store_.at(name); }
  const std::array<Values, 2>& gradients() const { return gradients_; }

 private:
  const Case case_;
  FeedbackStore store_;
  std::unique_ptr<ErrorFeedback> feedback_;
  std::array<Values, 2> gradients_;
};

}  // namespace unisono::test
