// Fuzzes what strangers can send to a process with a key, and what somebody on the path can do to an encrypted connection. The
// first byte of the input chooses:
// - the bytes of a client, or of a server, that does not know the key: the handshake must fail or wait, and nothing is read
// - an identity or the text of a key: only the right ones are accepted
// - changes of the bytes of a connection that is established: what is read must be a beginning of what was written
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "tls/tls_connection.h"

namespace unisono {
namespace {

struct Wire final : TlsCarrier {
  ptrdiff_t write_encrypted(std::span<const std::byte> bytes) override {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return static_cast<ptrdiff_t>(bytes.size());
  }
  ptrdiff_t read_encrypted(std::span<std::byte> bytes, bool& ended) override {
    const size_t count = std::min({bytes.size(), in.size() - at, step});
    std::copy_n(in.begin() + static_cast<ptrdiff_t>(at), count, bytes.begin());
    at += count;
    ended = count == 0 && closed;
    return static_cast<ptrdiff_t>(count);
  }
  Bytes in, out;
  size_t at = 0, step = SIZE_MAX;
  bool closed = false;
};

const std::shared_ptr<const TlsContext>& context() {
  static const auto made =
      *TlsContext::make({*SecretKey::from_hex("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")});
  return made;
}

ptrdiff_t read(TlsConnection& from, Bytes& into) {
  into.resize(5000);
  const iovec part{into.data(), into.size()};
  bool ended = false;
  const auto count = from.read(&part, 1, ended);
  into.resize(static_cast<size_t>(std::max<ptrdiff_t>(count, 0)));
  return ended ? -1 : count;
}

void stranger(TlsConnection::Role role, ByteView bytes) {
  Wire wire;
  wire.in.assign(bytes.begin(), bytes.end());
  wire.closed = true;
  if (!bytes.empty()) wire.step = 1 + static_cast<size_t>(bytes[0]) * 8;
  TlsConnection connection(context(), role, wire);
  for (int i = 0; i < 50; ++i) {
    const auto progress = connection.handshake();
    UNISONO_CHECK(progress != TlsConnection::Progress::done);
    if (progress == TlsConnection::Progress::failed) break;
  }
  Bytes got;
  UNISONO_CHECK(read(connection, got) <= 0);
  const iovec part{got.data(), got.size()};
  UNISONO_CHECK(connection.write(&part, 1) <= 0);
}

struct Established {
  Wire client_wire, server_wire;
  TlsConnection client{context(), TlsConnection::Role::client, client_wire};
  TlsConnection server{context(), TlsConnection::Role::server, server_wire};
  Established() {
    for (int i = 0; i < 10; ++i) {
      client.handshake();
      server.handshake();
      server_wire.in = std::exchange(client_wire.out, {});
      client_wire.in = std::exchange(server_wire.out, {});
      client_wire.at = server_wire.at = 0;
    }
    UNISONO_CHECK(client.handshake() == TlsConnection::Progress::done);
    UNISONO_CHECK(server.handshake() == TlsConnection::Progress::done);
    client_wire = Wire();
    server_wire = Wire();
  }
};

// The input says which changes are made to the bytes of some records.
void altered(ByteView input) {
  static std::unique_ptr<Established> kept;
  if (kept == nullptr) kept = std::make_unique<Established>();
  auto& pair = *kept;
  Bytes sent(1 + input.size() * 37 % 3000);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7);
  for (size_t at = 0; at < sent.size(); at += 700) {
    const iovec part{sent.data() + at, std::min<size_t>(700, sent.size() - at)};
    UNISONO_CHECK(pair.client.write(&part, 1) == static_cast<ptrdiff_t>(part.iov_len));
  }
  auto bytes = std::exchange(pair.client_wire.out, {});
  const auto original = bytes;
  ByteReader reader(input);
  while (reader.left() >= 4 && !bytes.empty()) {
    const auto what = reader.read<uint8_t>();
    const auto at = static_cast<ptrdiff_t>(reader.read<uint16_t>() % bytes.size());
    const auto value = reader.read<uint8_t>();
    const auto length = std::min<ptrdiff_t>(value, static_cast<ptrdiff_t>(bytes.size()) - at);
    switch (what % 4) {
      case 0: bytes[static_cast<size_t>(at)] ^= static_cast<std::byte>(value); break;
      case 1: bytes.erase(bytes.begin() + at, bytes.begin() + at + length); break;
      case 2: bytes.insert(bytes.begin() + at, static_cast<size_t>(value), std::byte{22}); break;
      default: std::rotate(bytes.begin(), bytes.begin() + at, bytes.end()); break;
    }
  }
  pair.server_wire.in = bytes;
  pair.server_wire.at = 0;
  size_t arrived = 0;
  ptrdiff_t count = 0;
  for (Bytes got; (count = read(pair.server, got)) > 0; arrived += got.size()) {
    UNISONO_CHECK(arrived + got.size() <= sent.size());
    UNISONO_CHECK(std::equal(got.begin(), got.end(), sent.begin() + static_cast<ptrdiff_t>(arrived)));
  }
  if (bytes == original) UNISONO_CHECK(arrived == sent.size() && count == 0);
  if (bytes != original || pair.server.error() != 0) kept.reset();
}

void texts(ByteView bytes) {
  const auto key = SecretKey::from_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (key.ok()) UNISONO_CHECK(*SecretKey::from_hex(key->hex()) == *key);
  auto identity = context()->make_identity();
  UNISONO_CHECK(context()->find(std::as_bytes(std::span(&identity, 1))));
  for (size_t i = 0; i < std::min(bytes.size(), sizeof identity); ++i) reinterpret_cast<std::byte*>(&identity)[i] ^= bytes[i];
  const bool same = std::all_of(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), sizeof identity)),
                                [](std::byte each) { return each == std::byte{0}; });
  UNISONO_CHECK(context()->find(std::as_bytes(std::span(&identity, 1))).has_value() == same);
  UNISONO_CHECK(!context()->find(bytes));
}

}  // namespace
}  // namespace unisono

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono;
  if (size == 0) return 0;
  const auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 4) {
    case 0: stranger(TlsConnection::Role::server, rest); break;
    case 1: stranger(TlsConnection::Role::client, rest); break;
    case 2: altered(rest); break;
    default: texts(rest); break;
  }
  return 0;
}
