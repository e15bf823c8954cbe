#include "unisono/shard_optimizer.h"

#include <cmath>
#include <vector>

#include "base/check.h"

namespace unisono {
namespace {

void check(const ShardUpdate& task, size_t state_elements) {
  UNISONO_CHECK(task.values.size() == task.gradient.size() && task.step > 0);
  UNISONO_CHECK(task.begin <= state_elements && task.values.size() <= state_elements - task.begin);
}

class Sgd final : public ShardOptimizer {
 public:
  explicit Sgd(const SgdOptions& options) : options_(options) {}

  // The initial momentum is zero, so the first step sets the momentum to the first gradient, as in PyTorch. If a range was held
  // (not updated) from the start, its first update does the same.
  void update(const ShardUpdate& task) override {
    check(task, elements_);
    const auto rate = static_cast<float>(options_.rate), decay = static_cast<float>(options_.weight_decay),
               keep = static_cast<float>(options_.momentum);
    float* const momentum = state_count() == 0 ? nullptr : momentum_.data() + task.begin;
    for (size_t i = 0; i < task.values.size(); ++i) {
      float direction = task.gradient[i] * task.scale + decay * task.values[i];
      if (momentum != nullptr) {
        momentum[i] = keep * momentum[i] + direction;
        direction = options_.nesterov ? direction + keep * momentum[i] : momentum[i];
      }
      task.values[i] -= rate * direction;
    }
  }
  double rate() const override { return options_.rate; }
  void set_rate(double rate) override { options_.rate = rate; }
  uint32_t state_count() const override { return options_.momentum == 0 ? 0 : 1; }
  std::span<float> state(uint32_t index) override {
    UNISONO_CHECK(index < state_count());
    return momentum_;
  }
  void resize(uint64_t elements) override {
    elements_ = elements;
    if (state_count() != 0) momentum_.assign(elements, 0.0f);
  }

 private:
  SgdOptions options_;
  uint64_t elements_ = 0;
  std::vector<float> momentum_;
};

class AdamW final : public ShardOptimizer {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}

  void update(const ShardUpdate& task) override {
    check(task, mean_.size());
    const auto step = static_cast<double>(task.step);
    const auto shrink = static_cast<float>(1 - options_.rate * options_.weight_decay);
    const auto fresh1 = static_cast<float>(1 - options_.beta1), fresh2 = static_cast<float>(1 - options_.beta2),
               keep2 = static_cast<float>(options_.beta2);
    const auto stride = static_cast<float>(options_.rate / (1 - std::pow(options_.beta1, step)));
    const auto root = static_cast<float>(std::sqrt(1 - std::pow(options_.beta2, step))),
               epsilon = static_cast<float>(options_.epsilon);
    float* const mean = mean_.data() + task.begin;
    float* const square = square_.data() + task.begin;
    for (size_t i = 0; i < task.values.size(); ++i) {
      const float gradient = task.gradient[i] * task.scale;
      mean[i] += fresh1 * (gradient - mean[i]);
      square[i] = keep2 * square[i] + fresh2 * gradient * gradient;
      task.values[i] = task.values[i] * shrink - stride * (mean[i] / (std::sqrt(square[i]) / root + epsilon));
    }
  }
  double rate() const override { return options_.rate; }
  void set_rate(double rate) override { options_.rate = rate; }
  uint32_t state_count() const override { return 2; }
  std::span<float> state(uint32_t index) override {
    UNISONO_CHECK(index < 2);
    return index == 0 ? mean_ : square_;
  }
  void resize(uint64_t elements) override {
    mean_.assign(elements, 0.0f);
    square_.assign(elements, 0.0f);
  }

 private:
  AdamWOptions options_;
  std::vector<float> mean_, square_;
};

}  // namespace

std::unique_ptr<ShardOptimizer> make_sgd(const SgdOptions& options) { return std::make_unique<Sgd>(options); }
std::unique_ptr<ShardOptimizer> make_adamw(const AdamWOptions& options) { return std::make_unique<AdamW>(options); }

}  // namespace unisono
