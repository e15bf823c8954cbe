#include "research/packet_loss/wrong_broadcasts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace language_model {

using unisono::Code;
using unisono::ConstTensor;
using unisono::Result;
using unisono::Status;
using unisono::Tensor;

namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
constexpr unisono::CallOptions reliable{.codec = unisono::Codec{}};

class WrongExchange final : public ShardedExchange {
 public:
  WrongExchange(const unisono::Group& group, const ShardedPlan& plan, const unisono::ShardLayout& layout,
                std::vector<float> parameters, std::unique_ptr<unisono::ShardOptimizer> optimizer)
      : group_(group),
        plan_(plan),
        layout_(layout),
        optimizer_(std::move(optimizer)),
        parameters_(std::move(parameters)),
        received_(parameters_.size()) {
    const auto own = own_part(parameters_);
    owned_.assign(own.begin(), own.end());
    before_ = owned_;
    gradient_.resize(owned_.size());
    optimizer_->resize(owned_.size());
  }

  std::span<const float> parameters() const override { return parameters_; }
  uint32_t step() const override { return step_; }
  Result<unisono::ShardedReport> run(std::span<const float> gradients, double rate) override;
  Status owners_values(std::span<float> values) override {
    return group_.gather_shards(ConstTensor(std::span<const float>(owned_)), Tensor(values), reliable).status();
  }

 private:
  std::span<float> own_part(std::span<float> all) const {
    return all.subspan(layout_.begin(group_.rank()), layout_.count(group_.rank()));
  }
  unisono::CallOptions lossy() const {
    return {.codec = unisono::Codec{}, .delivery = plan_.options.delivery, .lossy = plan_.options.lossy};
  }
  Status broadcast(unisono::ShardedReport& report);
  Status clip(unisono::ShardedReport& report);
  Status measure_drift(unisono::ShardedReport& report);

  unisono::Group group_;
  const ShardedPlan plan_;
  const unisono::ShardLayout layout_;
  std::unique_ptr<unisono::ShardOptimizer> optimizer_;
  std::vector<float> parameters_, received_;
  // These belong to this rank's shard: its values, the values before the step, and the averaged gradients.
  std::vector<float> owned_, before_, gradient_;
  uint32_t step_ = 0;
};

Result<unisono::ShardedReport> WrongExchange::run(std::span<const float> gradients, double rate) {
  unisono::ShardedReport report;
  report.step = ++step_;
  auto averaging = lossy();
  averaging.op = unisono::ReduceOp::avg;
  const auto reduced = group_.reduce_shards(ConstTensor(gradients), Tensor(std::span(gradient_)), averaging);
  if (!reduced.ok()) return reduced.status();
  report.gradients = reduced->delivery;
  report.sent_bytes = reduced->sent_bytes;
  report.reduce_us = reduced->total_us;
  if (auto clipped = clip(report); !clipped.ok()) return clipped;
  before_ = owned_;
  optimizer_->set_rate(rate);
  optimizer_->update(
      {.begin = 0, .values = owned_, .gradient = gradient_, .scale = static_cast<float>(report.clipped), .step = step_});
  if (auto sent = broadcast(report); !sent.ok()) return sent;
  if (const auto every = plan_.options.drift_every; every > 0 && step_ % every == 0) {
    if (auto measured = measure_drift(report); !measured.ok()) return measured;
  }
  return report;
}

Status WrongExchange::clip(unisono::ShardedReport& report) {
  std::array<float, 1> squares{};
  double own = 0;
  for (const float value : gradient_) own += double{value} * value;
  squares[0] = static_cast<float>(own);
  if (auto summed = group_.all_reduce(Tensor(std::span<float>(squares)), reliable); !summed.ok()) return summed.status();
  report.gradient_norm = std::sqrt(squares[0]);
  if (const double most = plan_.options.clip_norm; most > 0)
    report.clipped = std::min(1.0, most / (report.gradient_norm + 1e-6));
  return {};
}

Status WrongExchange::broadcast(unisono::ShardedReport& report) {
  const bool differences = plan_.wrong == WrongBroadcast::differences;
  auto sent = owned_;
  for (size_t i = 0; differences && i < sent.size(); ++i) sent[i] -= before_[i];
  std::ranges::fill(received_, 0.0f);
  const auto gathered = group_.gather_shards(ConstTensor(std::span<const float>(sent)), Tensor(std::span(received_)), lossy());
  if (!gathered.ok()) return gathered.status();
  if (differences) {
    for (size_t i = 0; i < received_.size(); ++i) parameters_[i] += received_[i];
  } else {
    parameters_ = received_;
  }
  std::ranges::copy(owned_, own_part(parameters_).begin());
  report.values = gathered->delivery;
  report.sent_bytes += gathered->sent_bytes;
  report.gather_us = gathered->total_us;
  for (uint32_t owner = 0; owner < layout_.world; ++owner) report.ranges += owner == group_.rank() ? 0 : layout_.ranges(owner);
  if (report.values != nullptr) report.stale_ranges = report.values->stale_ranges;
  return {};
}

// Measures how far the replicas are from the values of the owners, over all elements. No expected distance is reported. With
// `differences`, the replicas drift like random walks, so the distance depends on the time since they were equal.
Status WrongExchange::measure_drift(unisono::ShardedReport& report) {
  if (auto gathered = owners_values(received_); !gathered.ok()) return gathered;
  double squares = 0;
  for (size_t i = 0; i < received_.size(); ++i)
    squares += (double{received_[i]} - parameters_[i]) * (double{received_[i]} - parameters_[i]);
  double own_squares = 0;
  for (size_t i = 0; i < owned_.size(); ++i) own_squares += (double{owned_[i]} - before_[i]) * (double{owned_[i]} - before_[i]);
  std::array<float, 2> sums{static_cast<float>(squares), static_cast<float>(own_squares)};
  if (auto summed = group_.all_reduce(Tensor(std::span<float>(sums)), reliable); !summed.ok()) return summed.status();
  const auto elements = static_cast<double>(layout_.elements), foreign = elements * (layout_.world - 1);
  report.drift = {.owner = sums[0] / foreign,
                  .owner_expected = unknown,
                  .pair = unknown,
                  .pair_expected = unknown,
                  .paper_form = unknown,
                  .gap = unknown,
                  .second_moment = sums[1] / elements,
                  .rho = unknown,
                  .loss = unknown,
                  .recovery = unknown};
  return {};
}

}  // namespace

Result<std::unique_ptr<ShardedExchange>> make_wrong_broadcast(const unisono::Group& group, const ShardedPlan& plan,
                                                              std::span<const float> parameters,
                                                              std::unique_ptr<unisono::ShardOptimizer> optimizer) {
  auto calls = group;
  std::vector<float> values(parameters.begin(), parameters.end());
  if (auto sent = calls.broadcast(Tensor(std::span(values)), 0, reliable); !sent.ok()) return sent.status();
  const auto layout = calls.shard_layout(ConstTensor(std::span<const float>(values)));
  if (!layout.ok()) return layout.status();
  if (layout->count(layout->world - 1) == 0)
    return Status(Code::invalid, "the model has too few parameters: some ranks would have no shard");
  return std::unique_ptr<ShardedExchange>(
      std::make_unique<WrongExchange>(group, plan, *layout, std::move(values), std::move(optimizer)));
}

}  // namespace language_model
