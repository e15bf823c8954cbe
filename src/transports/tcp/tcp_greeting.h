// The first bytes on each connection of a stream that outlives its connections. They do not count in positions.
//
// The dialling process sends a preamble in clear, a hello, and the sender's addresses. The accepting process answers with a
// reply that says the position up to which it has read the stream. The dialler sends begin with its own position, and both go
// on there with frames. Since the old connection is drained before a position is said, no byte is taken twice.
//
// All have a fixed layout, little-endian; the structs are the layout. Reserved members are 0. It replaces tcp_handshake.h where
// links heal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "net/socket_address.h"
#include "transports/connector.h"
#include "transports/tcp/tcp_handshake.h"
#include "wire/peer_id.h"

namespace unisono {

inline constexpr uint32_t tcp_greeting_version = 2;
inline constexpr uint32_t tcp_begin_magic = 0x47455531;  // the bytes "1UEG" in memory
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
  uint32_t attempt = 0;  // counts the dials of this process for this stream, from 1 on
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
