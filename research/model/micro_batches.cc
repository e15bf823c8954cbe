#include "research/model/micro_batches.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace language_model {

float loss_of(std::span<const float> gradients) {
  const auto tail = gradients.last(loss_elements);
  return tail[0] / tail[1];
}

Batch MicroBatches::batch_of(const MicroBatch& which) const {
  const uint64_t step = which.position / count();
  const size_t first = (which.part * count() + which.position % count()) * data_.sequences;
  return training_batch(data_.text, data_.seed, step, {first, data_.sequences});
}

double MicroBatches::delay_s(const MicroBatch& which) const {
  if (!options_.delay) return 0;
  const auto& law = *options_.delay;
  const auto rank = static_cast<uint32_t>(which.part);
  auto random = unisono::sim::random_of(data_.seed, which.step, rank, which.number);
  const double latency = law.latency(random, rank);
  return options_.delay_base ? latency : std::max(0.0, latency - law.base);
}

void MicroBatches::add(const MicroBatch& which, std::span<const float> parameters, std::span<float> gradients,
                       const Model<float>::Ready& ready) {
  // First sleep, then compute. If it were the other way round, a slow rank could send gradients before its delay.
  if (const double delay = delay_s(which); delay > 0) std::this_thread::sleep_for(std::chrono::duration<double>(delay));
  const auto batch = batch_of(which);
  const auto tail = gradients.last(loss_elements);
  tail[0] += static_cast<float>(model_.forward(parameters, batch));
  tail[1] += 1;
  const float share = 1.0f / static_cast<float>(count());
  size_t added = own_.size();
  model_.backward(parameters, batch, own_, [&](size_t first) {
    for (size_t i = first; i < added; ++i) gradients[i] += share * own_[i];
    added = first;
    ready(first);
  });
}

}  // namespace language_model
