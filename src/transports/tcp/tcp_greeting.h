// The first bytes on each connection of a stream that outlives its connections. They do not count in positions.
//
// The dialling process sends a preamble in clear, a hello, and the sender's addresses. The accepting process answers with a
// reply that says the position up to which it has read the stream. The dialler sends begin with its own position, and both go
// on there with frames. Since the old connection is drained before a position is said, no byte is taken twice.
//
// All have a fixed layout, little-endian; the structs are the layout. Reserved members are 0. From the first bytes the
// accepting process learns whether a Unisono process of the same job is connecting. Only then it reserves memory for the
// connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "net/socket_address.h"
#include "transports/connector.h"
#include "wire/peer_id.h"

namespace unisono {

inline constexpr uint64_t tcp_hello_magic = 0x4F4E4F53494E5531;  // the bytes "1UNISONO" in memory
inline constexpr uint32_t tcp_reply_magic = 0x59455531;          // the bytes "1UEY" in memory
inline constexpr uint32_t tcp_begin_magic = 0x47455531;          // the bytes "1UEG" in memory
inline constexpr uint32_t tcp_greeting_version = 2;
// A link has at most this many connections. A hello that announces more is refused. In measurements, more connections never
// helped.
inline constexpr uint16_t tcp_streams_max = 16;
inline constexpr size_t tcp_hello_addresses_max = offered_addresses_max;

enum TcpGreetingFlags : uint32_t {
  tcp_flag_relayed = 1,    // a relay copies the bytes, so acknowledgements say nothing about the peer
  tcp_flag_encrypted = 2,  // TLS starts behind the preamble
};
inline constexpr uint32_t tcp_flags_known = tcp_flag_relayed | tcp_flag_encrypted;

// What a process may read before it knows a key: enough to hand the connection to the right process of the host.
struct TcpPreamble {
  uint64_t magic = tcp_hello_magic;
  uint32_t version = tcp_greeting_version;  // behind the magic, as in all versions
  uint32_t flags = 0;
  PeerId to{};  // the called process; PeerId{} means any
  uint32_t reserved = 0;
  uint32_t checksum = 0;  // CRC-32C of all bytes before this member
};
static_assert(sizeof(TcpPreamble) == 40);

// An address without scope: the scope of a link-local address means something on one host only.
struct TcpWireAddress {
  uint16_t family = 0;  // 4, 6, or 0: no address
  uint16_t port = 0;
  uint8_t bytes[16] = {};  // an IPv4 address takes the first four
  friend bool operator==(const TcpWireAddress&, const TcpWireAddress&) = default;
};
static_assert(sizeof(TcpWireAddress) == 20);

// The two ends of a connection as one of its sides sees them.
struct TcpEnds {
  TcpWireAddress local, remote;
};

struct TcpSessionHello {
  uint64_t session = 0;  // random number of the first dialler; the same on all connections of the link
  // Counts the dials of this process for this stream, from 1 on. 0 asks only whether the process is there: it refuses the
  // hello as stale.
  uint32_t attempt = 0;
  uint16_t stream_index = 0;
  uint16_t stream_count = 1;
  JobKey key{};
  PeerId from{};
  PeerId to{};
  TcpEnds ends{};
  uint32_t flags = 0;               // the preamble's flags, which only this checksum and TLS protect
  uint16_t port = 0;                // where the dialler listens; 0: nowhere
  uint8_t resumes = 0;              // 1: the dialler has had a connection of this session
  uint8_t addresses = 0;            // this many TcpWireAddress follow: where the dialler can be reached now
  uint32_t addresses_checksum = 0;  // CRC-32C of them
  uint32_t checksum = 0;            // CRC-32C of all bytes before this member
};
static_assert(sizeof(TcpSessionHello) == 120);
static_assert(offsetof(TcpSessionHello, checksum) == 116);

// Why a connection is refused. The numbers are part of the wire format.
enum class TcpRefusal : uint8_t {
  none = 0,
  not_unisono = 1,  // never sent: an unknown protocol gets no answer
  version = 2,
  other_job = 3,
  // the hello is meant for another process, which had this address before, or which has the same address on another host
  other_process = 4,
  unknown_peer = 5,   // nobody added this peer before the time limit
  not_expected = 6,   // both processes dial, and neither of them may accept a connection
  duplicate = 7,      // a link between these processes exists already, and is in use
  stream = 8,         // The stream index or count is out of range, or the streams of one link do not have the same count.
  busy = 9,           // too many connections are waiting
  introduction = 10,  // This is not a refusal: the hello was for any process, and after the reply comes the listener's PeerId.
  stale = 11,         // the hello was sent before the connection that is in use now
  no_session = 12,    // the called process has given up the link that the hello resumes
  left = 13,          // the called process has read the dialler's last frame; the reply confirms it
  draining = 14,      // This is not a refusal: the called process cannot read its old connection to the end yet.
  no_key = 15,        // only one of the two processes has a key; the answer is in clear
};
const char* name(TcpRefusal refusal);

struct TcpSessionReply {
  uint32_t magic = tcp_reply_magic;
  uint8_t accepted = 0;  // 1: the connection is accepted; 0: it is not
  TcpRefusal reason = TcpRefusal::none;
  uint16_t reserved = 0;
  uint64_t position = 0;  // up to here the replying process has read the stream
  PeerId self{};          // the replying process, whoever was called
  TcpEnds ends{};
  // How often the replying process has dialled for this stream: its hellos up to this number are stale now.
  uint32_t attempt = 0;
  uint32_t checksum = 0;  // CRC-32C of all bytes before this member
};
static_assert(sizeof(TcpSessionReply) == 80);

struct TcpBegin {
  uint32_t magic = tcp_begin_magic;
  uint32_t reserved = 0;
  uint64_t position = 0;  // up to here the dialling process has read the stream
  uint32_t reserved_too = 0;
  uint32_t checksum = 0;  // CRC-32C of all bytes before this member
};
static_assert(sizeof(TcpBegin) == 24);

void seal(TcpPreamble& preamble);
// Also sets the count and the checksum of the addresses, which are sent behind the hello.
void seal(TcpSessionHello& hello, std::span<const TcpWireAddress> addresses);
void seal(TcpSessionReply& reply);
void seal(TcpBegin& begin);

// Returns false if no preamble begins with these bytes. With this check, a connection of another protocol is closed after its
// first bytes.
bool may_become_hello(const std::byte* bytes, size_t count);
// These check everything whose meaning does not depend on the receiving process.
TcpRefusal check(const TcpPreamble& preamble);
TcpRefusal check(const TcpSessionHello& hello, const TcpPreamble& preamble);
bool check_addresses(const TcpSessionHello& hello, std::span<const TcpWireAddress> addresses);
bool is_sound(const TcpSessionReply& reply);
bool is_sound(const TcpBegin& begin);

TcpWireAddress to_wire(const TcpAddress& address);
TcpAddress from_wire(const TcpWireAddress& address);
// Returns true if nothing stands between the two sides that ends TCP or translates addresses, as far as they can see: both see
// the same two addresses and ports. Then what the peer's kernel has acknowledged reaches the peer.
bool is_direct(const TcpEnds& mine, const TcpEnds& theirs, uint32_t flags);

}  // namespace unisono
