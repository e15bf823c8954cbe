#include "tls/tls_connection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <functional>
#include <numeric>

#include "base/bytes.h"
#include "base/random.h"

namespace unisono {
namespace {

SecretKey key(int number) {
  std::string text(64, '0');
  text[63] = static_cast<char>('0' + number);
  return *SecretKey::from_hex(text);
}

Bytes numbers(size_t count, uint64_t seed = 1) {
  Random random(seed);
  Bytes bytes(count);
  for (auto& each : bytes) each = static_cast<std::byte>(random.next());
  return bytes;
}

// One direction of a connection.
struct Wire {
  Bytes bytes;              // on the way
  Bytes all;                // everything that was ever written
  size_t space = SIZE_MAX;  // so many bytes may be on the way
  bool ended = false;
  std::function<void(Bytes&)> alter;  // changes bytes when they are written
};

struct Carrier final : TlsCarrier {
  Carrier(Wire& o, Wire& i) : out(o), in(i) {}
  ptrdiff_t write_encrypted(std::span<const std::byte> bytes) override {
    if (broken) return -EPIPE;
    const size_t count = std::min(bytes.size(), out.space - std::min(out.space, out.bytes.size()));
    Bytes piece(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
    out.all.insert(out.all.end(), piece.begin(), piece.end());
    if (out.alter) out.alter(piece);
    out.bytes.insert(out.bytes.end(), piece.begin(), piece.end());
    return static_cast<ptrdiff_t>(count);
  }
  ptrdiff_t read_encrypted(std::span<std::byte> bytes, bool& ended) override {
    const size_t count = std::min({bytes.size(), in.bytes.size(), step});
    std::copy_n(in.bytes.begin(), count, bytes.begin());
    in.bytes.erase(in.bytes.begin(), in.bytes.begin() + static_cast<ptrdiff_t>(count));
    ended = count == 0 && in.ended;
    return static_cast<ptrdiff_t>(count);
  }
  Wire& out;
  Wire& in;
  size_t step = SIZE_MAX;
  bool broken = false;  // writing fails
};

struct Pair {
  explicit Pair(std::vector<SecretKey> client_keys = {key(1)}, std::vector<SecretKey> server_keys = {key(1)},
                uint64_t records_per_key = TlsConnection::records_per_key)
      : client(*TlsContext::make(std::move(client_keys)), TlsConnection::Role::client, client_carrier, records_per_key),
        server(*TlsContext::make(std::move(server_keys)), TlsConnection::Role::server, server_carrier, records_per_key) {}
  bool shake() {
    for (int i = 0; i < 1000; ++i) {
      const auto a = client.handshake(), b = server.handshake();
      if (a == TlsConnection::Progress::done && b == a) return true;
      if (a == TlsConnection::Progress::failed && b == a) return false;
    }
    return false;
  }
  Wire up, down;
  Carrier client_carrier{up, down}, server_carrier{down, up};
  TlsConnection client, server;
};

ptrdiff_t write(TlsConnection& to, ByteView bytes) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return to.write(&part, 1);
}

// Reads what is there.
Bytes read(TlsConnection& from, ptrdiff_t* result = nullptr, bool* ended = nullptr) {
  Bytes all;
  for (;;) {
    Bytes space(10'000);
    const iovec part{space.data(), space.size()};
    bool end = false;
    const auto count = from.read(&part, 1, end);
    if (result != nullptr) *result = count;
    if (ended != nullptr) *ended = end;
    if (count <= 0) return all;
    all.insert(all.end(), space.begin(), space.begin() + count);
  }
}

TEST(TlsConnection, bytes_of_any_size_arrive) {
  Pair pair;
  pair.client_carrier.step = 1000;
  ASSERT_TRUE(pair.shake());
  for (const size_t size : {1, 63, 16'383, 16'384, 16'385, 60'000}) {
    const auto sent = numbers(size);
    ASSERT_EQ(write(pair.client, sent), static_cast<ptrdiff_t>(size));
    EXPECT_EQ(read(pair.server), sent);
    ASSERT_EQ(write(pair.server, sent), static_cast<ptrdiff_t>(size));
    EXPECT_EQ(read(pair.client), sent);
  }
}

TEST(TlsConnection, parts_are_joined_and_filled) {
  Pair pair;
  ASSERT_TRUE(pair.shake());
  const auto head = numbers(64, 2), body = numbers(40'000, 3), tail = numbers(5, 4);
  const iovec parts[] = {{const_cast<std::byte*>(head.data()), head.size()},
                         {nullptr, 0},
                         {const_cast<std::byte*>(body.data()), body.size()},
                         {const_cast<std::byte*>(tail.data()), tail.size()}};
  ASSERT_EQ(pair.client.write(parts, 4), 40'069);
  Bytes a(64), b(40'000), c(100);
  const iovec into[] = {{a.data(), a.size()}, {b.data(), b.size()}, {c.data(), c.size()}};
  bool ended = false;
  EXPECT_EQ(pair.server.read(into, 3, ended), 40'069);
  EXPECT_EQ(a, head);
  EXPECT_EQ(b, body);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), c.begin()));
  EXPECT_FALSE(pair.server.has_buffered());
}

TEST(TlsConnection, a_read_that_fills_its_parts_says_that_more_is_here) {
  Pair pair;
  ASSERT_TRUE(pair.shake());
  write(pair.client, numbers(1000));
  write(pair.client, numbers(1000));
  Bytes some(600);
  const iovec part{some.data(), some.size()};
  bool ended = false;
  for (const bool more : {true, true, true}) {
    ASSERT_EQ(pair.server.read(&part, 1, ended), 600);
    EXPECT_EQ(pair.server.has_buffered(), more);
  }
  EXPECT_EQ(pair.server.read(&part, 1, ended), 200);
  EXPECT_FALSE(pair.server.has_buffered());
  EXPECT_EQ(pair.server.read(&part, 1, ended), 0);
  EXPECT_FALSE(ended);
}

TEST(TlsConnection, another_key_is_refused_on_both_sides) {
  Pair pair({key(1)}, {key(2)});
  EXPECT_FALSE(pair.shake());
  EXPECT_EQ(pair.client.error(), EKEYREJECTED);
  EXPECT_EQ(pair.server.error(), EKEYREJECTED);
}

TEST(TlsConnection, the_accepting_side_may_have_several_keys) {
  Pair pair({key(3)}, {key(1), key(2), key(3)});
  ASSERT_TRUE(pair.shake());
  EXPECT_EQ(pair.server.key_number(), 2u);
}

TEST(TlsConnection, no_key_that_has_no_proof_is_accepted) {
  // A client that shows a stranger's identity, or random bytes, learns nothing but a failure.
  const auto context = *TlsContext::make({key(1)});
  auto identity = context->make_identity();
  EXPECT_TRUE(context->find(std::as_bytes(std::span(&identity, 1))));
  EXPECT_NE(Bytes(identity.random.begin(), identity.random.end()),
            Bytes(context->make_identity().random.begin(), context->make_identity().random.end()));
  identity.proof[31] ^= std::byte{1};
  EXPECT_FALSE(context->find(std::as_bytes(std::span(&identity, 1))));
  EXPECT_FALSE(context->find({}));
}

TEST(TlsConnection, a_client_refuses_a_server_that_speaks_something_else) {
  for (const std::string_view answer : {"HTTP/1.1 400 Bad Request\r\n\r\n", "\x15\x03\x03\x00\x02\x02\x28", "1UNISONO"}) {
    Pair pair;
    EXPECT_EQ(pair.client.handshake(), TlsConnection::Progress::pending);
    const auto bytes = std::as_bytes(std::span(answer));
    pair.down.bytes.assign(bytes.begin(), bytes.end());
    pair.down.ended = true;
    EXPECT_EQ(pair.client.handshake(), TlsConnection::Progress::failed);
  }
}

TEST(TlsConnection, the_end_of_the_carrier_ends_the_handshake_or_the_stream) {
  Pair early;
  early.down.ended = true;
  EXPECT_EQ(early.client.handshake(), TlsConnection::Progress::failed);
  EXPECT_EQ(early.client.error(), ECONNRESET);
  Pair pair;
  ASSERT_TRUE(pair.shake());
  write(pair.client, numbers(100));
  pair.up.ended = true;
  ptrdiff_t result = 0;
  bool ended = false;
  EXPECT_EQ(read(pair.server, &result, &ended), numbers(100));
  EXPECT_EQ(result, 0);
  EXPECT_TRUE(ended);
  EXPECT_EQ(pair.server.error(), 0);
}

TEST(TlsConnection, altered_bytes_end_the_connection_and_are_never_given_out) {
  Random random(7);
  for (int i = 0; i < 2000; ++i) {
    Pair pair;
    ASSERT_TRUE(pair.shake());
    const auto first = numbers(100, 1), second = numbers(1 + random.below(20'000), 2);
    write(pair.client, first);
    const size_t whole = pair.up.bytes.size();
    write(pair.client, second);
    auto& bytes = pair.up.bytes;
    const size_t at = whole + random.below(bytes.size() - whole);
    const auto kind = random.below(5);
    if (kind == 0) bytes[at] ^= static_cast<std::byte>(1u << random.below(8));
    if (kind == 1) bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
    if (kind == 2) bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), std::byte{0});
    if (kind == 3)
      bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(whole), bytes.begin(),
                   bytes.begin() + static_cast<ptrdiff_t>(whole));                                          // NOLINT: a replay
    if (kind == 4) std::rotate(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(whole), bytes.end());  // another order
    pair.up.ended = true;
    ptrdiff_t result = 0;
    bool ended = false;
    const auto arrived = read(pair.server, &result, &ended);
    Bytes expected = first;
    expected.insert(expected.end(), second.begin(), second.end());
    ASSERT_LE(arrived.size(), expected.size()) << kind;
    EXPECT_TRUE(std::equal(arrived.begin(), arrived.end(), expected.begin())) << kind;
    if (arrived.size() < expected.size() || kind == 3) {
      EXPECT_TRUE(result == -EBADMSG || ended) << kind << " " << result;
    }
  }
}

TEST(TlsConnection, a_full_carrier_keeps_whole_records_until_it_takes_them) {
  Pair pair;
  ASSERT_TRUE(pair.shake());
  pair.up.space = 10'000;
  const auto sent = numbers(1u << 20);
  size_t written = 0;
  Bytes arrived;
  for (int i = 0; i < 100'000 && arrived.size() < sent.size(); ++i) {
    const auto count = write(pair.client, ByteView(sent).subspan(written));
    ASSERT_GE(count, 0);
    written += static_cast<size_t>(count);
    EXPECT_EQ(pair.client.unacknowledged_bytes(pair.up.bytes.size()) >= written - arrived.size(), true);
    const auto more = read(pair.server);
    arrived.insert(arrived.end(), more.begin(), more.end());
    EXPECT_EQ(pair.client.flush(), 0);
  }
  EXPECT_EQ(arrived, sent);
  EXPECT_FALSE(pair.client.has_unflushed());
  EXPECT_EQ(pair.client.unacknowledged_bytes(0), 0u);
}

TEST(TlsConnection, a_byte_is_acknowledged_when_its_record_is) {
  Pair pair;
  ASSERT_TRUE(pair.shake());
  write(pair.client, numbers(100));
  write(pair.client, numbers(200));
  EXPECT_EQ(pair.client.unacknowledged_bytes(pair.up.bytes.size()), 300u);
  const auto second = 200 + TlsConnection::record_overhead;
  EXPECT_EQ(pair.client.unacknowledged_bytes(second + 1), 300u);
  EXPECT_EQ(pair.client.unacknowledged_bytes(second), 200u);
  EXPECT_EQ(pair.client.unacknowledged_bytes(1), 200u);
  EXPECT_EQ(pair.client.unacknowledged_bytes(0), 0u);
}

TEST(TlsConnection, many_short_records_are_counted_with_little_memory) {
  Pair pair;
  ASSERT_TRUE(pair.shake());
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(write(pair.client, numbers(1)), 1);
  EXPECT_EQ(pair.client.unacknowledged_bytes(1), 5000u - 1023u);
  EXPECT_EQ(pair.client.unacknowledged_bytes(0), 0u);
}

TEST(TlsConnection, what_has_arrived_can_be_read_after_a_write_that_failed) {
  Pair pair;
  ASSERT_TRUE(pair.shake());
  write(pair.server, numbers(3000));
  pair.client_carrier.broken = true;
  EXPECT_EQ(write(pair.client, numbers(10)), -EPIPE);
  EXPECT_EQ(pair.client.error(), EPIPE);
  EXPECT_EQ(read(pair.client), numbers(3000));
  EXPECT_EQ(write(pair.client, numbers(10)), -EPIPE);
}

TEST(TlsConnection, keys_are_changed_before_they_are_used_up) {
  Pair pair({key(1)}, {key(1)}, 3);
  ASSERT_TRUE(pair.shake());
  for (int i = 0; i < 20; ++i) {
    const auto sent = numbers(5000, static_cast<uint64_t>(i));
    write(pair.client, sent);
    ASSERT_EQ(read(pair.server), sent);
    write(pair.server, sent);
    ASSERT_EQ(read(pair.client), sent);
  }
  // 20 records, and an update of the key before the 4th, 7th, …, 19th.
  size_t records = 0;
  for (size_t at = 0; at < pair.up.all.size(); ++records) {
    at += 5 + (static_cast<size_t>(pair.up.all[at + 3]) << 8 | static_cast<size_t>(pair.up.all[at + 4]));
  }
  EXPECT_EQ(records, 2 + 20 + 6u) << "the first two make the handshake";
}

TEST(TlsConnection, nothing_that_is_written_is_on_the_wire) {
  Pair pair;
  ASSERT_TRUE(pair.shake());
  const std::string text = "a text that nobody else may read, and that is long enough to be found";
  write(pair.client, std::as_bytes(std::span(text)));
  const std::string wire(reinterpret_cast<const char*>(pair.up.all.data()), pair.up.all.size());
  EXPECT_EQ(wire.find(text.substr(0, 8)), std::string::npos);
  const auto secret = key(1).derive("unisono tls");
  EXPECT_EQ(wire.find(std::string(reinterpret_cast<const char*>(secret.data()), 16)), std::string::npos);
}

TEST(TlsConnection, both_sides_export_the_same_bytes) {
  Pair pair, other;
  std::array<std::byte, 32> a{}, b{}, c{}, d{};
  EXPECT_FALSE(pair.client.export_key("datagrams", a));
  ASSERT_TRUE(pair.shake() && other.shake());
  ASSERT_TRUE(pair.client.export_key("datagrams", a) && pair.server.export_key("datagrams", b));
  ASSERT_TRUE(pair.client.export_key("another label", c) && other.client.export_key("datagrams", d));
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  EXPECT_NE(a, d);
}

}  // namespace
}  // namespace unisono
