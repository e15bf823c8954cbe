// The compression methods with which ARC-Top-K is compared. A bucket (a group of parameters) is averaged by first collectives
// and, if the method needs them, second collectives, which use the results of the first. The first start as soon as the
// bucket's gradients are complete. The second start in a call of reduce() or finish() when the first are done, and they run in
// a subgroup of their own. Therefore all ranks start the operations of each subgroup in the same order, no matter when earlier
// operations end.
#include <algorithm>
#include <numeric>
#include <utility>

#include "compressors/power_sgd.h"
#include "lab/compressors/gathered_top_k.h"
#include "research/model/bucket_reducer.h"
#include "training/reducer/compression_rules.h"
#include "training/reducer/error_feedback.h"

namespace language_model {

using unisono::Group;
using unisono::Result;
using unisono::Status;

namespace {

// These calls allow any order of additions, like the library's reducer. All ranks still get the same bits.
constexpr unisono::CallOptions in_any_order{
    .op = unisono::ReduceOp::avg, .order = unisono::Order::any, .codec = unisono::Codec{}};

// The operations of one bucket that have been started and not yet waited for.
class OpenOperations {
 public:
  void average(Group& group, std::span<float> values) {
    if (values.empty()) return;
    works_.push_back(group.all_reduce_async(unisono::Tensor(values), in_any_order));
    payload_ += values.size();
  }
  void gather(Group& group, unisono::ConstTensor mine, unisono::Tensor all, size_t words) {
    if (words == 0) return;
    works_.push_back(group.all_gather_async(mine, all));
    payload_ += words;
  }
  bool done() const {
    return std::all_of(works_.begin(), works_.end(), [](const unisono::Work& work) { return work.done(); });
  }
  // Waits for all operations, even if one of them fails, because the others still use the caller's memory.
  Status wait_all(StepOutcome& outcome) {
    Status failure;
    for (auto& work : std::exchange(works_, {})) {
      const auto report = work.wait();
      if (report.ok()) {
        ++outcome.operations;
        outcome.sent_bytes += report->sent_bytes;
      } else if (failure.ok()) {
        failure = report.status();
      }
    }
    outcome.payload += std::exchange(payload_, 0);
    return failure;
  }

 private:
  std::vector<unisono::Work> works_;
  uint64_t payload_ = 0;
};

// A compression method, applied to one bucket. In each step, it replaces the bucket's gradients by their mean over the ranks.
class Method {
 public:
  virtual ~Method() = default;
  virtual void first(uint64_t step, std::span<float* const> gradients, Group& group, OpenOperations& open_operations) = 0;
  virtual Status second(Group& group, OpenOperations& open_operations) = 0;  // call when all first operations are done
  virtual Status finish() = 0;                                               // call when all second operations are done
};

class TopK final : public Method {
 public:
  explicit TopK(std::unique_ptr<unisono::GatheredTopK> top_k) : top_k_(std::move(top_k)) {}
  void first(uint64_t, std::span<float* const> gradients, Group& group, OpenOperations& open_operations) override {
    const auto own = top_k_->begin(gradients);
    gathered_.resize(own.size() * group.world_size());
    // An entry (an index and a value) is sent as two 32-bit words.
    open_operations.gather(group, {own.data(), 2 * own.size(), unisono::DType::u32},
                           {gathered_.data(), 2 * gathered_.size(), unisono::DType::u32}, 2 * own.size());
    open_operations.average(group, top_k_->dense());
  }
  Status second(Group&, OpenOperations&) override { return {}; }
  Status finish() override { return top_k_->finish(gathered_); }

 private:
  const std::unique_ptr<unisono::GatheredTopK> top_k_;
  std::vector<unisono::GatheredEntry> gathered_;
};

class PowerSgd final : public Method {
 public:
  static Result<std::unique_ptr<Method>> make(std::unique_ptr<unisono::Compressor> compressor) {
    std::vector<std::string> names;
    for (size_t i = 0; i < compressor->decisions().size(); ++i) names.push_back(std::to_string(i));
    auto made = std::unique_ptr<PowerSgd>(new PowerSgd);
    auto feedback = unisono::ErrorFeedback::make({.kind = unisono::Feedback::ef14}, std::move(compressor), std::move(names),
                                                 made->residuals_);
    if (!feedback.ok()) return feedback.status();
    made->feedback_ = *std::move(feedback);
    return std::unique_ptr<Method>(std::move(made));
  }
  void first(uint64_t step, std::span<float* const> gradients, Group& group, OpenOperations& open_operations) override {
    open_operations.average(group, feedback_->begin(step, gradients));
  }
  Status second(Group& group, OpenOperations& open_operations) override {
    if (auto status = feedback_->choose(); !status.ok()) return status;
    open_operations.average(group, feedback_->pack());
    return {};
  }
  Status finish() override { return feedback_->finish(); }

 private:
  PowerSgd() = default;
  unisono::FeedbackStore residuals_;  // It is declared first, because feedback_ uses it.
  std::unique_ptr<unisono::ErrorFeedback> feedback_;
};

Result<std::unique_ptr<Method>> make_method(const GradientCompression& compression, uint32_t number, const Bucket& bucket) {
  const auto& options = compression.options;
  std::vector<unisono::GroupTensor> tensors;
  for (uint32_t i = 0; i < bucket.parameters.size(); ++i)
    tensors.push_back({.number = bucket.first + i, .shape = shape_of(bucket.parameters[i])});
  const auto rule = unisono::row_rule(options, options.ratio);
  if (compression.by == GradientCompression::By::top_k) {
    auto top_k = unisono::GatheredTopK::make({.rule = rule}, tensors);
    if (!top_k.ok()) return top_k.status();
    return std::unique_ptr<Method>(std::make_unique<TopK>(*std::move(top_k)));
  }
  auto compressor = unisono::make_power_sgd({.rule = rule, .seed = options.seed}, number, std::move(tensors));
  if (!compressor.ok()) return compressor.status();
  return PowerSgd::make(*std::move(compressor));
}

class BaselineReducer final : public BucketReducer {
 public:
  struct Lane {
    Bucket bucket;
    std::unique_ptr<Method> method;
    OpenOperations open_operations = {};
    bool second = false;  // true: the bucket's second collective has been started
  };
  BaselineReducer(Group firsts, Group seconds, std::vector<Lane> lanes, uint64_t start_step)
      : firsts_(std::move(firsts)), seconds_(std::move(seconds)), lanes_(std::move(lanes)), start_step_(start_step) {}

  Status reduce(size_t number, std::span<float> gradients) override {
    Lane& lane = lanes_[number];
    lane.second = !compresses();
    if (compresses()) {
      std::vector<float*> places;
      for (float* at = gradients.data(); const auto& parameter : lane.bucket.parameters) {
        places.push_back(at);
        at += parameter.count();
      }
      lane.method->first(step_, places, firsts_, lane.open_operations);
    } else {
      lane.open_operations.average(firsts_, gradients);
    }
    present_.push_back(&lane);
    outcome_.elements += gradients.size();
    // Start the second collectives in the order in which the buckets were passed. All ranks pass them in the same order.
    for (Lane* each : present_) {
      if (!failure_.ok() || (!each->second && !each->open_operations.done())) break;
      failure_ = go_on(*each);
    }
    return failure_;
  }

  Result<StepOutcome> finish() override {
    for (Lane* lane : present_) {
      if (failure_.ok()) failure_ = go_on(*lane);
    }
    for (Lane* lane : present_) {
      auto waited = lane->open_operations.wait_all(outcome_);
      if (failure_.ok()) failure_ = waited.ok() && compresses() ? lane->method->finish() : std::move(waited);
    }
    present_.clear();
    ++step_;
    auto outcome = std::exchange(outcome_, {});
    if (!failure_.ok()) return failure_;
    return outcome;
  }

 private:
  bool compresses() const { return step_ >= start_step_; }

  Status go_on(Lane& lane) {
    if (std::exchange(lane.second, true)) return {};
    if (auto status = lane.open_operations.wait_all(outcome_); !status.ok()) return status;
    return lane.method->second(seconds_, lane.open_operations);
  }

  Group firsts_, seconds_;
  std::vector<Lane> lanes_;
  const uint64_t start_step_;
  uint64_t step_ = 0;
  std::vector<Lane*> present_;
  StepOutcome outcome_;
  Status failure_;  // The first failure. After it, no more operations are started.
};

}  // namespace

Result<std::unique_ptr<BucketReducer>> make_baseline_reducer(Group& group, std::span<const Bucket> buckets,
                                                             const GradientCompression& compression) {
  std::vector<uint32_t> all(group.world_size());
  std::iota(all.begin(), all.end(), 0u);
  auto firsts = group.split(all);
  if (!firsts.ok()) return firsts.status();
  auto seconds = group.split(all);
  if (!seconds.ok()) return seconds.status();
  std::vector<BaselineReducer::Lane> lanes;
  for (const Bucket& bucket : buckets) {
    auto method = make_method(compression, static_cast<uint32_t>(lanes.size()), bucket);
    if (!method.ok()) return method.status();
    lanes.push_back({.bucket = bucket, .method = *std::move(method)});
  }
  return std::unique_ptr<BucketReducer>(std::make_unique<BaselineReducer>(*std::move(firsts), *std::move(seconds),
                                                                          std::move(lanes), compression.options.start_step));
}

}  // namespace language_model
