// One rank's state of error feedback, as bytes for checkpoints. After loading, training goes on to the bit as if it had not
// stopped.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "compressors/arc_top_k.h"
#include "compressors/power_sgd.h"
#include "training/reducer/error_feedback.h"

namespace unisono {

// Hashes of the options that change what is sent. Tensors are not in them.
uint64_t digest(const ArcOptions& arc, const FeedbackOptions& feedback);
uint64_t digest(const PowerOptions& power, const FeedbackOptions& feedback);

struct FeedbackCheckpoint {
  uint32_t world = 0, rank = 0;  // when it was written
  uint64_t options = 0;          // their digest
  uint64_t step = 0;             // the next one
  FeedbackStore store;
};

Bytes encode(const FeedbackCheckpoint& checkpoint);
// corrupt: cut, changed, or nothing of the kind. Allocates no more than there are bytes.
Result<FeedbackCheckpoint> decode_checkpoint(ByteView bytes);

// Whether a rank may go on from there. invalid: it was another rank (its residuals are not this one's), the world had another
// size (roster_changed), or options differ (config_mismatch). A caller that wants to start from nothing leaves the store empty.
Status check(const FeedbackCheckpoint& checkpoint, uint32_t world, uint32_t rank, uint64_t options);

}  // namespace unisono
