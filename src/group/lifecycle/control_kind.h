// The first byte of a control message: which state machine of the process it is for.
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
  measured = 7
};

}  // namespace unisono
