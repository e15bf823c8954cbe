// The description of one operation; the engine fills it in.
#pragma once

#include <cstdint>
#include <string_view>

#include "codecs/codec.h"
#include "executor/flow.h"
#include "executor/plan.h"
#include "executor/request.h"
#include "wire/frame.h"

namespace unisono {

struct OperationSetup {
  OperationRequest request;
  const Plan* plan = nullptr;  // outlives the operation
  Rank self = 0;
  uint32_t world = 1;
  uint64_t slice_bytes = 256u << 10;
  FlowLimits limits;
  FrameHeader frame;     // epoch, group, operation, sender; the rest is filled in per message
  uint64_t number = 0;   // as shown to people
  bool is_sent = false;  // fast path: all messages are already on their way; only plans of one round whose chunks are one slice
  Codec codec{};         // the codec used; the request refers to it
  std::string_view codec_note = {};  // why it is not the requested codec; static text
  bool hold_lent = true;             // contributions that wait for others may stay in the transport's memory
  bool is_next = true;               // no operation that all ranks began earlier is still in flight here
};

}  // namespace unisono
