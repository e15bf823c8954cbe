// A process's share of a batch, computed in several micro-batches of equally many sequences, whose gradients add up.
//
// The sequences of a micro-batch depend only on its position, counted in micro-batches from the start of the process's own
// data. In order they are the sequences that the undivided share would have. A delay law can make micro-batches take longer:
// the process sleeps before it computes, and nothing interrupts that sleep.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "lab/drop_compute/delay_model.h"
#include "research/model/model.h"
#include "research/model/text.h"
#include "unisono/drop_compute.h"

namespace language_model {

// Two values behind the gradients: the sum of the losses of the micro-batches, and their number.
inline constexpr size_t loss_elements = 2;
// The mean loss over those micro-batches; it may be taken of averages over ranks, too. NaN if there is no micro-batch.
float loss_of(std::span<const float> gradients);

struct MicroBatchOptions {
  uint32_t count = 0;  // of each part of a batch; 0: parts are computed whole
  // The law for how much longer they take than its `base`. With delay_base they sleep for the whole time of the law: for models
  // that compute in much less than the base.
  std::optional<unisono::sim::DelayModel> delay = {};
  bool delay_base = false;
  // Without a value all micro-batches are computed, and no clock is read.
  std::optional<unisono::DropOptions> drop = {};
};

struct MicroBatch {
  size_t part = 0;        // of the batch; of data-parallel ranks, the rank
  uint64_t position = 0;  // in that part's data
  uint64_t step = 0;      // the step in which it is computed, from 0
  uint32_t number = 0;    // its number in the step; its delay depends on step and number
};

class MicroBatches {
 public:
  struct Data {
    const Text& text;
    uint64_t seed = 1;     // of the batches and of the delays
    size_t sequences = 1;  // of a micro-batch
  };
  // model is borrowed, and big enough for a micro-batch. options.count > 0.
  MicroBatches(const MicroBatchOptions& options, Model<float>& model, const Data& data)
      : options_(options), model_(model), data_(data), own_(model.layout().count) {}

  uint32_t count() const { return options_.count; }
  Batch batch_of(const MicroBatch& which) const;
  // How long the micro-batch sleeps.
  double delay_s(const MicroBatch& which) const;
  // Adds the gradient of the mean loss, divided by the number of micro-batches, and behind the gradients the loss and 1. ready:
  // called with the offset from which on the gradients are complete.
  void add(const MicroBatch& which, std::span<const float> parameters, std::span<float> gradients,
           const Model<float>::Ready& ready);

 private:
  const MicroBatchOptions options_;
  Model<float>& model_;
  const Data data_;
  Buffer<float> own_;  // gradient of one micro-batch
};

}  // namespace language_model
