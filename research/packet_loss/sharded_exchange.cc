#include "research/packet_loss/sharded_exchange.h"

#include <utility>

#include "research/packet_loss/wrong_broadcasts.h"

namespace language_model {

using unisono::Code;
using unisono::Result;
using unisono::Status;

namespace {

class LibraryStep final : public ShardedExchange {
 public:
  explicit LibraryStep(unisono::ShardedStep step) : step_(std::move(step)) {}
  std::span<const float> parameters() const override { return step_.parameters(); }
  uint32_t step() const override { return step_.step(); }
  Result<unisono::ShardedReport> run(std::span<const float> gradients, double rate) override {
    step_.set_rate(rate);
    return step_.run(gradients);
  }
  Status owners_values(std::span<float> values) override { return step_.owners_values(values); }

 private:
  unisono::ShardedStep step_;
};

}  // namespace

Result<ShardedPlan> parse_sharded(const std::string& text, const std::string& ablation, double clip_norm) {
  auto options = unisono::ShardedOptions::parse(text);
  if (!options.ok()) return options.status();
  ShardedPlan plan{.options = *options, .ablation = ablation};
  if (("," + text).find(",clip=") == std::string::npos) plan.options.clip_norm = clip_norm;
  if (ablation == "count") plan.options.lossy.estimator = unisono::Estimator::count;
  else if (ablation == "zero_fill") plan.options.lossy.estimator = unisono::Estimator::zero_fill;
  else if (ablation == "zero_parameters") plan.wrong = WrongBroadcast::zero_parameters;
  else if (ablation == "differences") plan.wrong = WrongBroadcast::differences;
  else if (!ablation.empty())
    return Status(Code::invalid, "--ablation " + ablation + " is none of count, zero_fill, zero_parameters, differences");
  return plan;
}

Result<std::unique_ptr<ShardedExchange>> make_sharded_exchange(const unisono::Group& group, const ShardedPlan& plan,
                                                               std::span<const float> parameters,
                                                               std::unique_ptr<unisono::ShardOptimizer> optimizer) {
  if (plan.wrong != WrongBroadcast::none) return make_wrong_broadcast(group, plan, parameters, std::move(optimizer));
  auto step = unisono::ShardedStep::make(group, parameters, std::move(optimizer), plan.options);
  if (!step.ok()) return step.status();
  return std::unique_ptr<ShardedExchange>(std::make_unique<LibraryStep>(*std::move(step)));
}

}  // namespace language_model
