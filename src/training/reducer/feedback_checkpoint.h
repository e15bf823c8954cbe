// Converts the error feedback state of one rank to bytes for checkpoints, and back. After loading a checkpoint, training
// continues exactly as if it had not stopped.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "compressors/arc_top_k.h"
#include "compressors/power_sgd.h"
#include "training/reducer/error_feedback.h"

namespace unisono {

// Return a hash of all options that change what is sent. The tensors are not part of the hash.
uint64_t digest(const ArcOptions& arc, const FeedbackOptions& feedback);
uint64_t digest(const PowerOptions& power, const FeedbackOptions& feedback);

struct FeedbackCheckpoint {
  uint32_t world = 0, rank = 0;  // world size and rank of the process that wrote the checkpoint
  uint64_t options = 0;          // digest() of the options that this process used
  uint64_t step = 0;             // the next step to run
  FeedbackStore store;
};

Bytes encode(const FeedbackCheckpoint& checkpoint);
// Returns corrupt if the bytes are truncated, changed, or no checkpoint. Never allocates more elements than the given bytes can
// hold.
Result<FeedbackCheckpoint> decode_checkpoint(ByteView bytes);

// Checks whether this rank may continue from the checkpoint. Returns invalid (roster_changed) if the world size or the rank
// differs, because residuals belong to one rank. Returns invalid (config_mismatch) if the options differ. After an error, the
// caller can start with an empty store, that is, without residuals.
Status check(const FeedbackCheckpoint& checkpoint, uint32_t world, uint32_t rank, uint64_t options);

}  // namespace unisono
