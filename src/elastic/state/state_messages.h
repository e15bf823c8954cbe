// What a joiner and its donors say to each other about the state that it loads: bytes <-> values, bounded, trusting nothing.
//
// A state is cut into parts: the chunks of the vector, then the pieces of each blob in turn. A manifest lists them with their
// digests; its own digest names the state, so equal names mean equal bytes. A joiner asks, gets the manifest and with it one of
// few slots, then requests parts by number. The first byte is ElasticChannel::state, the second the kind
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

inline constexpr size_t state_piece_bytes = 256 * 1024;  // of a blob; as large as most chunks
inline constexpr size_t state_blobs_max = 64;
inline constexpr size_t state_blob_name_bytes_max = 255;
inline constexpr uint64_t state_blob_bytes_max = uint64_t{1} << 30;  // all blobs together
inline constexpr size_t state_chunks_max = size_t{1} << 20;          // 2^36 elements; their digests fit into one message
inline constexpr size_t state_window_max = 16;                       // parts that a joiner may have asked one donor for

struct StateBlobEntry {
  std::string name;
  uint64_t bytes = 0;
  std::vector<uint64_t> digests;  // digest64 of each piece; ceil(bytes / state_piece_bytes) of them
  friend bool operator==(const StateBlobEntry&, const StateBlobEntry&) = default;
};
struct StateManifest {
  int64_t step = -1;  // the last one that is in it; -1: none yet
  uint64_t schema = 0;
  uint64_t vector_bytes = 0;
  std::vector<uint64_t> chunk_digests;
  std::vector<StateBlobEntry> blobs;  // by ascending name, no two alike
  friend bool operator==(const StateManifest&, const StateManifest&) = default;

  // Chunks and pieces.
  uint32_t part_count() const;
};
void write_manifest(ByteWriter& writer, const StateManifest& manifest);
// Names the state: digest64 of what write_manifest writes. Never 0, which says that there is none.
uint64_t digest(const StateManifest& manifest);

// Joiner to donor.
struct StateAsk {
  uint64_t schema = 0;
  uint64_t wanted = 0;  // only a state of this digest; 0: whichever there is
};
struct StateWant {
  uint64_t state = 0;           // its digest
  std::vector<uint32_t> parts;  // at most state_window_max; none: the joiner still waits for what it asked for before
};
struct StateDone {};  // the slot is free

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
struct StateAlive {};  // what was asked for will come
struct StatePart {
  uint64_t state = 0;
  uint32_t part = 0;
  ByteView bytes;  // inside of the message that was read
};

using StateMessage = std::variant<StateAsk, StateWant, StateDone, StateOffer, StateBusy, StateRefused, StateAlive, StatePart>;

SharedBuffer encode(const StateMessage& message);
// The same as of a StatePart, without a copy of its bytes.
SharedMessage part_message(uint64_t state, uint32_t part, SharedBuffer bytes);
// Of a whole message, with its channel. Corrupt, naming the field, if it is cut, over a limit, or has bytes left over.
Result<StateMessage> decode_state(ByteView bytes);
// Ask, want and done are for a StateDonor, all others for a StateLoader.
bool for_donor(const StateMessage& message);

const char* name(StateRefusal refusal);

}  // namespace unisono
