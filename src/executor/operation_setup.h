// The parameters of one operation. The engine sets them.
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
  const Plan* plan = nullptr;  // must outlive the operation
  Rank self = 0;
  uint32_t world = 1;
  uint64_t slice_bytes = 256u << 10;
  FlowLimits limits;
  FrameHeader frame;    // holds the epoch, group, operation and sender; each message sets the other fields
  uint64_t number = 0;  // the number that messages and reports show for the operation
  // For the fast path. true: all messages were sent before start(). The plan must have one round, and each chunk must be one
  // slice.
  bool already_sent = false;
  bool already_confirmed = false;    // for the fast path. true: the messages of the confirmation were sent before start()
  Codec codec{};                     // the codec that is used; request.codec points to it
  std::string_view codec_note = {};  // says why the operation does not use the requested codec; static text
  bool hold_views = true;  // true: contributions that this rank needs only later may stay in the memory of the transport
  bool is_next = true;     // true: this rank has ended all operations that come before this one on every rank
};

}  // namespace unisono
