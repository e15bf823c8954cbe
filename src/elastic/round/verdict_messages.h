// The messages by which the members of a group agree on the chunks to apply, and the encoding of these messages.
//
// They travel inside a round's messages, which name the group and thereby the number of chunks. The names are those of
// single-decree Paxos (Lamport 1998). A ballot is one attempt by one member; it proposes at most one value.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "base/bytes.h"
#include "elastic/round/chunk_bits.h"
#include "unisono/status.h"

namespace unisono {

// To the proposer of a ballot: the sender holds the results of these chunks.
struct VerdictHave {
  ChunkBits chunks;
  friend bool operator==(const VerdictHave&, const VerdictHave&) = default;
};
// Proposes that these chunks be applied.
struct VerdictPropose {
  uint32_t ballot = 0;
  ChunkBits value;
  friend bool operator==(const VerdictPropose&, const VerdictPropose&) = default;
};
// To all: the sender has accepted this value. A majority of accepts decides.
struct VerdictAccept {
  uint32_t ballot = 0;
  ChunkBits value;
  friend bool operator==(const VerdictAccept&, const VerdictAccept&) = default;
};
// Asks the receiver to take part in no ballot below this one any more, and to report the value that it accepted.
struct VerdictPrepare {
  uint32_t ballot = 0;
  friend bool operator==(const VerdictPrepare&, const VerdictPrepare&) = default;
};
struct VerdictPromise {
  uint32_t ballot = 0;
  std::optional<VerdictAccept> accepted;  // its newest
  ChunkBits have;  // size 0: the sender accepted a value before its own repair ended, and has nothing else to report
  friend bool operator==(const VerdictPromise&, const VerdictPromise&) = default;
};
// Announces the decision.
struct VerdictDecided {
  ChunkBits value;
  friend bool operator==(const VerdictDecided&, const VerdictDecided&) = default;
};

using VerdictMessage = std::variant<VerdictHave, VerdictPropose, VerdictAccept, VerdictPrepare, VerdictPromise, VerdictDecided>;

void write_verdict(ByteWriter& writer, const VerdictMessage& message);
// Reads one message; what follows it stays in the reader. Error: corrupt, naming the field, if it is cut, of an unknown kind,
// or about another number of chunks; `message` is then unspecified.
Status read_verdict(ByteReader& reader, size_t chunks, VerdictMessage& message);

}  // namespace unisono
