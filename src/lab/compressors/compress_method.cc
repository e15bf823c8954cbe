#include "lab/compressors/compress_method.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "cli/common/monotonic.h"
#include "compressors/arc_top_k.h"
#include "compressors/power_sgd.h"
#include "lab/compressors/gathered_top_k.h"
#include "training/reducer/error_feedback.h"

namespace unisono::lab {

using cli::monotonic_now;

namespace {

// Measures the durations of consecutive phases of a step.
class Stopwatch {
 public:
  explicit Stopwatch(StepCost& cost) : cost_(cost) {}
  void lap(Phase phase) {
    const auto now = monotonic_now();
    cost_.us[static_cast<size_t>(phase)] += static_cast<double>(now - last_) / static_cast<double>(microsecond);
    last_ = now;
  }
  void restart() { last_ = monotonic_now(); }

 private:
  StepCost& cost_;
  Nanos last_ = monotonic_now();
};

void report_compensated(const MethodStep& step, std::span<const float* const> values, Stopwatch& watch) {
  if (!step.compensated) return;
  step.compensated(values);
  watch.restart();
}

Status account(const Result<Report>& report, size_t bytes, StepCost& cost) {
  if (!report.ok()) return report.status();
  cost.payload_bytes += bytes;
  cost.sent_bytes += report->sent_bytes;
  ++cost.collectives;
  return {};
}

Status average(Group& group, std::span<float> values, const CallOptions& call, StepCost& cost) {
  return values.empty() ? Status() : account(group.all_reduce(values, call), values.size_bytes(), cost);
}

// Returns pointers to the tensors in a buffer that holds all of them.
template <typename Value>
std::vector<Value*> pointers_to(const std::vector<GroupTensor>& tensors, std::span<float> gradients) {
  std::vector<Value*> all;
  for (float* at = gradients.data(); const auto& tensor : tensors) {
    all.push_back(at);
    at += matrix_of(tensor.shape).elements();
  }
  return all;
}

std::string whole_text(const Decision& decision) { return fmt::format("whole: {}", decision.reason); }

class Dense final : public CompressMethod {
 public:
  Dense(const CompressPlan& plan, const CallOptions& call) : tensors_(plan.gradients.tensors()), call_(call) {}
  Status run(Group& group, const MethodStep& step, StepCost& cost) override {
    Stopwatch watch(cost);
    report_compensated(step, pointers_to<const float>(tensors_, step.gradients), watch);
    auto status = average(group, step.gradients, call_, cost);
    watch.lap(Phase::second);
    return status;
  }
  std::string treatment(size_t) const override { return "whole"; }

 private:
  const std::vector<GroupTensor> tensors_;
  const CallOptions call_;
};

// Compresses with error feedback. In each step two buffers are averaged over the ranks, and a codec may encode the second one.
class TwoAverages final : public CompressMethod {
 public:
  using Text = std::function<std::string(const Decision&)>;
  static Result<std::unique_ptr<CompressMethod>> make(const CompressPlan& plan, Result<std::unique_ptr<Compressor>> compressor,
                                                      const CallOptions& first, const CallOptions& second, Text text) {
    if (!compressor.ok()) return compressor.status();
    std::vector<std::string> names;
    for (size_t i = 0; i < plan.gradients.shapes.size(); ++i) names.push_back(std::to_string(i));
    auto made = std::unique_ptr<TwoAverages>(new TwoAverages(plan, first, second, std::move(text)));
    auto feedback = ErrorFeedback::make(
        {.kind = plan.feedback ? Feedback::ef14 : Feedback::none, .lossy = second.codec && !second.codec->is_plain()},
        *std::move(compressor), std::move(names), made->store_);
    if (!feedback.ok()) return feedback.status();
    made->feedback_ = *std::move(feedback);
    return std::unique_ptr<CompressMethod>(std::move(made));
  }
  Status run(Group& group, const MethodStep& step, StepCost& cost) override {
    Stopwatch watch(cost);
    const auto first = feedback_->begin(step.number, pointers_to<float>(tensors_, step.gradients));
    watch.lap(Phase::begin);
    auto compensated = pointers_to<const float>(tensors_, step.gradients);
    for (size_t i = 0; i < compensated.size(); ++i) compensated[i] = feedback_->compensated(i);
    report_compensated(step, compensated, watch);
    if (auto status = average(group, first, first_, cost); !status.ok()) return status;
    watch.lap(Phase::first);
    if (auto status = feedback_->choose(); !status.ok()) return status;
    watch.lap(Phase::choose);
    const auto second = feedback_->pack();
    watch.lap(Phase::pack);
    auto call = second_;
    call.encode_error = feedback_->encode_errors().data();
    if (auto status = average(group, second, call, cost); !status.ok()) return status;
    watch.lap(Phase::second);
    auto status = feedback_->finish();
    watch.lap(Phase::unpack);
    return status;
  }
  std::string treatment(size_t i) const override {
    const auto& decision = feedback_->compressor().decisions()[i];
    return decision.treatment == Treatment::compressed ? text_(decision) : whole_text(decision);
  }

 private:
  TwoAverages(const CompressPlan& plan, const CallOptions& first, const CallOptions& second, Text text)
      : tensors_(plan.gradients.tensors()), first_(first), second_(second), text_(std::move(text)) {}

  const std::vector<GroupTensor> tensors_;
  FeedbackStore store_;  // holds the residuals, and must outlive feedback_
  std::unique_ptr<ErrorFeedback> feedback_;
  const CallOptions first_, second_;
  const Text text_;
};

Result<std::unique_ptr<CompressMethod>> make_by_rows(const CompressPlan& plan, bool random, const CallOptions& sketches,
                                                     const CallOptions& values) {
  const auto text = [random, rank = plan.rule.rank](const Decision& decision) {
    return fmt::format("{} of {} rows{}", decision.kept, decision.matrix.rows,
                       random ? "" : fmt::format(", sketches of {}", rank));
  };
  auto compressor = make_arc_top_k({.rule = plan.rule, .seed = plan.seed, .random = random}, 0, plan.gradients.tensors());
  return TwoAverages::make(plan, std::move(compressor), sketches, values, text);
}

Result<std::unique_ptr<CompressMethod>> make_power(const CompressPlan& plan, const CallOptions& call) {
  const auto text = [](const Decision& decision) { return fmt::format("factors of {} columns", decision.factors); };
  auto compressor =
      make_power_sgd({.rule = plan.rule, .rank = plan.power_rank, .seed = plan.seed}, 0, plan.gradients.tensors());
  return TwoAverages::make(plan, std::move(compressor), call, call, text);
}

class Gathered final : public CompressMethod {
 public:
  Gathered(const CompressPlan& plan, std::unique_ptr<GatheredTopK> top_k, const CallOptions& call)
      : tensors_(plan.gradients.tensors()), rule_(plan.rule), top_k_(std::move(top_k)), call_(call) {}
  Status run(Group& group, const MethodStep& step, StepCost& cost) override {
    Stopwatch watch(cost);
    const auto own = top_k_->begin(pointers_to<float>(tensors_, step.gradients));
    watch.lap(Phase::begin);
    report_compensated(step, pointers_to<const float>(tensors_, step.gradients), watch);
    gathered_.resize(own.size() * group.world_size());
    if (!own.empty()) {
      auto call = call_;
      call.op = CallOptions{}.op;
      // An entry is sent as two 32-bit numbers.
      const ConstTensor input(own.data(), 2 * own.size(), DType::u32);
      if (auto status =
              account(group.all_gather(input, Tensor(gathered_.data(), 2 * gathered_.size(), DType::u32), Counts{}, call),
                      own.size_bytes(), cost);
          !status.ok())
        return status;
    }
    if (auto status = average(group, top_k_->dense(), call_, cost); !status.ok()) return status;
    watch.lap(Phase::second);
    auto status = top_k_->finish(gathered_);
    watch.lap(Phase::unpack);
    return status;
  }
  std::string treatment(size_t i) const override {
    const auto& decision = top_k_->decisions()[i];
    if (decision.treatment != Treatment::compressed) return whole_text(decision);
    return fmt::format("{} of {} elements, with their indices", kept_rows(rule_, decision.matrix.elements()),
                       decision.matrix.elements());
  }

 private:
  const std::vector<GroupTensor> tensors_;
  const RowRule rule_;
  const std::unique_ptr<GatheredTopK> top_k_;
  const CallOptions call_;
  std::vector<GatheredEntry> gathered_;
};

}  // namespace

double StepCost::total_us() const { return std::accumulate(us.begin(), us.end(), 0.0); }

Result<std::unique_ptr<CompressMethod>> make_compress_method(const CompressPlan& plan, Method method, const Codec& codec) {
  CallOptions plain{.op = ReduceOp::avg, .timeout = plan.timeout, .codec = Codec{}};
  auto values = plain;
  values.codec = codec;
  switch (method) {
    case Method::dense: return std::unique_ptr<CompressMethod>(std::make_unique<Dense>(plan, values));
    case Method::arc: return make_by_rows(plan, false, plain, values);
    case Method::random_k: return make_by_rows(plan, true, plain, values);
    case Method::power_sgd: return make_power(plan, plain);
    case Method::top_k: break;
  }
  auto made = GatheredTopK::make({.rule = plan.rule, .feedback = plan.feedback}, plan.gradients.tensors());
  if (!made.ok()) return made.status();
  return std::unique_ptr<CompressMethod>(std::make_unique<Gathered>(plan, *std::move(made), plain));
}

}  // namespace unisono::lab
