#include "engine/lossy/announced_call.h"

#include <utility>

#include "base/concat.h"

namespace unisono {

Bytes AnnouncedCall::encode() const {
  return std::move(ByteWriter().write(kind).write(op).write(call.bits).write(call.amount).write_string(text)).take();
}

Result<AnnouncedCall> AnnouncedCall::decode(ByteView bytes) {
  ByteReader reader(bytes);
  const auto first = reader.read<uint8_t>();
  AnnouncedCall announced{.op = reader.read<uint32_t>()};
  announced.call.bits = reader.read<uint32_t>();
  announced.call.amount = reader.read<uint64_t>();
  announced.text = reader.read_string(call_text_max);
  if (!reader.done() || first != kind)
    return Status(Code::corrupt, concat("an announcement of a call has ", bytes.size(), " bytes and begins with ", first));
  return announced;
}

std::string announced_difference(const CallAtRank& theirs, const CallAtRank& ours) {
  const bool by_text =
      !differ_visibly(theirs.call.call, ours.call.call) && !theirs.call.text.empty() && !ours.call.text.empty();
  if (by_text)
    return call_difference({.rank = theirs.rank, .location = theirs.location, .text = theirs.call.text},
                           {.rank = ours.rank, .location = ours.location, .text = ours.call.text});
  return descriptor_difference({.rank = theirs.rank, .location = theirs.location, .descriptor = theirs.call.call},
                               {.rank = ours.rank, .location = ours.location, .descriptor = ours.call.call});
}

}  // namespace unisono
