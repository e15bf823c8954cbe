// The frame: 64 bytes of header, then payload_bytes of payload. Everything that a reliable link delivers is a frame.
//
// The struct FrameHeader is the layout. It is little-endian and fixed (docs/reference/wire_format.md). check_frame() checks
// magic, version, kind and header_checksum, and it checks that payload_bytes is in range. All other fields may have any value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace unisono {

enum class FrameKind : uint8_t {
  data = 1,  // one slice of one chunk of an operation's data
  // The receiver of an operation's data tells the sender how many bytes it may send in total (`amount`). There is no payload.
  credit = 2,
  failed = 3,   // the sender aborted an operation; the payload is the code (u8), then a length (u32) and a text
  control = 5,  // a message about membership; the engine does not read it
  goodbye = 6,  // tells the receiver that it was removed from the group
  // Used by lossy operations. Without a payload, the frame announces the call with the number `operation`. With a payload, it
  // is a message about calls.
  lossy = 7,
  // A message between peers of an elastic run (elastic/wire/elastic_message.h), or a message about the link between them.
  elastic = 8,
  // The kinds from here on exist on TCP streams only. The transport handles them itself, and no sink sees them.
  confirm = 9,   // carries `confirmed` where no other frame flows back
  nothing = 10,  // stands for a frame whose payload was cancelled; the payload has no meaning
  leaving = 11,  // the last frame of a stream: its sender leaves in order
};

inline constexpr uint32_t frame_magic = 0x494E5531;  // "1UNI" in memory order: 31 55 4E 49
// Version 3: `sender` has 16 bits, and frames confirm what their sender has read.
inline constexpr uint8_t frame_version = 3;
inline constexpr uint32_t payload_bytes_max = 16u << 20;  // the largest FrameHeader::payload_bytes; no slice is larger

inline constexpr uint32_t frame_ranks_max = 65'535;  // a group has at most this many ranks, because `sender` has 16 bits

// Returns the value of FrameHeader::sender. The rank is below frame_ranks_max, because larger groups are refused.
inline uint16_t frame_sender(uint32_t rank) { return static_cast<uint16_t>(rank); }

enum FrameFlags : uint8_t {
  frame_flag_payload_checksum = 1,
  frame_flag_confirm_now = 2,  // on a TCP stream: the receiver confirms at once
};

struct FrameHeader {
  uint32_t magic = frame_magic;
  uint8_t version = frame_version;
  FrameKind kind = FrameKind::data;
  uint8_t flags = 0;
  uint8_t codec = 0;       // number of the codec; 0: the values are not encoded
  uint32_t epoch = 0;      // epoch of the roster; a frame with another epoch is dropped and counted
  uint32_t group = 0;      // group number, equal on all members
  uint64_t operation = 0;  // number of the operation in the group
  uint16_t sender = 0;     // rank of the sender in the group
  uint16_t round = 0;      // round of the schedule
  // On a TCP stream: the low half of the position up to which the frame's sender has read this stream. 0 everywhere else.
  uint32_t confirmed = 0;
  uint32_t chunk = 0;
  uint32_t slice = 0;
  // In a data frame: the number of elements of the operation (of this chunk, if the chunks differ in size). In a credit frame:
  // bytes.
  uint64_t amount = 0;
  // A hash of those properties of the call on which all ranks must agree (CallDescriptor::bits in executor/request.h).
  uint32_t descriptor = 0;
  uint32_t payload_bytes = 0;
  uint32_t payload_checksum = 0;  // CRC-32C of the payload, if frame_flag_payload_checksum is set
  uint32_t header_checksum = 0;   // CRC-32C of the header's first 60 bytes
};
static_assert(sizeof(FrameHeader) == 64);
static_assert(offsetof(FrameHeader, sender) == 24 && offsetof(FrameHeader, round) == 26);
static_assert(offsetof(FrameHeader, confirmed) == 28 && offsetof(FrameHeader, header_checksum) == 60);

// Returns true if the two headers are equal in all fields except magic and the two checksums.
inline bool same_except_checksums(const FrameHeader& a, const FrameHeader& b) {
  constexpr size_t begin = offsetof(FrameHeader, version), end = offsetof(FrameHeader, payload_checksum);
  return std::memcmp(reinterpret_cast<const char*>(&a) + begin, reinterpret_cast<const char*>(&b) + begin, end - begin) == 0;
}

// The reasons for which a header is refused. The transports count the refusals for each reason.
enum class FrameFault : uint8_t { none = 0, magic, version, kind, payload_bytes, header_checksum, payload_checksum };
inline constexpr int frame_fault_count = 7;
const char* name(FrameFault fault);

// Sets header_checksum. Call it after all other fields are set.
void seal_frame(FrameHeader& header);
// Checks magic, version, kind, payload_bytes and header_checksum. Kinds above `last` are refused: only TCP streams pass
// `leaving`.
FrameFault check_frame(const FrameHeader& header, FrameKind last = FrameKind::elastic);

}  // namespace unisono
