#include "transports/tcp/tcp_greeting.h"

#include <algorithm>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "wire/checksum.h"

namespace unisono {
namespace {

template <typename T>
uint32_t checksum_of(const T& message) {
  static_assert(std::has_unique_object_representations_v<T>, "padding would be sent, and would be part of the checksum");
  return crc32c(&message, offsetof(T, checksum));
}

}  // namespace

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
    case TcpRefusal::no_key: return "authentication failed: the other side has a key, and this process has none";
    case TcpRefusal::draining: return "the other side still reads the former connection";
  }
  return "unknown reason";
}

void seal(TcpPreamble& preamble) { preamble.checksum = checksum_of(preamble); }

void seal(TcpSessionHello& hello, std::span<const TcpWireAddress> addresses) {
  hello.addresses = static_cast<uint8_t>(addresses.size());
  hello.addresses_checksum = crc32c(addresses.data(), addresses.size_bytes());
  hello.checksum = checksum_of(hello);
}

void seal(TcpSessionReply& reply) { reply.checksum = checksum_of(reply); }

void seal(TcpBegin& begin) { begin.checksum = checksum_of(begin); }

bool may_become_hello(const std::byte* bytes, size_t count) {
  return count == 0 || std::memcmp(bytes, &tcp_hello_magic, std::min(count, sizeof tcp_hello_magic)) == 0;
}

TcpRefusal check(const TcpPreamble& preamble) {
  if (preamble.magic != tcp_hello_magic) return TcpRefusal::not_unisono;
  // Check the version before the rest: in another version the rest means something else.
  if (preamble.version != tcp_greeting_version) return TcpRefusal::version;
  const bool sound = preamble.checksum == checksum_of(preamble) && preamble.reserved == 0;
  return sound && (preamble.flags & ~tcp_flags_known) == 0 ? TcpRefusal::none : TcpRefusal::not_unisono;
}

TcpRefusal check(const TcpSessionHello& hello, const TcpPreamble& preamble) {
  if (hello.checksum != checksum_of(hello)) return TcpRefusal::not_unisono;
  // The hello names the process that a preamble for any process has reached.
  const bool same_process = hello.to == preamble.to || preamble.to == PeerId{};
  if (hello.flags != preamble.flags || !same_process) return TcpRefusal::not_unisono;
  const bool sound = hello.resumes <= 1 && hello.addresses <= tcp_hello_addresses_max;
  if (!sound) return TcpRefusal::not_unisono;
  if (hello.stream_count == 0 || hello.stream_count > tcp_streams_max) return TcpRefusal::stream;
  if (hello.stream_index >= hello.stream_count) return TcpRefusal::stream;
  return TcpRefusal::none;
}

bool check_addresses(const TcpSessionHello& hello, std::span<const TcpWireAddress> addresses) {
  if (addresses.size() != hello.addresses) return false;
  if (hello.addresses_checksum != crc32c(addresses.data(), addresses.size_bytes())) return false;
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const auto& each) { return (each.family == 4 || each.family == 6) && each.port != 0; });
}

bool is_sound(const TcpSessionReply& reply) {
  return reply.magic == tcp_reply_magic && reply.accepted <= 1 && reply.checksum == checksum_of(reply) &&
         (reply.accepted == 1) == (reply.reason == TcpRefusal::none);
}

bool is_sound(const TcpBegin& begin) { return begin.magic == tcp_begin_magic && begin.checksum == checksum_of(begin); }

TcpWireAddress to_wire(const TcpAddress& address) {
  TcpWireAddress wire;
  wire.port = address.port();
  if (address.family() == AF_INET) {
    wire.family = 4;
    std::memcpy(wire.bytes, &reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr, 4);
  } else if (address.family() == AF_INET6) {
    const auto& bytes = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
    // A socket of both families shows an IPv4 address inside an IPv6 one.
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&bytes);
    wire.family = mapped ? 4 : 6;
    std::memcpy(wire.bytes, bytes.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
  } else {
    wire.port = 0;
  }
  return wire;
}

TcpAddress from_wire(const TcpWireAddress& wire) {
  TcpAddress address;
  if (wire.family == 4) {
    sockaddr_in ip4{};
    ip4.sin_family = AF_INET;
    std::memcpy(&ip4.sin_addr, wire.bytes, 4);
    std::memcpy(&address.storage, &ip4, sizeof ip4);
    address.bytes = sizeof ip4;
  } else if (wire.family == 6) {
    sockaddr_in6 ip6{};
    ip6.sin6_family = AF_INET6;
    std::memcpy(ip6.sin6_addr.s6_addr, wire.bytes, 16);
    std::memcpy(&address.storage, &ip6, sizeof ip6);
    address.bytes = sizeof ip6;
  }
  if (address.bytes > 0) address.set_port(wire.port);
  return address;
}

bool is_direct(const TcpEnds& mine, const TcpEnds& theirs, uint32_t flags) {
  if ((flags & tcp_flag_relayed) != 0 || mine.local.family == 0 || mine.remote.family == 0) return false;
  return mine.local == theirs.remote && mine.remote == theirs.local;
}

}  // namespace unisono
