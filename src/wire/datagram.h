// The datagram: 56 bytes of header, then payload; at most one per IP packet. What UDP links are made of.
//
// Layout is little-endian and fixed (docs/reference/wire_format.md); the struct is the layout. A datagram is believed only
// after check_datagram and its tag; where its payload belongs is computed from what both ends agreed on before, never read from
// it. Source of layout and order of checks: docs/reference/wire_format.md and docs/design/methods/packet_loss.md, "Keys and
// refusals".
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
  // Of links that carry whole frames, reliably (docs/reference/wire_format.md). They belong to an epoch of the link's own.
  fragment = 7,  // op: number of the frame on this link; packet_index: of the fragment; slice: bytes of a full fragment of this
                 // frame; deadline_us: bytes of the whole frame, header included. See transports/udp/reliable/udp_fragments.h
  fragment_ack = 8,  // payload: see transports/udp/reliable/udp_loss_detector.h
  hello = 9,         // makes a link: transports/udp/udp_handshake.h
};
inline constexpr uint8_t datagram_kind_count = 10;

enum DatagramFlags : uint8_t { datagram_tail = 1, datagram_repaired = 2 };

inline constexpr uint16_t datagram_magic = 0x5455;
inline constexpr uint8_t datagram_version = 1;
inline constexpr uint32_t datagram_header_bytes = 56, datagram_tagged_bytes = 48;  // of the header, that the tag covers
inline constexpr uint32_t ranges_per_slice = 4096;

struct DatagramHeader {
  uint16_t magic = datagram_magic;
  uint8_t version = datagram_version;
  DatagramKind kind = DatagramKind::data;
  uint32_t epoch = 0;
  uint64_t run_id = 0;                // random, of the job
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

// Why a datagram is dropped, in the order of the checks: the first that fails is counted, and nothing else happens.
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

// mac: nobody outside the group can make one. checksum: CRC-32C, finds damage only: for trusted links.
enum class DatagramAuth : uint8_t { mac = 0, checksum = 1 };

// What makes the tags of one link.
struct DatagramSeal {
  SipKey key;
  DatagramAuth auth = DatagramAuth::mac;
};
// What a tag is made of: the key, the first datagram_tagged_bytes, the payload.
struct DatagramTagged {
  SipMessage message;
  DatagramAuth auth = DatagramAuth::mac;
};
inline DatagramTagged tagged(std::span<const std::byte> header, std::span<const std::byte> payload, const DatagramSeal& seal) {
  return {.message = {seal.key, header.first(datagram_tagged_bytes), payload}, .auth = seal.auth};
}
inline constexpr size_t datagrams_per_batch = 88;  // two runs of segmentation offload, each 64 KiB of packets of Ethernet
// tags[i] is that of datagrams[i]; at most datagrams_per_batch. Several cost less than one after the other: siphash.h.
void make_tags(std::span<const DatagramTagged> datagrams, std::span<uint64_t> tags);
// Fills in tag. Call last. header.payload_bytes == payload.size().
void seal_datagram(DatagramHeader& header, std::span<const std::byte> payload, const DatagramSeal& seal);

// The checks that need no group: too_short, magic, version, kind (and flags). bytes_max: a full datagram; path probes may be
// longer. Then header is a copy.
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
// run, epoch, receiver, sender. (address is the transport's to check, after this.)
DatagramFault check_group(const DatagramHeader& header, const DatagramGroup& group);
// Takes the same time wherever the two differ.
constexpr bool same_tag(uint64_t a, uint64_t b) { return (a ^ b) == 0; }
DatagramFault check_length(const DatagramHeader& header, std::span<const std::byte> datagram);
// length, tag. seal: of the link from header.sender to this rank.
DatagramFault check_tag(const DatagramHeader& header, std::span<const std::byte> datagram, const DatagramSeal& seal);
// How far op is ahead of current: -1 is the one before.
constexpr int32_t op_distance(uint32_t op, uint32_t current) { return static_cast<int32_t>(op - current); }

// Payload of a repair request: first index in the header's slice, then a bitmap, bit 0 of byte 0 first, 1 = missing. An empty
// bitmap: nothing is missing of this phase, and the sender may forget the stream.
inline constexpr size_t repair_bitmap_bytes_max = ranges_per_slice / 8;

// Payload of feedback: 24 bytes.
struct FlowFeedback {
  uint32_t received = 0;  // datagrams since the epoch began
  uint32_t highest_flow_seq = 0;
  uint32_t own_drops = 0;        // dropped by the receiver's own socket buffer
  uint32_t echo_sent_at_us = 0;  // sent_at_us of the latest datagram
  uint32_t echo_held_us = 0;     // for how long
  int32_t delay_us = 0;          // mean of (arrival clock - sent_at_us) since the last feedback; clocks differ
  friend bool operator==(const FlowFeedback&, const FlowFeedback&) = default;
};
static_assert(sizeof(FlowFeedback) == 24);

}  // namespace unisono
