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

// Sends the hello over the wire format, as the other side reads it.
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
  ASSERT_TRUE(b.heard(carried(a.message()), 10));
  EXPECT_FALSE(b.done());
  ASSERT_TRUE(a.heard(carried(b.message()), 20));
  EXPECT_TRUE(a.done());
  EXPECT_FALSE(b.heard(carried(a.message()), 30));
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

TEST(UdpHandshake, checksums_are_enough_where_both_sides_say_so) {
  for (const auto of_dialler : {DatagramAuth::mac, DatagramAuth::checksum}) {
    for (const auto of_waiter : {DatagramAuth::mac, DatagramAuth::checksum}) {
      UdpHandshake a(job(), {.self = dialler_id, .peer = waiter_id, .dial = true, .auth = of_dialler}),
          b(job(), {.self = waiter_id, .peer = dialler_id, .auth = of_waiter});
      b.heard(carried(a.message()), 0);
      a.heard(carried(b.message()), 0);
      b.heard(carried(a.message()), 0);
      const auto expected = std::min(of_dialler, of_waiter);
      EXPECT_EQ(a.group().auth, expected);
      EXPECT_EQ(b.group().auth, expected);
    }
  }
}

TEST(UdpHandshake, what_is_no_way_to_authenticate_asks_for_the_safe_one) {
  UdpHandshake a(job(), {.self = dialler_id, .peer = waiter_id, .dial = true, .auth = DatagramAuth::checksum}),
      b(job(), {.self = waiter_id, .peer = dialler_id, .auth = DatagramAuth::checksum});
  b.heard(carried(a.message()), 0);
  auto hello = carried(b.message());
  hello.auth = 0x0101;
  a.heard(hello, 0);
  ASSERT_TRUE(a.done());
  EXPECT_EQ(a.group().auth, DatagramAuth::mac);
}

TEST(UdpHandshake, another_attempt_has_other_keys) {
  const auto keys = [](uint64_t of_dialler, uint64_t of_waiter) {
    auto a = dialler(of_dialler), b = waiter(of_waiter);
    b.heard(carried(a.message()), 0);
    a.heard(carried(b.message()), 0);
    return a.group().key;
  };
  EXPECT_NE(keys(0, 0), keys(1, 0));
  EXPECT_NE(keys(0, 0), keys(0, 1));
  EXPECT_EQ(keys(0, 0), keys(0, 0));
}

TEST(UdpHandshake, messages_are_said_again_until_they_are_answered) {
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
  a.settle();
  EXPECT_EQ(a.next_deadline(), never);
}

TEST(UdpHandshake, a_lost_confirmation_is_said_again) {
  auto a = dialler(), b = waiter();
  b.heard(carried(a.message()), 0);
  a.heard(carried(b.message()), 0);
  // The confirmation is lost. Either side may notice first.
  EXPECT_TRUE(a.due(20 * millisecond));
  EXPECT_TRUE(a.message()->hello.step == UdpHelloStep::confirm);
  EXPECT_TRUE(b.due(20 * millisecond));
  EXPECT_TRUE(a.heard(carried(b.message()), 25 * millisecond)) << "the answer asks for it";
  b.heard(carried(a.message()), 30 * millisecond);
  EXPECT_TRUE(b.done());
}

TEST(UdpHandshake, a_recorded_hello_opens_nothing) {
  auto a = dialler(), b = waiter();
  b.heard(carried(a.message()), 0);
  a.heard(carried(b.message()), 0);
  const auto old = carried(a.message());
  auto later = waiter(7);  // the link is made again
  EXPECT_FALSE(later.heard(old, 0));
  EXPECT_FALSE(later.done());
  auto again = dialler(7);
  EXPECT_FALSE(again.heard(carried(b.message()), 0)) << "an answer to another ask";
  EXPECT_FALSE(again.done());
}

TEST(UdpHandshake, an_old_ask_between_does_not_spoil_it) {
  auto a = dialler(3), before = dialler(2), b = waiter();
  b.heard(carried(a.message()), 0);
  const auto answer = carried(b.message());
  b.heard(carried(before.message()), 0);  // repeated by an unauthenticated peer
  a.heard(answer, 0);
  b.heard(carried(a.message()), 0);
  ASSERT_TRUE(b.done());
  EXPECT_EQ(a.group().key, b.group().key);
}

TEST(UdpHandshake, hellos_for_others_are_ignored) {
  UdpHandshake other(job(), {.self = {9, 9}, .peer = waiter_id, .dial = true});
  auto b = waiter();
  EXPECT_FALSE(b.heard(carried(other.message()), 0));
  UdpHandshake to_other(job(), {.self = dialler_id, .peer = {9, 9}, .dial = true});
  EXPECT_FALSE(b.heard(carried(to_other.message()), 0));
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

TEST(UdpHandshake, two_sides_that_wait_or_dial_come_to_nothing) {
  auto a = dialler();
  UdpHandshake b(job(), {.self = waiter_id, .peer = dialler_id, .dial = true});
  EXPECT_FALSE(b.heard(carried(a.message()), 0));
  EXPECT_FALSE(a.heard(carried(b.message()), 0));
  EXPECT_FALSE(a.done() || b.done());
  EXPECT_EQ(waiter().next_deadline(), never);
}

}  // namespace
}  // namespace unisono
