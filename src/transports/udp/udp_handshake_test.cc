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

}  // namespace
}  // namespace unisono
