// The datagram of UDP links: a header of 56 bytes, then the payload. An IP packet holds at most one datagram.
//
// The struct DatagramHeader is the layout. It is little-endian and fixed. A receiver uses a datagram only after it has passed
// all checks below, including the check of its tag (a keyed checksum). No datagram carries an offset: the receiver computes the
// position of the payload from sizes on which both ends agreed before. For the layout and the order of checks, see
// docs/reference/wire_format.md and docs/design/methods/packet_loss.md, "Keys and refusals".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/siphash.h"
#include "wire/stream.h"

namespace unisono {

enum class DatagramKind : uint8_t {
  data = 0,
  repair_request = 1,
  feedback = 2,
  end = 3,
  path_probe = 4,
  control = 5,
  control_ack = 6,
  // The next three kinds are for links that carry whole frames reliably (docs/reference/wire_format.md). Each of these links
  // has its own epoch. In a datagram of the kind `fragment` (transports/udp/reliable/udp_fragments.h), four header fields have
  // these meanings:
  // - `op`: number of the frame on this link
  // - `packet_index`: index of the fragment in the frame
  // - `slice`: size of a full fragment in bytes
  // - `deadline_us`: size of the whole frame in bytes, including its header
  fragment = 7,      // a piece of a frame
  fragment_ack = 8,  // transports/udp/reliable/udp_loss_detector.h describes its payload
  hello = 9,         // sets up a link; see transports/udp/udp_handshake.h
};
inline constexpr uint8_t datagram_kind_count = 10;

// `part` is for datagrams of the kind `data`: the payload is a RangePart (below) and a part of a range.
enum DatagramFlags : uint8_t { datagram_tail = 1, datagram_repaired = 2, datagram_part = 4 };

inline constexpr uint16_t datagram_magic = 0x5455;
inline constexpr uint8_t datagram_version = 1;
inline constexpr uint32_t datagram_header_bytes = 56,
                          datagram_tagged_bytes = 48;  // the tag covers the first 48 bytes of the header
// An encrypted datagram has a tag of 16 bytes, so its header is longer. Its payload is encrypted. The sockets know nothing of
// that: for them, the last 8 bytes of the tag belong to the payload.
inline constexpr uint32_t encrypted_header_bytes = 64, encryption_bytes = encrypted_header_bytes - datagram_header_bytes;
inline constexpr uint32_t ranges_per_slice = 4096;
// Every path must carry datagrams of this size. RFC 8899, section 5.1.2, calls it BASE_PLPMTU.
inline constexpr uint32_t base_datagram_bytes = 1200;

struct DatagramHeader {
  uint16_t magic = datagram_magic;
  uint8_t version = datagram_version;
  DatagramKind kind = DatagramKind::data;
  uint32_t epoch = 0;
  uint64_t run_id = 0;                // random number of the job
  uint32_t op = 0;                    // number of the operation; each operation adds 1, and the number wraps
  uint16_t sender = 0, receiver = 0;  // ranks of the sender and the receiver
  uint8_t phase = 0;                  // 0: contributions, 1: results
  uint8_t flags = 0;
  uint16_t slice = 0;
  uint32_t packet_index = 0;  // index of the datagram in the slice
  uint16_t payload_bytes = 0;
  // In results of sums: how many ranks contributed to the range. In other data: a hash of the call, which shows whether sender
  // and receiver make the same call, or 0 if the sender gives no hash. In other kinds: 0.
  uint16_t contributors = 0;
  uint32_t flow_seq = 0;     // counts the datagrams from this sender to this receiver
  uint32_t sent_at_us = 0;   // when it was sent, on the sender's clock; wraps
  uint32_t deadline_us = 0;  // the sender's hard deadline for this phase
  uint64_t tag = 0;
};
static_assert(sizeof(DatagramHeader) == datagram_header_bytes && offsetof(DatagramHeader, flow_seq) == 36 &&
              offsetof(DatagramHeader, tag) == 48);

// The reasons for which a datagram is dropped, in the order of the checks. Only the first fault of a datagram is counted. A
// datagram that is dropped has no other effect.
enum class DatagramFault : uint8_t {
  none = 0,
  too_short,
  magic,
  version,
  kind,
  run,
  epoch,
  receiver,
  sender,
  address,
  length,
  tag,
  op_old,
  op_ahead,
  place,
  size,
  duplicate,
  late
};
inline constexpr int datagram_fault_count = 18;
const char* name(DatagramFault fault);

// How the tags of datagrams are made. With `mac`, a tag is a SipHash, and no process outside the group can make a valid tag.
// With `checksum`, a tag is a CRC-32C. It only detects damage, so it is meant for trusted links.
enum class DatagramAuth : uint8_t { mac = 0, checksum = 1 };

// The key and the method with which the tags of one link are made.
struct DatagramSeal {
  SipKey key;
  DatagramAuth auth = DatagramAuth::mac;
};
// The input of a tag: the key, the first datagram_tagged_bytes bytes of the header, and the payload.
struct DatagramTagged {
  SipMessage message;
  DatagramAuth auth = DatagramAuth::mac;
};
inline DatagramTagged tagged(std::span<const std::byte> header, std::span<const std::byte> payload, const DatagramSeal& seal) {
  return {.message = {seal.key, header.first(datagram_tagged_bytes), payload}, .auth = seal.auth};
}
inline constexpr size_t datagrams_per_batch = 88;  // two 64 KiB sends with segmentation offload hold this many Ethernet packets
// Sets tags[i] to the tag of datagrams[i]. There may be at most datagrams_per_batch datagrams. One call for several datagrams
// costs less than one call for each of them; see siphash.h.
void make_tags(std::span<const DatagramTagged> datagrams, std::span<uint64_t> tags);
// Sets header.tag. Call it after all other fields are set. Requires header.payload_bytes == payload.size().
void seal_datagram(DatagramHeader& header, std::span<const std::byte> payload, const DatagramSeal& seal);

// Makes the checks for which no group is needed: too_short, magic, version, kind and flags. bytes_max is the size of a full
// datagram; only path probes may be longer. If the result is DatagramFault::none, `header` holds a copy of the datagram's
// header.
DatagramFault check_shape(std::span<const std::byte> datagram, uint32_t bytes_max, DatagramHeader& header);

// One epoch of a group, as the member with the rank `self` sees it.
struct DatagramGroup {
  uint64_t run_id = 0;
  uint32_t epoch = 0;
  Rank self = 0;
  uint32_t world = 0;
  DatagramAuth auth = DatagramAuth::mac;
  GroupKey key{};
};
// Checks run, epoch, receiver and sender. The transport checks the sender's address afterwards.
DatagramFault check_group(const DatagramHeader& header, const DatagramGroup& group);
// Compares two tags. The comparison always takes the same time, so an attacker learns nothing about the expected tag from it.
constexpr bool same_tag(uint64_t a, uint64_t b) { return (a ^ b) == 0; }
DatagramFault check_length(const DatagramHeader& header, std::span<const std::byte> datagram,
                           uint32_t header_bytes = datagram_header_bytes);
// Checks the length and the tag. `seal` is the one for the link from header.sender to this rank.
DatagramFault check_tag(const DatagramHeader& header, std::span<const std::byte> datagram, const DatagramSeal& seal);
// Returns how many operations `op` is ahead of `current`. The result -1 means that `op` is the operation just before `current`.
constexpr int32_t op_distance(uint32_t op, uint32_t current) { return static_cast<int32_t>(op - current); }

// The payload of a repair request is the index of a range, which is a piece of the slice named in the header, and then a
// bitmap. Bit k is 1 if range index + k is missing. Bit 0 is in byte 0. If the bitmap is empty, the receiver needs nothing more
// of this phase, so the sender may drop the stream. If no bit of the bitmap is 1, the datagram answers a request for this
// stream, which its sender will send: it lives, and waits for the rank `index` before. If that is its own rank, it is sending
// the stream.
inline constexpr size_t repair_bitmap_bytes_max = ranges_per_slice / 8;
inline constexpr std::array<std::byte, 1> pending_bitmap{};
// Returns what a repair request says. `index` and `bitmap` are its payload.
StreamRequest stream_request(const DatagramHeader& header, uint32_t index, std::span<const std::byte> bitmap);

// If the path no longer carries a whole range in one datagram, the range is sent in parts. Part i holds the bytes
// [i * range_part_bytes, (i + 1) * range_part_bytes) of the range; the last part may be shorter. A RangePart comes first. In an
// encrypted datagram, a part is shorter by encryption_bytes.
struct RangePart {
  uint16_t index = 0;
  uint16_t range_bytes = 0;  // size of the whole range
  friend bool operator==(const RangePart&, const RangePart&) = default;
};
static_assert(sizeof(RangePart) == 4);
constexpr uint32_t range_part_bytes_with(uint32_t header_bytes) {
  return base_datagram_bytes - header_bytes - static_cast<uint32_t>(sizeof(RangePart));
}
inline constexpr uint32_t range_part_bytes = range_part_bytes_with(datagram_header_bytes);

// The payload of a feedback datagram. It has 24 bytes.
struct FlowFeedback {
  uint32_t received = 0;  // number of datagrams received since the epoch began
  uint32_t highest_flow_seq = 0;
  uint32_t own_drops = 0;        // number of datagrams lost because the receiver's socket buffer was full
  uint32_t echo_sent_at_us = 0;  // sent_at_us of the datagram that arrived last
  uint32_t echo_held_us = 0;     // how long before this feedback that datagram arrived
  // The mean of (arrival time - sent_at_us) over the datagrams since the last feedback. It contains the difference between the
  // two clocks.
  int32_t delay_us = 0;
  friend bool operator==(const FlowFeedback&, const FlowFeedback&) = default;
};
static_assert(sizeof(FlowFeedback) == 24);

}  // namespace unisono
