#include "transports/tcp/tcp_greeting.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace unisono {
namespace {

TcpPreamble preamble() {
  TcpPreamble preamble{.to = {1, 2}};
  seal(preamble);
  return preamble;
}

TcpAddress address(const char* text) {
  const auto parsed = parse_tcp_endpoint(text);
  EXPECT_TRUE(parsed.ok()) << text;
  return *parsed;
}

TcpSessionHello hello(std::span<const TcpWireAddress> addresses = {}) {
  TcpSessionHello hello{.session = 77, .attempt = 1, .from = {3, 4}, .to = {1, 2}};
  seal(hello, addresses);
  return hello;
}

// Returns whether a change of any bit is noticed.
template <typename T, typename Check>
void expect_every_bit_matters(const T& message, const Check& sound) {
  ASSERT_TRUE(sound(message));
  for (size_t bit = 0; bit < sizeof message * 8; ++bit) {
    std::array<unsigned char, sizeof(T)> bytes;
    std::memcpy(bytes.data(), &message, sizeof message);
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    T damaged;
    std::memcpy(&damaged, bytes.data(), sizeof damaged);
    EXPECT_FALSE(sound(damaged)) << "bit " << bit;
  }
}

TEST(TcpGreeting, one_wrong_bit_is_refused) {
  expect_every_bit_matters(preamble(), [](const auto& each) { return check(each) == TcpRefusal::none; });
  expect_every_bit_matters(hello(), [](const auto& each) { return check(each, preamble()) == TcpRefusal::none; });
  TcpSessionReply reply{.accepted = 1, .position = 5, .attempt = 2};
  seal(reply);
  expect_every_bit_matters(reply, [](const auto& each) { return is_sound(each); });
  TcpBegin begin{.position = 9};
  seal(begin);
  expect_every_bit_matters(begin, [](const auto& each) { return is_sound(each); });
}

TEST(TcpGreeting, another_version_is_refused_by_name) {
  auto other = preamble();
  other.version = tcp_greeting_version - 1;
  EXPECT_EQ(check(other), TcpRefusal::version);
  other.magic = 1;
  EXPECT_EQ(check(other), TcpRefusal::not_unisono);
}

TEST(TcpGreeting, magic_and_version_stand_where_every_version_has_them) {
  EXPECT_EQ(offsetof(TcpPreamble, magic), 0u);
  EXPECT_EQ(offsetof(TcpPreamble, version), 8u);
  const auto good = preamble();
  const auto* bytes = reinterpret_cast<const std::byte*>(&good);
  EXPECT_EQ(std::memcmp(bytes, "1UNISONO", 8), 0);
  for (size_t count = 0; count <= sizeof good; ++count) EXPECT_TRUE(may_become_hello(bytes, count));
  const auto http = std::as_bytes(std::span("GET / HTTP/1.1"));
  EXPECT_FALSE(may_become_hello(http.data(), 1));
}

TEST(TcpGreeting, flags_of_a_later_version_are_refused) {
  auto later = preamble();
  later.flags = 4;
  seal(later);
  EXPECT_EQ(check(later), TcpRefusal::not_unisono);
  later = preamble();
  later.reserved = 1;
  seal(later);
  EXPECT_EQ(check(later), TcpRefusal::not_unisono);
}

TEST(TcpGreeting, a_preamble_in_clear_cannot_contradict_the_hello) {
  auto changed = preamble();
  changed.flags = tcp_flag_relayed;
  seal(changed);
  EXPECT_EQ(check(hello(), changed), TcpRefusal::not_unisono);
  changed = preamble();
  changed.to = {1, 3};
  seal(changed);
  EXPECT_EQ(check(hello(), changed), TcpRefusal::not_unisono);
  changed.to = {};
  seal(changed);
  EXPECT_EQ(check(hello(), changed), TcpRefusal::none) << "the process that answers may then be named";
}

TEST(TcpGreeting, a_stream_that_does_not_exist_is_refused) {
  for (const auto& [index, count] : {std::pair<uint16_t, uint16_t>{0, 0}, {1, 1}, {0, tcp_streams_max + 1}}) {
    auto wrong = hello();
    wrong.stream_index = index;
    wrong.stream_count = count;
    seal(wrong, {});
    EXPECT_EQ(check(wrong, preamble()), TcpRefusal::stream);
  }
}

TEST(TcpGreeting, addresses_behind_the_hello_are_counted_and_sealed) {
  std::vector<TcpWireAddress> addresses = {to_wire(address("tcp://10.0.0.7:4040")), to_wire(address("tcp://[2001:db8::7]:1"))};
  const auto sealed = hello(addresses);
  EXPECT_EQ(check(sealed, preamble()), TcpRefusal::none);
  EXPECT_TRUE(check_addresses(sealed, addresses));
  EXPECT_FALSE(check_addresses(sealed, std::span(addresses).first(1)));
  addresses[1].bytes[3] ^= 1;
  EXPECT_FALSE(check_addresses(sealed, addresses));
  addresses[1] = {};
  EXPECT_FALSE(check_addresses(hello(addresses), addresses)) << "no address";
  addresses.resize(tcp_hello_addresses_max + 1);
  EXPECT_EQ(check(hello(addresses), preamble()), TcpRefusal::not_unisono);
}

TEST(TcpGreeting, addresses_survive_the_wire) {
  for (const char* text : {"tcp://10.0.0.7:4040", "tcp://[2001:db8::7]:1"}) {
    EXPECT_EQ(from_wire(to_wire(address(text))).endpoint(), text);
  }
  EXPECT_EQ(to_wire(address("tcp://[::ffff:10.0.0.7]:4040")), to_wire(address("tcp://10.0.0.7:4040")));
  EXPECT_EQ(to_wire(TcpAddress()), TcpWireAddress());
  EXPECT_EQ(from_wire(TcpWireAddress()).bytes, 0u);
}

TEST(TcpGreeting, a_path_is_direct_if_both_sides_see_the_same_ends) {
  const auto here = to_wire(address("tcp://10.0.0.7:4040")), there = to_wire(address("tcp://10.0.0.8:50000"));
  const auto translated = to_wire(address("tcp://10.0.0.8:50001"));
  EXPECT_TRUE(is_direct({here, there}, {there, here}, 0));
  EXPECT_FALSE(is_direct({here, translated}, {there, here}, 0));
  EXPECT_FALSE(is_direct({here, there}, {there, here}, tcp_flag_relayed));
  EXPECT_FALSE(is_direct({}, {}, 0)) << "unknown ends prove nothing";
}

TEST(TcpGreeting, an_accepted_reply_has_no_reason_and_a_refusal_has_one) {
  TcpSessionReply reply{.accepted = 1, .reason = TcpRefusal::stale};
  seal(reply);
  EXPECT_FALSE(is_sound(reply));
  reply.accepted = 0;
  seal(reply);
  EXPECT_TRUE(is_sound(reply));
  reply.reason = TcpRefusal::none;
  seal(reply);
  EXPECT_FALSE(is_sound(reply));
}

}  // namespace
}  // namespace unisono
