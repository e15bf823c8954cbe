// A process's share of a batch, computed in several micro-batches of equally many sequences, whose gradients add up.
//
// Which sequences a micro-batch has depends on its position alone, counted in micro-batches from the start of the process's own
// data: in order they are those that the whole share would have had, step by step. A micro-batch can be made to take longer, by
// a law: the process then sleeps before it computes, and nothing cuts that short.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "lab/drop_compute/delay_model.h"
#include "research/model/model.h"
#include "research/model/text.h"
#include "unisono/drop_compute.h"

namespace language_model {

// Behind the gradients: the sum of the losses of the micro-batches that they are of, and how many those are.
inline constexpr size_t loss_elements = 2;
// Mean over those micro-batches, also of averages over ranks; not a number if there is none.
float loss_of(std::span<const float> gradients);

struct MicroBatchOptions {
  uint32_t count = 0;  // of each part of a batch; 0: parts are computed whole
  // By how much they take longer than the law's `base`; with delay_base, all that the law says, for models that compute in no
  // time.
  std::optional<unisono::sim::DelayModel> delay = {};
  bool delay_base = false;
  // None: all are computed, and nobody looks at a clock.
  std::optional<unisono::DropOptions> drop = {};
};

struct MicroBatch {
  size_t part = 0;        // of the batch; of data-parallel ranks, the rank
  uint64_t position = 0;  // in that part's data
  uint64_t step = 0;      // when it is computed, from 0, and
  uint32_t number = 0;    // as which one of the step: what its delay depends on
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
  // How long it sleeps.
  double delay_s(const MicroBatch& which) const;
  // Adds the gradient of the mean loss, divided by the number of micro-batches, and behind it the loss and 1. ready: from where
  // on gradients have it.
  void add(const MicroBatch& which, std::span<const float> parameters, std::span<float> gradients,
           const Model<float>::Ready& ready);

 private:
  const MicroBatchOptions options_;
  Model<float>& model_;
  const Data data_;
  Buffer<float> own_;  // gradient of one micro-batch
};

}  // namespace language_model
