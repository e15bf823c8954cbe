// What one operation is: filled in by who starts it.
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
  uint64_t number = 0;   // as people are told it
  bool is_sent = false;  // all messages are on their way already; only of plans of one round, whose chunks are one slice
  Codec codec{};         // that is used; the request's is this one
  std::string_view codec_note = {};  // why it is not the codec that was asked for; static text
  bool hold_lent = true;             // contributions that wait for others may stay in the transport's memory
  bool is_next = true;               // nothing that all ranks began before it is in flight here
};

}  // namespace unisono
