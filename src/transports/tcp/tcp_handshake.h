// The first bytes on every connection: the dialling process sends a hello, and the listening process sends a reply. After them
// come frames.
//
// Hello and reply have a fixed size and layout. All numbers are little-endian, and the structs below are the layout. From the
// first bytes, the listener learns whether a Unisono process of the same job is connecting. Only if this is so, it reserves
// memory for the connection.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transports/connector.h"
#include "wire/peer_id.h"

namespace unisono {

inline constexpr uint64_t tcp_hello_magic = 0x4F4E4F53494E5531;  // the bytes "1UNISONO" in memory
inline constexpr uint32_t tcp_reply_magic = 0x59455531;          // the bytes "1UEY" in memory
inline constexpr uint32_t tcp_version = 1;
// A link has at most this many connections. A hello that announces more is refused. In measurements, more connections never
// helped.
inline constexpr uint16_t tcp_streams_max = 16;

struct TcpHello {
  uint64_t magic = tcp_hello_magic;
  uint32_t version = tcp_version;
  uint16_t stream_index = 0;
  uint16_t stream_count = 1;
  JobKey key{};
  PeerId from;
  // The process to which the hello is sent. PeerId{} means any process: the listener then answers with its id, and the dialler
  // sends a second hello with this id on the same connection.
  PeerId to;
  uint32_t reserved = 0;  // 0 in this version
  uint32_t checksum = 0;  // CRC-32C of all bytes before this member
};
static_assert(sizeof(TcpHello) == 72);
static_assert(offsetof(TcpHello, checksum) == 68);

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
  duplicate = 7,      // a connection for this link and stream exists already
  stream = 8,         // The stream index or count is out of range, or the streams of one link do not have the same count.
  busy = 9,           // too many connections are waiting
  introduction = 10,  // This is not a refusal: the hello was for any process, and after the reply comes the listener's PeerId.
  stale = 11,         // the hello was sent before the connection that is in use now
  no_session = 12,    // the called process has given up the link that the hello resumes
  left = 13,          // the called process has read the dialler's last frame; the reply confirms it
  draining = 14,      // This is not a refusal: the called process cannot read its old connection to the end yet.
};
const char* name(TcpRefusal refusal);

struct TcpReply {
  uint32_t magic = tcp_reply_magic;
  uint8_t accepted = 0;  // 1: the connection is accepted; 0: it is not
  TcpRefusal reason = TcpRefusal::none;
  uint16_t reserved = 0;
};
static_assert(sizeof(TcpReply) == 8);

struct TcpIntroduction {
  TcpReply reply;
  PeerId self;
};
static_assert(sizeof(TcpIntroduction) == 24);

void seal_hello(TcpHello& hello);
// Checks all fields whose meaning does not depend on the receiving process: magic, version, checksum and stream numbers.
TcpRefusal check_hello(const TcpHello& hello);
// Returns false if no hello begins with these bytes. With this check, a connection of another protocol is closed after its
// first bytes.
bool may_become_hello(const std::byte* bytes, size_t count);
bool is_reply(const TcpReply& reply);

}  // namespace unisono
