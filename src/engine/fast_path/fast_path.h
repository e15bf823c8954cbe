// The fast path runs a short collective between processes of one host without the executor. Each rank sends its values to the
// ranks that need them, and looks at incoming frames until all have arrived. The frames are the same as the executor's, so each
// rank decides on its own whether it uses the fast path. If another frame comes first, or if the wait is long, the executor
// takes over (Engine::take_over).
//
// Reason: the executor costs more than a small exchange. For 1 KiB and two ranks, it needs four thousand instructions, and the
// fast path needs a few hundred. Its overhead is a third of the time for 8 KiB, and a tenth for 64 KiB.
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
  // payloads of at most this size fit into the small slots of the shared-memory transport
  static constexpr uint64_t short_bytes = 4096;

  enum class Found : uint8_t { incomplete, all, unexpected_frame };

  GroupCore* group = nullptr;
  const FastPathPlan* plan = nullptr;
  OperationRequest* request = nullptr;
  Transport* route = nullptr;
  FrameHeader header;          // the header of the frames with data that are sent; received frames must match it
  FrameHeader confirmation;    // the same for confirmations; it is set only if the plan has some
  FrameHeader answer;          // the same for the root's answer (executor/confirmation.h)
  bool awaits_answer = false;  // true: the next frame must be the root's answer
  bool first_taken = false;    // true: the root's first frame was taken from the transport; take_over() must pass it on
  // The values to add, indexed by rank. An entry is valid once the frame of its rank has arrived.
  std::array<const void*, world_max> values;
  uint32_t missing = 0;  // bit set of the ranks whose frames have not arrived
  Rank last_rank = 0;    // the rank whose frame was found last
  Nanos started = 0, filling = 0, adding = 0;
};

}  // namespace unisono
