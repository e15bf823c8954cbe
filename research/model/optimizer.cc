#include "research/model/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/concat.h"

namespace language_model {

namespace {

double norm_of(std::span<const float> values) {
  constexpr size_t lane_count = 16;
  double lanes[lane_count] = {};
  size_t i = 0;
  for (; i + lane_count <= values.size(); i += lane_count) {
    for (size_t lane = 0; lane < lane_count; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  for (size_t lane = 0; i < values.size(); ++i, ++lane) lanes[lane] += static_cast<double>(values[i]) * values[i];
  double total = 0;
  for (const double lane : lanes) total += lane;
  return std::sqrt(total);
}

// The constants of one step. They are equal for all parameters of a region (a matrix or a vector).
struct Step {
  float clip;  // Gradients are multiplied by this.
  float rate;
  float decay;       // Parameters are multiplied by this.
  float mean_scale;  // 1 / (1 - beta_1^t). It corrects the running averages, because they start at zero.
  float square_scale;
  float beta_1, beta_2, epsilon;
};

void update(const Step s, size_t count, const float* __restrict gradient, float* __restrict mean, float* __restrict square,
            float* __restrict parameter) {
  for (size_t i = 0; i < count; ++i) {
    const float g = gradient[i] * s.clip;
    mean[i] = s.beta_1 * mean[i] + (1 - s.beta_1) * g;
    square[i] = s.beta_2 * square[i] + (1 - s.beta_2) * g * g;
    const float direction = mean[i] * s.mean_scale / (std::sqrt(square[i] * s.square_scale) + s.epsilon);
    parameter[i] = parameter[i] * s.decay - s.rate * direction;
  }
}

// The powers of the two betas. They are computed by repeated multiplication, so that AdamW and ShardAdamW get the same bits.
struct Powers {
  uint64_t step = 0;
  double beta_1 = 1, beta_2 = 1;
  void go_to(uint64_t wanted, const OptimizerOptions& options) {
    if (wanted < step) *this = {};
    for (; step < wanted; ++step) beta_1 *= options.beta_1, beta_2 *= options.beta_2;
  }
};

Step step_of(const OptimizerOptions& options, const Powers& powers, float clip, float rate) {
  return {.clip = clip,
          .rate = rate,
          .decay = 1.0f,
          .mean_scale = static_cast<float>(1 / (1 - powers.beta_1)),
          .square_scale = static_cast<float>(1 / (1 - powers.beta_2)),
          .beta_1 = options.beta_1,
          .beta_2 = options.beta_2,
          .epsilon = options.epsilon};
}

float decay_of(const Region& region, const OptimizerOptions& options, float rate) {
  return region.deviation > 0 ? 1.0f - rate * options.weight_decay : 1.0f;
}

class ShardAdamW final : public unisono::ShardOptimizer {
 public:
  ShardAdamW(const ParameterLayout& layout, const OptimizerOptions& options, uint32_t rank, uint32_t world)
      : options_(options),
        regions_(layout.regions),
        count_(layout.count),
        rank_(rank),
        is_last_(rank + 1 == world),
        rate_(options.learning_rate) {}

  void update(const unisono::ShardUpdate& task) override {
    powers_.go_to(task.step, options_);
    auto s = step_of(options_, powers_, task.scale, static_cast<float>(rate_));
    const size_t begin = first_ + task.begin, end = begin + task.values.size();
    for (const Region& region : regions_) {
      const size_t from = std::max(begin, region.offset), to = std::min(end, region.offset + region.count());
      if (from >= to) continue;
      s.decay = decay_of(region, options_, s.rate);
      language_model::update(s, to - from, task.gradient.data() + (from - begin), mean_.data() + (from - first_),
                             square_.data() + (from - first_), task.values.data() + (from - begin));
    }
  }
  double rate() const override { return rate_; }
  void set_rate(double rate) override { rate_ = rate; }
  uint32_t state_count() const override { return 2; }
  std::span<float> state(uint32_t index) override { return index == 0 ? mean_ : square_; }
  // Only the last shard may have another size than the others. Therefore the position of a shard follows from its size.
  void resize(uint64_t elements) override {
    first_ = is_last_ ? count_ - elements : rank_ * elements;
    mean_.assign(elements, 0.0f);
    square_.assign(elements, 0.0f);
  }

 private:
  const OptimizerOptions options_;
  const std::vector<Region> regions_;
  const size_t count_;
  const uint32_t rank_;
  const bool is_last_;
  double rate_;
  size_t first_ = 0;  // index of the shard's first value in the array of all parameters
  std::vector<float> mean_, square_;
  Powers powers_;
};

}  // namespace

std::unique_ptr<unisono::ShardOptimizer> make_shard_adamw(const ParameterLayout& layout, const OptimizerOptions& options,
                                                          uint32_t rank, uint32_t world) {
  return std::make_unique<ShardAdamW>(layout, options, rank, world);
}

float learning_rate(const OptimizerOptions& options, size_t step) {
  const double peak = options.learning_rate;
  if (step < options.warm_up_steps) {
    return static_cast<float>(peak * static_cast<double>(step + 1) / static_cast<double>(options.warm_up_steps));
  }
  if (step >= options.steps) return 0;
  return static_cast<float>(peak * static_cast<double>(options.steps - step) /
                            static_cast<double>(options.steps - options.warm_up_steps));
}

AdamW::AdamW(const ParameterLayout& layout, const OptimizerOptions& options)
    : options_(options), regions_(layout.regions), mean_(layout.count), square_(layout.count) {}

double AdamW::step(std::span<const float> gradients, std::span<float> parameters) {
  const double norm = norm_of(gradients);
  beta_1_power_ *= options_.beta_1;
  beta_2_power_ *= options_.beta_2;
  const float rate = learning_rate(options_, step_++);
  const float clip = norm > options_.norm_max ? static_cast<float>(options_.norm_max / norm) : 1.0f;
  Step s = step_of(options_, {.step = step_, .beta_1 = beta_1_power_, .beta_2 = beta_2_power_}, clip, rate);
  for (const Region& region : regions_) {
    s.decay = decay_of(region, options_, rate);
    update(s, region.count(), gradients.data() + region.offset, mean_.data() + region.offset, square_.data() + region.offset,
           parameters.data() + region.offset);
  }
  return norm;
}

std::vector<std::byte> AdamW::save() const {
  const uint64_t head[] = {mean_.size(), step_, std::bit_cast<uint64_t>(beta_1_power_), std::bit_cast<uint64_t>(beta_2_power_)};
  std::vector<std::byte> saved;
  saved.reserve(sizeof head + 2 * mean_.size() * sizeof(float));
  // The memory was reserved above, because the optimizer is saved in every averaging step.
  for (const std::span<const std::byte> part : {std::span<const std::byte>(std::as_bytes(std::span(head))),
                                                std::as_bytes(std::span(mean_)), std::as_bytes(std::span(square_))})
    saved.insert(saved.end(), part.begin(), part.end());
  return saved;
}

unisono::Status AdamW::load(std::span<const std::byte> saved) {
  uint64_t head[4] = {};
  const size_t bytes = mean_.size() * sizeof(float);
  if (saved.size() != sizeof head + 2 * bytes)
    return {unisono::Code::invalid,
            unisono::concat("saved moments have ", saved.size(), " bytes, not ", sizeof head + 2 * bytes)};
  std::memcpy(head, saved.data(), sizeof head);
  const double power_1 = std::bit_cast<double>(head[2]), power_2 = std::bit_cast<double>(head[3]);
  // Check the values, because they come from another process. The powers are 1 before the first step, and get smaller with each
  // step.
  if (head[0] != mean_.size() || !(power_1 >= 0 && power_1 <= 1 && power_2 >= 0 && power_2 <= 1))
    return {unisono::Code::invalid, "the saved moments belong to another model, or are damaged"};
  step_ = head[1], beta_1_power_ = power_1, beta_2_power_ = power_2;
  std::memcpy(mean_.data(), saved.data() + sizeof head, bytes);
  std::memcpy(square_.data(), saved.data() + sizeof head + bytes, bytes);
  return {};
}

}  // namespace language_model
