// The messages with which the members of a group agree which chunks are applied, and the encoding of these messages.
//
// Each is the body of a round message (elastic/round/round_messages). That message names the group, so the number of chunks is
// known. The names are those of single-decree Paxos (Lamport 1998). In a ballot, one member tries to get a value decided; it
// proposes at most one value per ballot.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "base/bytes.h"
#include "elastic/round/chunk_bits.h"
#include "unisono/status.h"

namespace unisono {

// Tells the proposer of a ballot that the sender holds the results of these chunks.
struct VerdictHave {
  ChunkBits chunks;
  friend bool operator==(const VerdictHave&, const VerdictHave&) = default;
};
// Proposes to all members that these chunks be applied.
struct VerdictPropose {
  uint32_t ballot = 0;
  ChunkBits value;
  friend bool operator==(const VerdictPropose&, const VerdictPropose&) = default;
};
// Tells all members that the sender has accepted this value. The value is decided once a majority has accepted it in this
// ballot.
struct VerdictAccept {
  uint32_t ballot = 0;
  ChunkBits value;
  friend bool operator==(const VerdictAccept&, const VerdictAccept&) = default;
};
// Asks the receiver to take part in no lower ballot, and to report which value it has accepted.
struct VerdictPrepare {
  uint32_t ballot = 0;
  friend bool operator==(const VerdictPrepare&, const VerdictPrepare&) = default;
};
struct VerdictPromise {
  uint32_t ballot = 0;
  std::optional<VerdictAccept> accepted;  // what the sender accepted in its highest ballot; empty if it accepted nothing
  // The chunks whose results the sender holds. If its repair (the fetching of missing results) has not ended, all bits are
  // clear.
  ChunkBits have;
  friend bool operator==(const VerdictPromise&, const VerdictPromise&) = default;
};
// Announces the decision.
struct VerdictDecided {
  ChunkBits value;
  friend bool operator==(const VerdictDecided&, const VerdictDecided&) = default;
};

using VerdictMessage = std::variant<VerdictHave, VerdictPropose, VerdictAccept, VerdictPrepare, VerdictPromise, VerdictDecided>;

void write_verdict(ByteWriter& writer, const VerdictMessage& message);
// Reads one message. Bytes that follow it stay in the reader. Returns the error corrupt with the name of the faulty field if
// the message is too short, has an unknown kind, or has another number of chunks. `message` is then unspecified.
Status read_verdict(ByteReader& reader, size_t chunks, VerdictMessage& message);

}  // namespace unisono
