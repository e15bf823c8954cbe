// The limits and the counters of an engine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/flow.h"

namespace unisono {

struct EngineLimits {
  FlowLimits flow;
  size_t operations_max = 1024;  // how many operations may run at once; further ones are refused with unavailable
  // Frames of operations that this rank has not begun are kept, up to this number of bytes. A peer that exceeds it is
  // disconnected.
  size_t unexpected_bytes_max = size_t{1} << 30;
  size_t pool_keep_bytes = 64u << 20;
};

struct EngineCounters {
  uint64_t operations_ok = 0, operations_failed = 0;
  uint64_t frames_other_epoch = 0, frames_unknown_group = 0, frames_stale = 0, frames_refused = 0;
  uint64_t unexpected_frames = 0;
};

}  // namespace unisono
