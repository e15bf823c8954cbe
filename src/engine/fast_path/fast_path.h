// A short collective between processes of one host, without the executor: every rank that has something for others sends it to
// each of them and looks at what they sent until all of it is there. What it sends is what the executor would send, so the
// others need not do the same; where anything else turns up, or it takes long, the executor takes over (Engine::take_over).
//
// Worth its code because the executor's generality costs more than the exchange itself: at 1 KiB and two ranks four thousand
// instructions against a few hundred; at 8 KiB it is a third of the time, at 64 KiB a tenth.
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
