// The fast path: a short collective between processes of one host, without the executor. Every rank that has values for others
// sends them to each, and looks at its incoming frames until all are there. The frames are those that the executor would send,
// so each rank chooses for itself. If another frame comes first, or it takes long, the executor takes over (Engine::take_over).
//
// It is worth its code because the executor's generality costs more than a small exchange itself: at 1 KiB and two ranks four
// thousand instructions against a few hundred; at 8 KiB it is a third of the time, at 64 KiB a tenth.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "engine/group_core.h"
#include "schedules/collective_facts.h"
#include "transports/transport.h"
#include "wire/frame.h"

namespace unisono {

struct FastPath {
  static constexpr uint32_t world_max = FastPathPlan::world_max;
  static_assert(world_max <= 32, "missing has a bit for each");
  static constexpr uint64_t bytes_max = exchange_bytes_max;
  static constexpr uint64_t short_bytes = 4096;  // what the shared-memory transport keeps in its small slots

  enum class Found : uint8_t { nothing_yet, all, something_else };

  GroupCore* group = nullptr;
  const FastPathPlan* plan = nullptr;
  OperationRequest* request = nullptr;
  Transport* route = nullptr;
  FrameHeader header;                         // as sent; what comes has to be its like
  std::array<const void*, world_max> values;  // that are added, by rank: of those that are there
  uint32_t missing = 0;                       // ranks whose frame is not there yet, as bits
  Rank last_rank = 0;                         // the last one that was found
  Nanos started = 0, filling = 0, adding = 0;
};

}  // namespace unisono
