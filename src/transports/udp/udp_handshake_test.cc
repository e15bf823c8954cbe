#include "transports/udp/udp_handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace unisono {
namespace {

constexpr PeerId dialler_id{1, 100}, waiter_id{2, 200};

JobKey job(uint8_t fill = 0x5A) {
  JobKey key;
  key.fill(std::byte{fill});
  return key;
}

UdpHandshake dialler(uint64_t attempt = 0) {
  return UdpHandshake(job(), {.self = dialler_id, .peer = waiter_id, .dial = true, .attempt = attempt, .window_bytes = 1000});
}
UdpHandshake waiter(uint64_t attempt = 0) {
  return UdpHandshake(job(), {.self = waiter_id, .peer = dialler_id, .dial = false, .attempt = attempt, .window_bytes = 2000});
}

std::vector<std::byte> bytes_of(const UdpHelloDatagram& datagram) {
  std::vector<std::byte> bytes(hello_datagram_bytes);
  std::memcpy(bytes.data(), &datagram.header, sizeof datagram.header);
  std::memcpy(bytes.data() + sizeof datagram.header, &datagram.hello, sizeof datagram.hello);
  return bytes;
}

// Returns the hello as the other process reads it after it went through the wire format.
UdpHello carried(const std::optional<UdpHelloDatagram>& datagram) {
  UdpHello hello;
  EXPECT_TRUE(datagram.has_value());
  if (datagram) {
    EXPECT_TRUE(read_hello(job(), datagram->header, bytes_of(*datagram), hello));
  }
  return hello;
}

TEST(UdpHandshake, three_messages_give_both_sides_the_same_keys) {
  auto a = dialler(), b = waiter();
  ASSERT_TRUE(a.due(0));
  EXPECT_FALSE(b.message().has_value()) << "the waiting side says nothing first";
  ASSERT_TRUE(b.on_hello(carried(a.message()), 10));
  EXPECT_FALSE(b.done());
  ASSERT_TRUE(a.on_hello(carried(b.message()), 20));
  EXPECT_TRUE(a.done());
  EXPECT_FALSE(b.on_hello(carried(a.message()), 30));
  ASSERT_TRUE(b.done());
  EXPECT_EQ(a.group().run_id, b.group().run_id);
  EXPECT_EQ(a.group().epoch, b.group().epoch);
  EXPECT_EQ(a.group().key, b.group().key);
  EXPECT_NE(a.group().epoch, 0u);
  EXPECT_EQ(a.group().self, 0u);
  EXPECT_EQ(b.group().self, 1u);
  EXPECT_EQ(a.peer_window_bytes(), 2000u);
  EXPECT_EQ(b.peer_window_bytes(), 1000u);
}

TEST(UdpHandshake, checksums_are_used_only_if_both_sides_announce_them) {
  for (const auto of_dialler : {DatagramAuth::mac, DatagramAuth::checksum}) {
    for (const auto of_waiter : {DatagramAuth::mac, DatagramAuth::checksum}) {
      UdpHandshake a(job(), {.self = dialler_id, .peer = waiter_id, .dial = true, .auth = of_dialler}),
          b(job(), {.self = waiter_id, .peer = dialler_id, .auth = of_waiter});
      b.on_hello(carried(a.message()), 0);
      a.on_hello(carried(b.message()), 0);
      b.on_hello(carried(a.message()), 0);
      const auto expected = std::min(of_dialler, of_waiter);
      EXPECT_EQ(a.group().auth, expected);
      EXPECT_EQ(b.group().auth, expected);
    }
  }
}

TEST(UdpHandshake, an_unknown_auth_value_selects_mac) {
  UdpHandshake a(job(), {.self = dialler_id, .peer = waiter_id, .dial = true, .auth = DatagramAuth::checksum}),
      b(job(), {.self = waiter_id, .peer = dialler_id, .auth = DatagramAuth::checksum});
  b.on_hello(carried(a.message()), 0);
  auto hello = carried(b.message());
  hello.auth = 0x0101;
  a.on_hello(hello, 0);
  ASSERT_TRUE(a.done());
  EXPECT_EQ(a.group().auth, DatagramAuth::mac);
}

TEST(UdpHandshake, another_attempt_has_other_keys) {
  const auto keys = [](uint64_t of_dialler, uint64_t of_waiter) {
    auto a = dialler(of_dialler), b = waiter(of_waiter);
    b.on_hello(carried(a.message()), 0);
    a.on_hello(carried(b.message()), 0);
    return a.group().key;
  };
  EXPECT_NE(keys(0, 0), keys(1, 0));
  EXPECT_NE(keys(0, 0), keys(0, 1));
  EXPECT_EQ(keys(0, 0), keys(0, 0));
}

TEST(UdpHandshake, hellos_are_repeated_until_they_are_answered) {
  auto a = dialler();
  Nanos now = 0;
  ASSERT_TRUE(a.due(now));
  EXPECT_FALSE(a.due(now));
  std::vector<Nanos> pauses;
  for (int i = 0; i < 12; ++i) {
    const auto next = a.next_deadline();
    pauses.push_back(next - now);
    EXPECT_FALSE(a.due(next - 1));
    EXPECT_TRUE(a.due(now = next));
  }
  EXPECT_EQ(pauses.front(), 20 * millisecond);
  EXPECT_EQ(pauses[1], 30 * millisecond);
  EXPECT_EQ(pauses.back(), 500 * millisecond);
}

TEST(UdpHandshake, a_lost_confirmation_is_repeated) {
  auto a = dialler(), b = waiter();
  b.on_hello(carried(a.message()), 0);
  a.on_hello(carried(b.message()), 0);
  // The confirmation of `a` is lost. Either process may notice first and repeat its hello.
  EXPECT_TRUE(a.due(20 * millisecond));
  EXPECT_TRUE(a.message()->hello.step == UdpHelloStep::confirm);
  EXPECT_TRUE(b.due(20 * millisecond));
  EXPECT_TRUE(a.on_hello(carried(b.message()), 25 * millisecond)) << "the answer asks for it";
  b.on_hello(carried(a.message()), 30 * millisecond);
  EXPECT_TRUE(b.done());
}

TEST(UdpHandshake, a_recorded_hello_makes_no_link) {
  auto a = dialler(), b = waiter();
  b.on_hello(carried(a.message()), 0);
  a.on_hello(carried(b.message()), 0);
  const auto old = carried(a.message());
  auto later = waiter(7);  // a later handshake between the same processes
  EXPECT_FALSE(later.on_hello(old, 0));
  EXPECT_FALSE(later.done());
  auto again = dialler(7);
  EXPECT_FALSE(again.on_hello(carried(b.message()), 0)) << "an answer to another ask";
  EXPECT_FALSE(again.done());
}

TEST(UdpHandshake, an_old_ask_does_not_break_the_handshake) {
  auto a = dialler(3), before = dialler(2), b = waiter();
  b.on_hello(carried(a.message()), 0);
  const auto answer = carried(b.message());
  b.on_hello(carried(before.message()), 0);  // an attacker repeats an old ask
  a.on_hello(answer, 0);
  b.on_hello(carried(a.message()), 0);
  ASSERT_TRUE(b.done());
  EXPECT_EQ(a.group().key, b.group().key);
}

TEST(UdpHandshake, hellos_for_others_are_ignored) {
  UdpHandshake other(job(), {.self = {9, 9}, .peer = waiter_id, .dial = true});
  auto b = waiter();
  EXPECT_FALSE(b.on_hello(carried(other.message()), 0));
  UdpHandshake to_other(job(), {.self = dialler_id, .peer = {9, 9}, .dial = true});
  EXPECT_FALSE(b.on_hello(carried(to_other.message()), 0));
  EXPECT_FALSE(b.answered());
}

TEST(UdpHandshake, a_hello_of_another_job_is_not_read) {
  auto a = dialler();
  UdpHello hello;
  const auto message = *a.message();
  EXPECT_TRUE(read_hello(job(), message.header, bytes_of(message), hello));
  EXPECT_FALSE(read_hello(job(0x5B), message.header, bytes_of(message), hello));
}

TEST(UdpHandshake, a_damaged_hello_is_not_read) {
  auto a = dialler();
  const auto message = *a.message();
  for (size_t at = 0; at < hello_datagram_bytes; ++at) {
    auto bytes = bytes_of(message);
    bytes[at] ^= std::byte{1};
    DatagramHeader header;
    UdpHello hello;
    if (check_shape(bytes, 2000, header) != DatagramFault::none) continue;
    EXPECT_FALSE(read_hello(job(), header, bytes, hello)) << "byte " << at;
  }
  auto bytes = bytes_of(message);
  UdpHello hello;
  for (size_t length = sizeof(DatagramHeader); length < bytes.size(); ++length) {
    EXPECT_FALSE(read_hello(job(), message.header, std::span(bytes).first(length), hello));
  }
}

TEST(UdpHandshake, two_waiting_or_two_dialling_sides_make_no_link) {
  auto a = dialler();
  UdpHandshake b(job(), {.self = waiter_id, .peer = dialler_id, .dial = true});
  EXPECT_FALSE(b.on_hello(carried(a.message()), 0));
  EXPECT_FALSE(a.on_hello(carried(b.message()), 0));
  EXPECT_FALSE(a.done() || b.done());
  EXPECT_EQ(waiter().next_deadline(), never);
}

// With TLS --------------------------------------------------------------------------------------------------------------

std::shared_ptr<const TlsContext> context(char last = '1') {
  return *TlsContext::make({*SecretKey::from_hex(std::string(63, '0') + last)});
}

UdpHandshake with_tls(bool dial, uint64_t attempt = 0, uint32_t window_bytes = 1000) {
  const auto tls = context();
  return UdpHandshake(hello_keys(job(), tls.get())[0], {.self = dial ? dialler_id : waiter_id,
                                                        .peer = dial ? waiter_id : dialler_id,
                                                        .dial = dial,
                                                        .attempt = attempt,
                                                        .window_bytes = window_bytes,
                                                        .tls = tls});
}

std::vector<std::byte> all_bytes_of(const UdpHelloDatagram& datagram) {
  auto bytes = bytes_of(datagram);
  bytes.insert(bytes.end(), datagram.rest.begin(), datagram.rest.end());
  return bytes;
}

// Passes the message of one process to the other. Returns what on_hello() returns.
bool pass(const std::optional<UdpHelloDatagram>& message, UdpHandshake& to, Nanos now = 0) {
  if (!message) return false;
  UdpHello hello;
  UdpHelloTls tls;
  const auto bytes = all_bytes_of(*message);
  EXPECT_TRUE(read_hello(hello_keys(job(), context().get())[0], message->header, bytes, hello, &tls));
  return to.on_hello(hello, now, tls);
}

TEST(UdpHandshakeTls, three_messages_give_both_sides_the_same_secret) {
  auto a = with_tls(true), b = with_tls(false);
  ASSERT_TRUE(pass(a.message(), b));
  ASSERT_TRUE(pass(b.message(), a));
  EXPECT_FALSE(pass(a.message(), b));
  ASSERT_TRUE(a.done() && b.done() && a.secret() && b.secret());
  EXPECT_EQ(a.secret()->secret.bytes, b.secret()->secret.bytes);
  EXPECT_EQ(a.group().run_id, b.group().run_id);
}

TEST(UdpHandshakeTls, the_same_attempt_has_another_secret_each_time) {
  const auto secret = [] {
    auto a = with_tls(true), b = with_tls(false);
    pass(a.message(), b), pass(b.message(), a), pass(a.message(), b);
    return b.secret()->secret.bytes;
  };
  EXPECT_NE(secret(), secret()) << "what the hellos say is equal, but TLS draws random numbers";
}

TEST(UdpHandshakeTls, repetitions_have_the_same_bytes) {
  auto a = with_tls(true), b = with_tls(false);
  const auto ask = all_bytes_of(*a.message());
  EXPECT_EQ(all_bytes_of(*a.message()), ask);
  ASSERT_TRUE(pass(a.message(), b));
  const auto answer = all_bytes_of(*b.message());
  ASSERT_TRUE(pass(a.message(), b, 50 * millisecond)) << "the ask came again";
  EXPECT_EQ(all_bytes_of(*b.message()), answer);
  ASSERT_TRUE(pass(b.message(), a));
  const auto confirm = all_bytes_of(*a.message());
  EXPECT_TRUE(pass(b.message(), a)) << "the answer came again";
  EXPECT_EQ(all_bytes_of(*a.message()), confirm);
  for (const auto& bytes : {ask, answer, confirm}) EXPECT_LE(bytes.size(), base_datagram_bytes);
}

TEST(UdpHandshakeTls, an_ask_of_an_earlier_attempt_has_no_effect) {
  auto old = with_tls(true, 2), a = with_tls(true, 3), b = with_tls(false);
  ASSERT_TRUE(pass(old.message(), b));
  ASSERT_TRUE(pass(a.message(), b)) << "the newer one";
  const auto answer = b.message();
  EXPECT_FALSE(pass(old.message(), b));
  EXPECT_EQ(all_bytes_of(*b.message()), all_bytes_of(*answer));
  ASSERT_TRUE(pass(answer, a));
  pass(a.message(), b);
  EXPECT_TRUE(b.done());
}

TEST(UdpHandshakeTls, recorded_hellos_make_no_link) {
  auto a = with_tls(true, 1), b = with_tls(false, 1);
  const auto ask = a.message();
  pass(ask, b);
  const auto answer = b.message();
  pass(answer, a);
  const auto confirm = a.message();
  pass(confirm, b);
  auto later = with_tls(false, 9), again = with_tls(true, 9);
  EXPECT_FALSE(pass(confirm, later));
  EXPECT_TRUE(pass(ask, later)) << "it is answered";
  EXPECT_FALSE(pass(confirm, later));
  EXPECT_FALSE(later.done());
  EXPECT_FALSE(pass(answer, again));
  EXPECT_FALSE(again.done());
}

TEST(UdpHandshakeTls, a_damaged_flight_does_not_end_the_attempt) {
  auto a = with_tls(true), b = with_tls(false);
  const auto ask = a.message();
  UdpHello hello;
  UdpHelloTls tls;
  auto bytes = all_bytes_of(*ask);
  ASSERT_TRUE(read_hello(hello_keys(job(), context().get())[0], ask->header, bytes, hello, &tls));
  bytes.back() ^= std::byte{1};  // as if a member had sent it so, with a valid tag
  EXPECT_FALSE(b.on_hello(hello, 0, tls));
  EXPECT_FALSE(b.message()) << "it is not answered";
  ASSERT_TRUE(pass(ask, b));
  ASSERT_TRUE(pass(b.message(), a));
}

TEST(UdpHandshakeTls, hellos_with_and_without_tls_are_kept_apart) {
  const auto key = hello_keys(job(), context().get())[0];
  EXPECT_NE(key, job());
  EXPECT_NE(key, hello_keys(job(), context('2').get())[0]);
  UdpHello hello;
  UdpHelloTls tls;
  const auto with = *with_tls(true).message(), without = sealed_hello(key, {.from = dialler_id, .to = waiter_id});
  EXPECT_FALSE(read_hello(key, with.header, all_bytes_of(with), hello));
  EXPECT_FALSE(read_hello(key, without.header, all_bytes_of(without), hello, &tls));
  EXPECT_TRUE(read_hello(key, with.header, all_bytes_of(with), hello, &tls));
}

}  // namespace
}  // namespace unisono
