// The first byte of a control message. It selects the state machine that receives the message.
#pragma once

#include <cstdint>

namespace unisono {

enum class ControlKind : uint8_t {
  reform = 1,
  topology = 2,
  ready = 3,
  probe = 4,
  probe_answer = 5,
  measure = 6,
  measured = 7,
  confirmed = 8
};

}  // namespace unisono
