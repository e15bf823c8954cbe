// The datagram of UDP links: 56 bytes of header, then payload; at most one per IP packet.
//
// Layout is little-endian and fixed (docs/reference/wire_format.md); the struct is the layout. A receiver believes a datagram
// only after check_datagram and its tag. It computes where the payload belongs from what both ends agreed on before, never from
// the datagram. The layout and the order of checks come from docs/reference/wire_format.md and
// docs/design/methods/packet_loss.md, "Keys and refusals".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/siphash.h"

namespace unisono {

enum class DatagramKind : uint8_t {
  data = 0,
  repair_request = 1,
  feedback = 2,
  end = 3,
  path_probe = 4,
  control = 5,
  control_ack = 6,
  // The next three are for links that carry whole frames reliably (docs/reference/wire_format.md). Each such link has an epoch
  // of its own.
  fragment = 7,  // op: number of the frame on this link; packet_index: of the fragment; slice: bytes of a full fragment of this
                 // frame; deadline_us: bytes of the whole frame, header included. See transports/udp/reliable/udp_fragments.h
  fragment_ack = 8,  // payload: see transports/udp/reliable/udp_loss_detector.h
  hello = 9,         // makes a link: transports/udp/udp_handshake.h
};
inline constexpr uint8_t datagram_kind_count = 10;

enum DatagramFlags : uint8_t { datagram_tail = 1, datagram_repaired = 2 };

inline constexpr uint16_t datagram_magic = 0x5455;
inline constexpr uint8_t datagram_version = 1;
inline constexpr uint32_t datagram_header_bytes = 56,
                          datagram_tagged_bytes = 48;  // bytes at the start of the header that the tag covers
inline constexpr uint32_t ranges_per_slice = 4096;

struct DatagramHeader {
  uint16_t magic = datagram_magic;
  uint8_t version = datagram_version;
  DatagramKind kind = DatagramKind::data;
  uint32_t epoch = 0;
  uint64_t run_id = 0;                // random, one per job
  uint32_t op = 0;                    // +1 per operation, wraps
  uint16_t sender = 0, receiver = 0;  // ranks
  uint8_t phase = 0;                  // 0 contribute, 1 result
  uint8_t flags = 0;
  uint16_t slice = 0;
  uint32_t packet_index = 0;  // in the slice
  uint16_t payload_bytes = 0;
  uint16_t contributors = 0;  // K in phase 1, else 0
  uint32_t flow_seq = 0;      // +1 per datagram of this sender to this receiver
  uint32_t sent_at_us = 0;    // sender's clock, wraps
  uint32_t deadline_us = 0;   // sender's t_hard
  uint64_t tag = 0;
};
static_assert(sizeof(DatagramHeader) == datagram_header_bytes && offsetof(DatagramHeader, flow_seq) == 36 &&
              offsetof(DatagramHeader, tag) == 48);

// Why a datagram is dropped, in the order of the checks. Only the first fault is counted, and the datagram has no other effect.
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

// mac: nobody outside the group can make a valid tag. checksum: CRC-32C, which detects damage only; for trusted links.
enum class DatagramAuth : uint8_t { mac = 0, checksum = 1 };

// The key and method for the tags of one link.
struct DatagramSeal {
  SipKey key;
  DatagramAuth auth = DatagramAuth::mac;
};
// The input of a tag: the key, the first datagram_tagged_bytes of the header, and the payload.
struct DatagramTagged {
  SipMessage message;
  DatagramAuth auth = DatagramAuth::mac;
};
inline DatagramTagged tagged(std::span<const std::byte> header, std::span<const std::byte> payload, const DatagramSeal& seal) {
  return {.message = {seal.key, header.first(datagram_tagged_bytes), payload}, .auth = seal.auth};
}
inline constexpr size_t datagrams_per_batch = 88;  // two runs of segmentation offload, each 64 KiB of packets of Ethernet
// Sets tags[i] to the tag of datagrams[i], for at most datagrams_per_batch. Several together cost less than one after the
// other; see siphash.h.
void make_tags(std::span<const DatagramTagged> datagrams, std::span<uint64_t> tags);
// Fills in tag. Call it last. Requires header.payload_bytes == payload.size().
void seal_datagram(DatagramHeader& header, std::span<const std::byte> payload, const DatagramSeal& seal);

// The checks that need no group: too_short, magic, version, kind (and flags). bytes_max is the size of a full datagram; path
// probes may be longer. If the result is none, `header` holds a copy.
DatagramFault check_shape(std::span<const std::byte> datagram, uint32_t bytes_max, DatagramHeader& header);

// One epoch of one group, as its member `self` sees it.
struct DatagramGroup {
  uint64_t run_id = 0;
  uint32_t epoch = 0;
  Rank self = 0;
  uint32_t world = 0;
  DatagramAuth auth = DatagramAuth::mac;
  GroupKey key{};
};
// Checks run, epoch, receiver and sender. The transport checks the address itself, after this.
DatagramFault check_group(const DatagramHeader& header, const DatagramGroup& group);
// Compares in constant time.
constexpr bool same_tag(uint64_t a, uint64_t b) { return (a ^ b) == 0; }
DatagramFault check_length(const DatagramHeader& header, std::span<const std::byte> datagram);
// Checks length and tag. `seal` belongs to the link from header.sender to this rank.
DatagramFault check_tag(const DatagramHeader& header, std::span<const std::byte> datagram, const DatagramSeal& seal);
// How far op is ahead of current; -1 means the operation before it.
constexpr int32_t op_distance(uint32_t op, uint32_t current) { return static_cast<int32_t>(op - current); }

// Payload of a repair request: first index in the header's slice, then a bitmap (bit 0 of byte 0 first, 1 = missing). An empty
// bitmap means that nothing of this phase is missing, and the sender may drop the stream.
inline constexpr size_t repair_bitmap_bytes_max = ranges_per_slice / 8;

// Payload of feedback: 24 bytes.
struct FlowFeedback {
  uint32_t received = 0;  // datagrams since the epoch began
  uint32_t highest_flow_seq = 0;
  uint32_t own_drops = 0;        // dropped because the receiver's own socket buffer was full
  uint32_t echo_sent_at_us = 0;  // sent_at_us of the latest datagram
  uint32_t echo_held_us = 0;     // time from the arrival of that datagram to this feedback
  int32_t delay_us = 0;          // mean of (arrival clock - sent_at_us) since the last feedback; clocks differ
  friend bool operator==(const FlowFeedback&, const FlowFeedback&) = default;
};
static_assert(sizeof(FlowFeedback) == 24);

}  // namespace unisono
