#include "engine/call_position.h"

#include <string>
#include <utility>

namespace unisono {

Bytes CallPosition::encode() const {
  return std::move(ByteWriter()
                       .write(kind)
                       .write(uint32_t{rank})
                       .write(lossy)
                       .write(reliable)
                       .write(static_cast<uint8_t>(in_lossy))
                       .write(call.bits)
                       .write(call.amount))
      .take();
}

Result<CallPosition> CallPosition::decode(ByteView bytes) {
  ByteReader reader(bytes);
  const auto first = reader.read<uint8_t>();
  CallPosition position{.rank = reader.read<uint32_t>(),
                        .lossy = reader.read<uint32_t>(),
                        .reliable = reader.read<uint64_t>(),
                        .in_lossy = reader.read<uint8_t>() != 0,
                        .call = {}};
  position.call.bits = reader.read<uint32_t>();
  position.call.amount = reader.read<uint64_t>();
  if (!reader.done() || first != kind)
    return Status(Code::corrupt, "a position among calls has " + std::to_string(bytes.size()) + " bytes and begins with " +
                                     std::to_string(first));
  return position;
}

std::string CallPosition::text() const {
  // The call itself is among those that were begun.
  return "calls " + to_string(call) + (in_lossy ? " with lossy delivery" : " with reliable delivery") + ", after " +
         std::to_string(lossy - (in_lossy ? 1 : 0)) + " lossy and " + std::to_string(reliable - (in_lossy ? 0 : 1)) +
         " other calls";
}

}  // namespace unisono
