// The frame: 64 bytes of header, then payload_bytes of payload. The only unit that crosses a link between formed peers.
//
// Layout is little-endian and fixed (docs/reference/wire_format.md); the struct is the layout. A header is valid only if magic,
// version, kind, payload bound and header_checksum hold (check_frame); nothing else in it may be trusted to be in range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace unisono {

enum class FrameKind : uint8_t {
  data = 1,     // one slice of one chunk of an operation
  credit = 2,   // the receiver of an operation's data allows more of it: payload_bytes 0, `amount` = total bytes allowed
  failed = 3,   // the sender aborted an operation: payload = u8 code, u32 length, text
  control = 5,  // membership messages: opaque to the engine
  goodbye = 6,  // the receiver was removed from the group
  lossy = 7,  // lossy operations: which call the sender's `operation` is, if not the same as before; or messages about them in
              // the payload
  elastic = 8,  // one message between peers of an elastic run (elastic/wire/elastic_message.h), or a message of their links
};

inline constexpr uint32_t frame_magic = 0x494E5531;  // "1UNI" in memory order: 31 55 4E 49
inline constexpr uint8_t frame_version = 1;
inline constexpr uint32_t payload_bytes_max = 16u << 20;  // a slice never exceeds it

enum FrameFlags : uint8_t { frame_flag_payload_checksum = 1 };

struct FrameHeader {
  uint32_t magic = frame_magic;
  uint8_t version = frame_version;
  FrameKind kind = FrameKind::data;
  uint8_t flags = 0;
  uint8_t codec = 0;          // codec number; 0 = plain
  uint32_t epoch = 0;         // epoch of the roster; frames of another epoch are dropped and counted
  uint32_t group = 0;         // group number, equal on all members
  uint64_t operation = 0;     // operation number in the group
  uint32_t sender = 0;        // rank of the sender in the group
  uint16_t round = 0;         // round of the schedule
  uint16_t contributors = 0;  // reserved for partial results: 0 = all
  uint32_t chunk = 0;
  uint32_t slice = 0;
  uint64_t amount = 0;      // data: elements of the whole operation, or of this chunk where sizes are uneven; credit: bytes
  uint32_t descriptor = 0;  // hash of what all ranks must agree on (CallDescriptor::bits in executor/request.h)
  uint32_t payload_bytes = 0;
  uint32_t payload_checksum = 0;  // CRC-32C if frame_flag_payload_checksum
  uint32_t header_checksum = 0;   // CRC-32C of the bytes before it
};
static_assert(sizeof(FrameHeader) == 64);
static_assert(offsetof(FrameHeader, header_checksum) == 60);

// True if the two differ at most in magic and checksums.
inline bool alike(const FrameHeader& a, const FrameHeader& b) {
  constexpr size_t begin = offsetof(FrameHeader, version), end = offsetof(FrameHeader, payload_checksum);
  return std::memcmp(reinterpret_cast<const char*>(&a) + begin, reinterpret_cast<const char*>(&b) + begin, end - begin) == 0;
}

// Why a header is refused; the transports count refusals by fault.
enum class FrameFault : uint8_t { none = 0, magic, version, kind, payload_bytes, header_checksum, payload_checksum };
inline constexpr int frame_fault_count = 7;
const char* name(FrameFault fault);

// Fills in header_checksum. Call it last.
void seal_frame(FrameHeader& header);
// Checks everything that needs no context.
FrameFault check_frame(const FrameHeader& header);

}  // namespace unisono
