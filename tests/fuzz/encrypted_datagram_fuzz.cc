// Fuzzes what a process with a key does with datagrams: it opens encrypted ones, and it reads hellos that carry a flight of
// TLS. Nothing may be read beyond the input, and nothing opens that was not sealed with the key. Random hellos would fail the
// check of their tag, so the input becomes a hello that a member could have sent.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "transports/udp/reliable/udp_link_seal.h"
#include "transports/udp/udp_handshake.h"

namespace unisono {
namespace {

constexpr PeerId dialler{1, 1}, waiter{2, 2};

std::shared_ptr<const TlsContext> context() {
  static const auto made = *TlsContext::make({*SecretKey::from_hex(std::string(64, '1'))});
  return made;
}

// The link has received a few datagrams. The input is another one.
void open(std::vector<std::byte> bytes) {
  if (bytes.size() < encrypted_header_bytes) return;
  constexpr uint64_t per_key = 64;
  const UdpLinkSecret secret;
  UdpLinkSeal sender(secret, 0, per_key), receiver(secret, 1, per_key);
  DatagramHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (static_cast<uint8_t>(header.kind) >= datagram_kind_count) return;
  auto genuine = bytes;
  SealTag tag;
  const auto number = uint64_t{1} + header.flow_seq % (2 * per_key - 1);
  header.flow_seq = static_cast<uint32_t>(number);
  std::memcpy(genuine.data(), &header, datagram_tagged_bytes);
  const auto payload = std::span(genuine).subspan(encrypted_header_bytes);
  sender.out(series_of(header.kind))
      .seal(number, std::span(genuine).first(datagram_tagged_bytes), payload, payload.data(), tag);
  std::memcpy(genuine.data() + datagram_tagged_bytes, tag.data(), sizeof tag);
  std::memcpy(&header, bytes.data(), sizeof header);
  const bool same = bytes == genuine;
  UNISONO_CHECK(receiver.open(header, bytes) == same);
  std::memcpy(&header, genuine.data(), sizeof header);
  UNISONO_CHECK(receiver.open(header, genuine));
}

void shake_hands(std::span<const std::byte> bytes, bool dial) {
  if (bytes.empty()) return;
  const auto key = hello_keys({}, context().get()).front();
  const auto self = dial ? dialler : waiter, peer = dial ? waiter : dialler;
  UdpHandshake handshake(key, {.self = self, .peer = peer, .dial = dial, .tls = context()});
  UdpHello hello{.step = static_cast<UdpHelloStep>(1 + static_cast<uint8_t>(bytes[0]) % 3), .version = 2};
  hello.from = peer, hello.to = self;
  const auto ask = handshake.message();
  if (ask) hello.other_nonce = ask->hello.nonce;
  const UdpHelloTls tls{.attempt = 1,
                        .flight = bytes.subspan(1).first(std::min(bytes.size() - 1, TlsFlights::flight_bytes_max))};
  const auto made = sealed_hello(key, hello, &tls);
  std::vector<std::byte> datagram(sizeof made.header + sizeof made.hello + made.rest.size());
  std::memcpy(datagram.data(), &made.header, sizeof made.header);
  std::memcpy(datagram.data() + sizeof made.header, &made.hello, sizeof made.hello);
  std::copy(made.rest.begin(), made.rest.end(), datagram.begin() + hello_datagram_bytes);
  UdpHello read;
  UdpHelloTls read_tls;
  if (!read_hello(key, made.header, datagram, read, &read_tls)) return;
  UNISONO_CHECK(read_tls.key == key);
  (void)handshake.on_hello(read, 1, read_tls);
  (void)handshake.on_hello(read, 2, read_tls);
  UNISONO_CHECK(!handshake.done());  // The input does not contain what a member would make of our random numbers.
  const auto answer = handshake.message();
  UNISONO_CHECK(!answer || hello_datagram_bytes + answer->rest.size() <= base_datagram_bytes);
}

}  // namespace
}  // namespace unisono

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  // The buffer has exactly the size of the input, so that the sanitizer notices any read beyond it.
  const std::vector<std::byte> bytes(begin + 1, begin + size);
  if ((data[0] & 1) != 0) unisono::open(bytes);
  else unisono::shake_hands(bytes, (data[0] & 2) != 0);
  return 0;
}
