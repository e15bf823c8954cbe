#include "research/elastic/local_trainer.h"

#include <algorithm>

namespace language_model {

LocalTrainer::LocalTrainer(const LocalTrainerOptions& options, const Text& text)
    : options_(options),
      text_(text),
      model_(options.shape, options.batch),
      optimizer_(model_.layout(), options.optimizer),
      parameters_(model_.layout().count),
      gradients_(model_.layout().count + loss_elements) {
  initialise(model_.layout(), options.seed, parameters_);
}

float LocalTrainer::compute(uint64_t number) {
  const auto batch = training_batch(text_, mixed(options_.seed, options_.stream, 3), number, {0, options_.batch});
  const auto tail = std::span(gradients_).last(loss_elements);
  tail[0] = static_cast<float>(model_.forward(parameters_, batch));
  tail[1] = 1;
  model_.backward(parameters_, batch, std::span(gradients_).first(parameters_.size()), [](size_t) {});
  return tail[0];
}

void LocalTrainer::apply(size_t schedule_step) {
  optimizer_.set_schedule(schedule_step);
  optimizer_.step(std::span<const float>(gradients_).first(parameters_.size()), parameters_);
}

float LocalTrainer::held_out_loss(size_t sequences) {
  double sum = 0;
  for (size_t done = 0; done < sequences; done += options_.batch) {
    const size_t count = std::min(options_.batch, sequences - done);
    sum += model_.loss(parameters_, validation_batch(text_, sequences, {done, count})) * static_cast<double>(count);
  }
  return static_cast<float>(sum / static_cast<double>(sequences));
}

}  // namespace language_model
