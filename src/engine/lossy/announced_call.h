// The announcement of a lossy call. Datagrams do not describe the call to which they belong, so a rank announces a call that is
// new, reliably, to all other ranks. The announcement holds the text of the call, because the descriptor has only a hash of
// some arguments. A rank whose call differs can then say at once what differs, with both values.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/random.h"
#include "executor/call_text.h"
#include "executor/request.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

struct AnnouncedCall {
  static constexpr uint8_t kind = 3;  // The first byte of an announcement, which lossy groups send to each other.

  uint32_t op = 0;  // the number of the call
  CallDescriptor call{};
  std::string text{};  // result of call_text(); at most call_text_max bytes

  // The bytes are: u8 kind, u32 op, u32 descriptor, u64 amount, u32 length, text.
  Bytes encode() const;
  // Error corrupt: the message is too short or too long, or its text is too long.
  static Result<AnnouncedCall> decode(ByteView bytes);
  bool equals(const CallDescriptor& other) const { return call.bits == other.bits && call.amount == other.amount; }
  // Returns a hash of the descriptor, which data of the call carries. It is never 0: 0 stands for data without a hash. Of two
  // calls that differ, one pair in 65,535 has equal hashes. Only announcements tell such calls apart.
  uint16_t mark() const { return static_cast<uint16_t>(mix64(call.bits ^ mix64(call.amount)) % 0xFFFF + 1); }
};

// Says how the calls of two ranks differ. Uses the texts if the descriptors differ only in a hash.
struct CallAtRank {
  Rank rank = 0;
  std::string location{};  // empty for the rank that makes the text
  const AnnouncedCall& call;
};
std::string announced_difference(const CallAtRank& theirs, const CallAtRank& ours);

}  // namespace unisono
