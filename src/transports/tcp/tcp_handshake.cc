#include "transports/tcp/tcp_handshake.h"

#include <algorithm>
#include <cstring>

#include "wire/checksum.h"

namespace unisono {

const char* name(TcpRefusal refusal) {
  switch (refusal) {
    case TcpRefusal::none: return "none";
    case TcpRefusal::not_unisono: return "the other side does not speak the Unisono protocol";
    case TcpRefusal::version: return "another version of Unisono is there";
    case TcpRefusal::other_job: return "another job is there";
    case TcpRefusal::other_process: return "another process is there";
    case TcpRefusal::unknown_peer: return "the other side has not added this process as a peer";
    case TcpRefusal::not_expected: return "both processes dial, but only one of them may";
    case TcpRefusal::duplicate: return "a link between these processes exists already";
    case TcpRefusal::stream: return "the stream index or the stream count does not match";
    case TcpRefusal::busy: return "too many connections are waiting there";
    case TcpRefusal::introduction: return "the hello must name the process";
    case TcpRefusal::stale: return "a newer connection is in use";
    case TcpRefusal::no_session: return "the other side has given up this link";
    case TcpRefusal::left: return "the other side has read the end of this link";
    case TcpRefusal::draining: return "the other side still reads the former connection";
  }
  return "unknown reason";
}

void seal_hello(TcpHello& hello) { hello.checksum = crc32c(&hello, offsetof(TcpHello, checksum)); }

TcpRefusal check_hello(const TcpHello& hello) {
  if (hello.magic != tcp_hello_magic) return TcpRefusal::not_unisono;
  // Check the version before the checksum: in another version the checksum may be at another place.
  if (hello.version != tcp_version) return TcpRefusal::version;
  if (hello.checksum != crc32c(&hello, offsetof(TcpHello, checksum))) return TcpRefusal::not_unisono;
  if (hello.stream_count == 0 || hello.stream_count > tcp_streams_max) return TcpRefusal::stream;
  if (hello.stream_index >= hello.stream_count) return TcpRefusal::stream;
  return TcpRefusal::none;
}

bool may_become_hello(const std::byte* bytes, size_t count) {
  return std::memcmp(bytes, &tcp_hello_magic, std::min(count, sizeof tcp_hello_magic)) == 0;
}

bool is_reply(const TcpReply& reply) { return reply.magic == tcp_reply_magic && reply.accepted <= 1; }

}  // namespace unisono
