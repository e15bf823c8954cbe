// Messages between a joiner and its donors, and their bytes. They are bounded, and decoding trusts no input.
//
// A state is cut into parts: the chunks of the vector, then the pieces of each blob in turn. A manifest lists them with their
// digests. The manifest's own digest names the state, so equal names mean equal bytes. A joiner asks, gets the manifest and
// with it one of a few slots, then requests parts by number. The first byte is ElasticChannel::state, the second the kind
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

inline constexpr size_t state_piece_bytes = 256 * 1024;  // piece of a blob; as large as most chunks
inline constexpr size_t state_blobs_max = 64;
inline constexpr size_t state_blob_name_bytes_max = 255;
inline constexpr uint64_t state_blob_bytes_max = uint64_t{1} << 30;  // all blobs together
inline constexpr size_t state_chunks_max = size_t{1} << 20;          // 2^36 elements; their digests fit into one message
inline constexpr size_t state_window_max = 16;  // parts that a joiner may have requested from one donor at a time

struct StateBlobEntry {
  std::string name;
  uint64_t bytes = 0;
  std::vector<uint64_t> digests;  // digest64 of each piece; ceil(bytes / state_piece_bytes) of them
  friend bool operator==(const StateBlobEntry&, const StateBlobEntry&) = default;
};
struct StateManifest {
  int64_t step = -1;  // the last averaging step that it includes; -1: none yet
  uint64_t schema = 0;
  uint64_t vector_bytes = 0;
  std::vector<uint64_t> chunk_digests;
  std::vector<StateBlobEntry> blobs;  // by ascending name, no name twice
  friend bool operator==(const StateManifest&, const StateManifest&) = default;

  // Number of chunks and pieces.
  uint32_t part_count() const;
};
void write_manifest(ByteWriter& writer, const StateManifest& manifest);
// Names the state: digest64 of the bytes that write_manifest writes. Never 0, which stands for no state.
uint64_t digest(const StateManifest& manifest);

// Joiner to donor.
struct StateAsk {
  uint64_t schema = 0;
  uint64_t wanted = 0;  // only a state with this digest; 0: any
};
struct StateWant {
  uint64_t state = 0;           // its digest
  std::vector<uint32_t> parts;  // at most state_window_max. Empty: a sign of life of a joiner that waits for earlier requests
};
struct StateDone {};  // the slot is free again

// Donor to joiner.
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
struct StateAlive {};  // a sign of life: the requested parts will come
struct StatePart {
  uint64_t state = 0;
  uint32_t part = 0;
  ByteView bytes;  // points into the message that was read
};

using StateMessage = std::variant<StateAsk, StateWant, StateDone, StateOffer, StateBusy, StateRefused, StateAlive, StatePart>;

SharedBuffer encode(const StateMessage& message);
// The same bytes as encode(StatePart), without a copy of the part.
SharedMessage part_message(uint64_t state, uint32_t part, SharedBuffer bytes);
// Reads a whole message, with its channel. Error: corrupt, naming the field, if it is cut, over a limit, or has bytes left
// over.
Result<StateMessage> decode_state(ByteView bytes);
// True for StateAsk, StateWant and StateDone, which a StateDonor handles; false for all others, which a StateLoader handles.
bool for_donor(const StateMessage& message);

const char* name(StateRefusal refusal);

}  // namespace unisono
