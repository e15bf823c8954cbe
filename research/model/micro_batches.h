// A process computes its part of a batch in several micro-batches. All of them have the same number of sequences, and their
// gradients are added up.
//
// The position of a micro-batch is its number since the start of the process's own data. Only the position selects the
// sequences. The micro-batches of a part, taken in order, have the same sequences as the undivided part. A delay model can make
// micro-batches slower: the process sleeps before it computes, and nothing interrupts the sleep.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "lab/drop_compute/delay_model.h"
#include "research/model/model.h"
#include "research/model/text.h"
#include "unisono/drop_compute.h"

namespace language_model {

// Two values follow the gradients: the sum of the losses of the micro-batches, and the number of micro-batches.
inline constexpr size_t loss_elements = 2;
// Computes the mean loss from the two loss elements. They may have been averaged over the ranks. Returns NaN if there was no
// micro-batch.
float loss_of(std::span<const float> gradients);

struct MicroBatchOptions {
  uint32_t count = 0;  // number of micro-batches in each part of a batch; 0: parts are computed as a whole
  // `delay` models the random time that each micro-batch takes. `base` of the model is about the time that the computing itself
  // takes, so the process sleeps for the random time minus `base`. If the computing takes much less time than `base`, set
  // `delay_base`. The process then sleeps for the whole random time.
  std::optional<unisono::sim::DelayModel> delay = {};
  bool delay_base = false;
  // nullopt: all micro-batches are computed, and no clock is read.
  std::optional<unisono::DropOptions> drop = {};
};

struct MicroBatch {
  size_t part = 0;        // number of the part; in data-parallel training, it is the rank
  uint64_t position = 0;  // position in the data of the part, counted in micro-batches
  uint64_t step = 0;      // the step in which the micro-batch is computed, from 0
  uint32_t number = 0;    // number of the micro-batch in its step, from 0; the delay depends on it and on the step
};

class MicroBatches {
 public:
  struct Data {
    const Text& text;
    uint64_t seed = 1;     // seed for the batches and the delays
    size_t sequences = 1;  // number of sequences in each micro-batch
  };
  // `model` must outlive this object. Its batches must be large enough for a micro-batch. options.count must not be 0.
  MicroBatches(const MicroBatchOptions& options, Model<float>& model, const Data& data)
      : options_(options), model_(model), data_(data), own_(model.layout().count) {}

  uint32_t count() const { return options_.count; }
  Batch batch_of(const MicroBatch& which) const;
  // Returns how many seconds the process sleeps before it computes this micro-batch.
  double delay_s(const MicroBatch& which) const;
  // Adds to `gradients` the gradient of the micro-batch's mean loss, divided by the number of micro-batches. Adds the loss to
  // the first loss element, and 1 to the second. Calls `ready` with an index as soon as all gradients from this index on are
  // complete.
  void add(const MicroBatch& which, std::span<const float> parameters, std::span<float> gradients,
           const Model<float>::Ready& ready);

 private:
  const MicroBatchOptions options_;
  Model<float>& model_;
  const Data data_;
  Buffer<float> own_;  // gradient of one micro-batch
};

}  // namespace language_model
