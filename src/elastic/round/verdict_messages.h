// What the members of a group say to each other to agree on which chunks of a round are applied: bytes <-> values.
//
// They travel inside of a round's messages, which name the group and so tell how many chunks there are. The words are those of
// single-decree Paxos (Lamport 1998); a ballot is one attempt, run by one member, that proposes one value at most.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "base/bytes.h"
#include "elastic/round/chunk_bits.h"
#include "unisono/status.h"

namespace unisono {

// "I hold the results of these chunks." To the proposer of a ballot.
struct VerdictHave {
  ChunkBits chunks;
  friend bool operator==(const VerdictHave&, const VerdictHave&) = default;
};
// "Let these chunks be applied."
struct VerdictPropose {
  uint32_t ballot = 0;
  ChunkBits value;
  friend bool operator==(const VerdictPropose&, const VerdictPropose&) = default;
};
// "I have accepted this." To all; a majority of them decides.
struct VerdictAccept {
  uint32_t ballot = 0;
  ChunkBits value;
  friend bool operator==(const VerdictAccept&, const VerdictAccept&) = default;
};
// "Take part in no ballot below this one any more, and say what you accepted."
struct VerdictPrepare {
  uint32_t ballot = 0;
  friend bool operator==(const VerdictPrepare&, const VerdictPrepare&) = default;
};
struct VerdictPromise {
  uint32_t ballot = 0;
  std::optional<VerdictAccept> accepted;  // its newest
  ChunkBits have;                         // none, if what it accepted before its own repair was over is all that it can tell
  friend bool operator==(const VerdictPromise&, const VerdictPromise&) = default;
};
// "This was decided."
struct VerdictDecided {
  ChunkBits value;
  friend bool operator==(const VerdictDecided&, const VerdictDecided&) = default;
};

using VerdictMessage = std::variant<VerdictHave, VerdictPropose, VerdictAccept, VerdictPrepare, VerdictPromise, VerdictDecided>;

void write_verdict(ByteWriter& writer, const VerdictMessage& message);
// Reads one message; what follows it stays in the reader. corrupt, naming the field, if it is cut, of an unknown kind, or about
// another number of chunks; `message` is then unspecified.
Status read_verdict(ByteReader& reader, size_t chunks, VerdictMessage& message);

}  // namespace unisono
