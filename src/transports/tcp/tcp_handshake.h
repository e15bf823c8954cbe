// The first bytes on every connection: a hello from the dialling side and a reply from the listening side. Frames follow.
//
// Both are fixed in size and layout (little-endian, the structs are the layout). So the listener recognises anything that is
// not a Unisono process of the same job by its first bytes, before it reserves anything for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transports/connector.h"
#include "wire/peer_id.h"

namespace unisono {

inline constexpr uint64_t tcp_hello_magic = 0x4F4E4F53494E5531;  // "1UNISONO" in memory order
inline constexpr uint32_t tcp_reply_magic = 0x59455531;          // "1UEY"
inline constexpr uint32_t tcp_version = 1;
inline constexpr uint16_t tcp_streams_max = 16;  // per link; more never helped, and a hello may not ask for more

struct TcpHello {
  uint64_t magic = tcp_hello_magic;
  uint32_t version = tcp_version;
  uint16_t stream_index = 0;
  uint16_t stream_count = 1;
  JobKey key{};
  PeerId from;
  PeerId to;  // PeerId{}: any process; the listener answers with its id, and a second hello names that id, same connection
  uint32_t reserved = 0;  // 0 in this version
  uint32_t checksum = 0;  // CRC-32C of the bytes before it
};
static_assert(sizeof(TcpHello) == 72);
static_assert(offsetof(TcpHello, checksum) == 68);

// Why a connection is refused. The numbers are part of the wire format.
enum class TcpRefusal : uint8_t {
  none = 0,
  not_unisono = 1,  // never sent: an unknown protocol gets no answer
  version = 2,
  other_job = 3,
  other_process = 4,  // the hello is for another process, which had this address before or has it on another host
  unknown_peer = 5,   // nobody added this peer in time
  not_expected = 6,   // both sides dial
  duplicate = 7,      // such a link exists
  stream = 8,         // stream index or count out of range, or differing between streams of one link
  busy = 9,           // too many connections wait
  introduction = 10,  // no refusal: the hello names no id, and the listener's PeerId follows the reply
};
const char* name(TcpRefusal refusal);

struct TcpReply {
  uint32_t magic = tcp_reply_magic;
  uint8_t accepted = 0;  // 1 or 0
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
// Checks everything that does not depend on this process: magic, version, checksum, stream numbers.
TcpRefusal check_hello(const TcpHello& hello);
// False if these first bytes cannot become a hello. So the listener closes a foreign connection after its first segment.
bool may_become_hello(const std::byte* bytes, size_t count);
bool is_reply(const TcpReply& reply);

}  // namespace unisono
