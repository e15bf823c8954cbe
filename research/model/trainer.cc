#include "research/model/trainer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <random>
#include <utility>

#include "base/concat.h"

namespace language_model {

using unisono::Code;
using unisono::Result;
using unisono::Status;

namespace {

double wall_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_s() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

size_t sequences_at_once(const TrainingOptions& options, Parts parts) {
  return options.batch / parts.total / std::max(1u, options.micro_batches.count);
}

}  // namespace

uint64_t hash_of(std::span<const float> values) {
  uint64_t hash = values.size();
  for (const float value : values) hash = mixed(hash, std::bit_cast<uint32_t>(value), 0);
  return hash;
}

std::vector<ExchangedParameter> exchanged_parameters(const ParameterLayout& layout) {
  std::vector<ExchangedParameter> parameters;
  for (const Region& region : layout.regions) {
    parameters.push_back({.name = region.name,
                          .rows = region.rows,
                          .columns = region.columns,
                          .by_columns = region.rows > 1 && region.offset != layout.embedding});
  }
  return parameters;
}

Result<std::unique_ptr<Trainer>> Trainer::make(const TrainingOptions& options, Parts parts, const Text& text,
                                               GradientExchange& exchange) {
  if (auto shape = options.shape.validate(); !shape.ok()) return shape;
  const auto refuse = [](const char* what, size_t sequences, size_t total) {
    return Status(Code::invalid,
                  unisono::concat(what, " of ", sequences, " sequences cannot be cut into ", total, " equal parts"));
  };
  if (options.batch == 0 || options.batch % parts.total != 0) return refuse("a batch", options.batch, parts.total);
  if (const uint32_t count = options.micro_batches.count; count > 0 && options.batch / parts.total % count != 0)
    return refuse("a process's share of the batch", options.batch / parts.total, count);
  for (const size_t sequences : {options.validation_sequences, options.final_validation_sequences}) {
    if (options.validation_every > 0 && (sequences == 0 || sequences % parts.total != 0)) {
      return refuse("a validation set", sequences, parts.total);
    }
  }
  if (options.micro_batches.drop && (options.micro_batches.count == 0 || parts.count != 1))
    return Status(Code::invalid, "DropCompute needs exactly one part of the batch per process");
  if (options.sharded && (options.micro_batches.drop || parts.count != 1))
    return Status(Code::invalid, "sharded training needs exactly one part of the batch per process, and no DropCompute");
  std::unique_ptr<Trainer> trainer(new Trainer(options, parts, text, exchange));
  if (options.sharded) {
    auto sharded =
        ShardedTraining::make(*options.sharded, trainer->model_.layout(), options.optimizer, trainer->parameters_, exchange);
    if (!sharded.ok()) return sharded.status();
    trainer->sharded_ = *std::move(sharded);
    trainer->owners_.resize(trainer->parameters_.size());
    std::ranges::copy(trainer->sharded_->parameters(), trainer->parameters_.begin());
  }
  if (!options.micro_batches.drop) return trainer;
  auto drop = DropTraining::make(*options.micro_batches.drop,
                                 {.exchange = exchange,
                                  .micro_batches = *trainer->micro_batches_,
                                  .parameters = trainer->parameters_,
                                  .use = [raw = trainer.get()](std::span<const float> averages) { raw->use(averages); }});
  if (!drop.ok()) return drop.status();
  trainer->drop_ = *std::move(drop);
  return trainer;
}

Trainer::Trainer(const TrainingOptions& options, Parts parts, const Text& text, GradientExchange& exchange)
    : options_(options),
      parts_(parts),
      text_(text),
      exchange_(exchange),
      model_(options.shape, sequences_at_once(options, parts)),
      optimizer_(model_.layout(), options.optimizer),
      parameters_(model_.layout().count),
      gradients_(model_.layout().count + loss_elements),
      part_gradients_(parts.count > 1 ? gradients_.size() : 0) {
  initialise(model_.layout(), options.seed, parameters_);
  if (options.micro_batches.count > 0) {
    const MicroBatches::Data data{.text = text, .seed = options.seed, .sequences = sequences_at_once(options, parts)};
    micro_batches_ = std::make_unique<MicroBatches>(options.micro_batches, model_, data);
  }
}

void Trainer::compute_part(size_t index, size_t part, std::span<float> out, const Model<float>::Ready& ready) {
  if (micro_batches_) {
    const uint32_t count = micro_batches_->count();
    std::fill(out.begin(), out.end(), 0.0f);
    for (uint32_t number = 0; number < count; ++number) {
      const auto& on_ready = number + 1 == count ? ready : [](size_t) {};
      micro_batches_->add({.part = part, .position = index * count + number, .step = index, .number = number}, parameters_, out,
                          on_ready);
    }
    return;
  }
  const size_t size = sequences_at_once(options_, parts_);
  const auto batch = training_batch(text_, options_.seed, index, {part * size, size});
  const auto tail = out.last(loss_elements);
  tail[0] = static_cast<float>(model_.forward(parameters_, batch));
  tail[1] = 1;
  model_.backward(parameters_, batch, out.first(parameters_.size()), ready);
}

void Trainer::use(std::span<const float> averages) { optimizer_.step(averages.first(parameters_.size()), parameters_); }

Status Trainer::step_of_parts(size_t index) {
  exchange_.begin(gradients_);
  if (parts_.count == 1) {
    compute_part(index, parts_.first, gradients_, [this](size_t first) { exchange_.ready(first); });
  } else {
    // Add in the same order as an all-reduce in rank order: first add all parts, from the first to the last; then divide once.
    compute_part(index, parts_.first, gradients_, [](size_t) {});
    for (size_t part = 1; part < parts_.count; ++part) {
      compute_part(index, parts_.first + part, part_gradients_, [](size_t) {});
      for (size_t i = 0; i < gradients_.size(); ++i) gradients_[i] += part_gradients_[i];
    }
    for (float& value : gradients_) value /= static_cast<float>(parts_.count);
    exchange_.ready(0);
  }
  if (auto exchanged = exchange_.finish(); !exchanged.ok()) return exchanged;
  history_.losses.push_back(loss_of(gradients_));
  if (exchange_.applied()) use(gradients_);
  return {};
}

// Losses are averaged only after the training (finish_sharded). Therefore a step waits for no operations except its own two.
Status Trainer::step_sharded(size_t index) {
  compute_part(index, parts_.first, gradients_, [](size_t) {});
  if (auto done = sharded_->run(std::span<const float>(gradients_).first(parameters_.size())); !done.ok()) return done;
  std::ranges::copy(sharded_->parameters(), parameters_.begin());
  history_.losses.push_back(loss_of(gradients_));
  // The other ranks may have made steps without this rank. The losses of those steps are NaN.
  history_.losses.resize(sharded_->step(), std::numeric_limits<float>::quiet_NaN());
  return {};
}

Status Trainer::step(size_t index) {
  const double start = wall_s();
  const double start_cpu = cpu_s();
  const double waited_before = statistics().waited_s;
  if (sharded_) {
    if (auto done = step_sharded(index); !done.ok()) return done;
  } else if (drop_) {
    if (auto done = drop_->step(gradients_); !done.ok()) return done;
    history_.losses.push_back(drop_->loss());
  } else if (auto done = step_of_parts(index); !done.ok()) {
    return done;
  }
  const double total = wall_s() - start;
  history_.times.total_s += total;
  history_.times.compute_s += total - (statistics().waited_s - waited_before);
  history_.times.cpu_s += cpu_s() - start_cpu;
  history_.sent_bytes.resize(history_.losses.size(), statistics().sent_bytes);
  history_.seconds.resize(history_.losses.size(), history_.times.total_s);
  if (drop_) {
    history_.drops.push_back(drop_->last());
    history_.drops.back().wall_ns = std::llround(total * 1e9);
  }
  return {};
}

Result<float> Trainer::held_out_loss(std::span<const float> parameters, size_t sequences) {
  const size_t per_part = sequences / parts_.total;
  const size_t at_once = sequences_at_once(options_, parts_);
  std::array<float, 1> mean{0};
  for (size_t part = 0; part < parts_.count; ++part) {
    double sum = 0;
    for (size_t done = 0; done < per_part; done += at_once) {
      const size_t count = std::min(at_once, per_part - done);
      const auto batch = validation_batch(text_, sequences, {(parts_.first + part) * per_part + done, count});
      sum += model_.loss(parameters, batch) * static_cast<double>(count);
    }
    mean[0] += static_cast<float>(sum / static_cast<double>(per_part));
  }
  mean[0] /= static_cast<float>(parts_.count);
  if (auto averaged = exchange_.average(mean); !averaged.ok()) return averaged;
  return mean[0];
}

Result<float> Trainer::validate(size_t step, size_t sequences) {
  const double start = wall_s();
  auto loss = held_out_loss(parameters_, sequences);
  if (sharded_ && loss.ok()) {
    const float replica = *loss;
    if (auto gathered = sharded_->owners_values(owners_); !gathered.ok()) return gathered;
    loss = held_out_loss(owners_, sequences);
    if (loss.ok()) sharded_->note_validation({.step = step, .owners = *loss, .replica = replica});
  }
  history_.times.validation_s += wall_s() - start;
  return loss;
}

// Replaces the loss of each step by the average over the ranks that computed the step. Replaces each parameter by the value
// that its owner has.
Status Trainer::finish_sharded(size_t steps) {
  std::vector<float> sums(2 * steps);
  for (size_t i = 0; i < steps; ++i) {
    const bool known = !std::isnan(history_.losses[i]);
    sums[i] = known ? history_.losses[i] : 0.0f;
    sums[steps + i] = known ? 1.0f : 0.0f;
  }
  if (auto averaged = exchange_.average(sums); !averaged.ok()) return averaged;
  for (size_t i = 0; i < steps; ++i) history_.losses[i] = sums[i] / sums[steps + i];
  return sharded_->owners_values(parameters_);
}

Status Trainer::run(size_t steps, const OnProgress& on_progress) {
  if (!sharded_) {
    if (auto sent = exchange_.broadcast(parameters_); !sent.ok()) return sent;
  }
  for (size_t index = 0; index < steps;) {
    if (auto done = step(index); !done.ok()) return done;
    // If the other ranks made several steps without this rank, its next sharded step skips these. It never skips a validation,
    // because all ranks wait for each other there.
    index = sharded_ ? sharded_->step() : index + 1;
    const bool last = index == steps;
    const bool validates = options_.validation_every > 0 && (last || index % options_.validation_every == 0);
    if (const bool looks = validates || last || index == hash_after_; drop_ && looks) {
      if (auto settled = drop_->drain_and_pause(last); !settled.ok()) return settled;
    }
    if (index == hash_after_) remembered_hash_ = hash_of(parameters_);
    if (validates) {
      const auto loss = validate(index, last ? options_.final_validation_sequences : options_.validation_sequences);
      if (!loss.ok()) return loss.status();
      history_.validation.push_back({index, *loss});
    }
    on_progress({index, history_.losses.back(), validates ? &history_.validation.back() : nullptr, drop_.get()});
  }
  return sharded_ ? finish_sharded(steps) : Status();
}

std::string Trainer::write_text(const std::string& prompt, size_t count, uint64_t seed) {
  constexpr double temperature = 0.8;
  const size_t context = options_.shape.context;
  std::string text = prompt.empty() ? std::string("\n") : prompt;
  std::mt19937_64 generator(seed);
  std::array<double, vocabulary_size> probabilities{};
  for (size_t i = 0; i < count; ++i) {
    const size_t used = std::min(context, text.size());
    Batch batch{.sequences = 1, .inputs = std::vector<uint8_t>(context), .targets = std::vector<uint8_t>(context)};
    std::copy(text.end() - static_cast<ptrdiff_t>(used), text.end(), batch.inputs.begin());
    model_.loss(parameters_, batch);
    model_.next_probabilities(used - 1, probabilities);
    for (double& p : probabilities) p = std::pow(p, 1 / temperature);
    std::discrete_distribution<int> draw(probabilities.begin(), probabilities.end());
    text.push_back(static_cast<char>(draw(generator)));
  }
  return text.substr(prompt.size());
}

}  // namespace language_model
