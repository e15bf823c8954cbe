// Messages between a joiner and its donors, and their encoding. All sizes are bounded, and decoding trusts no input.
//
// A state is cut into parts: first the chunks of the vector, then the pieces of each blob. A manifest lists the parts with
// their digests. The digest of the manifest identifies the state, so equal digests mean equal bytes. A joiner asks a donor for
// a state. The donor gives the joiner one of its few slots, and sends the manifest. Then the joiner requests parts by their
// numbers. The first byte of a message is ElasticChannel::state, and the second byte is the kind
// (docs/reference/wire_format.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/shared_buffer.h"
#include "unisono/status.h"

namespace unisono {

// a blob is cut into pieces of this size, which is about the size of most chunks
inline constexpr size_t state_piece_bytes = 256 * 1024;
inline constexpr size_t state_blobs_max = 64;
inline constexpr size_t state_blob_name_bytes_max = 255;
inline constexpr uint64_t state_blob_bytes_max = uint64_t{1} << 30;  // for all blobs of a state together
// so many chunks hold 2^36 elements, and their digests fit into one message
inline constexpr size_t state_chunks_max = size_t{1} << 20;
inline constexpr size_t state_window_max = 16;  // a joiner requests at most this many parts from one donor at a time

struct StateBlobEntry {
  std::string name;
  uint64_t bytes = 0;
  std::vector<uint64_t> digests;  // the digest64 of each piece; there are ceil(bytes / state_piece_bytes) pieces
  friend bool operator==(const StateBlobEntry&, const StateBlobEntry&) = default;
};
struct StateManifest {
  int64_t step = -1;  // the state includes averaging steps up to this one; -1: none
  uint64_t schema = 0;
  uint64_t vector_bytes = 0;
  std::vector<uint64_t> chunk_digests;
  std::vector<StateBlobEntry> blobs;  // ordered by ascending name; all names differ
  friend bool operator==(const StateManifest&, const StateManifest&) = default;

  // Returns the number of parts of the state. The chunks come first, then the pieces of the blobs.
  uint32_t part_count() const;
};
void write_manifest(ByteWriter& writer, const StateManifest& manifest);
// Returns the number that identifies the state. It is the digest64 of the bytes that write_manifest writes, but never 0,
// because 0 means that there is no state.
uint64_t digest(const StateManifest& manifest);

// A joiner sends these messages to a donor.
struct StateAsk {
  uint64_t schema = 0;
  uint64_t wanted = 0;  // digest of the state that the joiner wants; 0: any state
};
struct StateWant {
  uint64_t state = 0;           // digest of the state
  std::vector<uint32_t> parts;  // requested parts, at most state_window_max; empty: only a sign of life
};
struct StateDone {};  // the joiner does not need its slot any more

// A donor sends these messages to a joiner.
struct StateOffer {
  StateManifest manifest;
};
struct StateBusy {
  uint32_t retry_after_ms = 0;
};
enum class StateRefusal : uint8_t { no_state = 1, other_state = 2, other_schema = 3, leaving = 4 };
struct StateRefused {
  StateRefusal reason = StateRefusal::no_state;
};
struct StateAlive {};  // a sign of life: the donor will send the requested parts
struct StatePart {
  uint64_t state = 0;
  uint32_t part = 0;
  ByteView bytes;  // after decoding, this points into the received message
};

using StateMessage = std::variant<StateAsk, StateWant, StateDone, StateOffer, StateBusy, StateRefused, StateAlive, StatePart>;

SharedBuffer encode(const StateMessage& message);
// Returns the bytes that encode(StatePart) would return, but without copying the part.
SharedMessage part_message(uint64_t state, uint32_t part, SharedBuffer bytes);
// Decodes a whole message, including its channel byte. Returns the error corrupt with the name of the faulty field if the
// message is too short or too long, or a number exceeds its limit.
Result<StateMessage> decode_state(ByteView bytes);
// Returns true if a StateDonor handles the message. A donor handles StateAsk, StateWant and StateDone. A StateLoader handles
// all other messages.
bool for_donor(const StateMessage& message);

const char* name(StateRefusal refusal);

}  // namespace unisono
