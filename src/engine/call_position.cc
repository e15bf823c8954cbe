#include "engine/call_position.h"

#include <string>
#include <utility>

#include "base/concat.h"

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
    return Status(Code::corrupt, concat("a call-position message has ", bytes.size(), " bytes and begins with ", first));
  return position;
}

std::string CallPosition::text() const {
  // Both counts include the call itself, so one of them is reduced by 1.
  return concat("calls ", to_string(call), in_lossy ? " with lossy delivery" : " with reliable delivery", ", after ",
                lossy - (in_lossy ? 1 : 0), " lossy and ", reliable - (in_lossy ? 0 : 1), " other calls");
}

}  // namespace unisono
