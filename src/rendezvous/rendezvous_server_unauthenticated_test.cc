// Connections of unauthenticated peers: silent, slow, garbage, hostile.
#include "rendezvous/rendezvous_test_support.h"

namespace unisono::rendezvous {
namespace {

TEST(Rendezvous, silent_unauthenticated_are_dropped_after_a_while_and_counted) {
  Place place;
  place.server.connected(1, "10.0.0.8:1", place.now);
  place.clients.emplace_back(nullptr);
  place.pass(4 * second);
  EXPECT_EQ(place.server.counters().silent, 0u);
  place.pass(second);
  EXPECT_EQ(place.server.counters().silent, 1u);
  EXPECT_EQ(place.server.next_deadline(), never);
}

TEST(Rendezvous, a_unauthenticated_that_sends_a_byte_now_and_then_is_dropped_too) {
  Place place;
  place.server.connected(1, "10.0.0.8:1", place.now);
  place.clients.emplace_back(nullptr);
  const Bytes hello = Client(make_hello(0, 2), never).connected(place.now);
  for (size_t i = 0; i < 6; ++i) {
    place.server.received(1, ByteView(hello).subspan(i, 1), place.now);
    place.pass(second);
  }
  EXPECT_EQ(place.server.counters().silent, 1u);
}

TEST(Rendezvous, http_clients_get_a_line_that_people_can_read) {
  Place place;
  const auto [text, closed] = place.dial_raw("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(closed);
  expect_has(text, {"HTTP/1.0 400", "rendezvous port of a Unisono job"});
  EXPECT_EQ(place.server.counters().http, 1u);
}

TEST(Rendezvous, garbage_is_dropped_and_counted_and_harms_nobody) {
  Place place;
  place.dial(make_hello(0, 2));
  EXPECT_TRUE(place.dial_raw(std::string_view("\x16\x03\x01\x00garbage", 11)).second);
  EXPECT_EQ(place.server.counters().garbage, 1u);
  place.dial(make_hello(1, 2));
  EXPECT_EQ(place.phase(1), Phase::attending);
}

TEST(Rendezvous, a_unauthenticated_cannot_announce_a_large_message) {
  Place place;
  ByteWriter head;
  head.write(message_magic).write(protocol_version).write(uint16_t{1}).write(uint32_t{hello_bytes_max + 1}).write(uint32_t{0});
  EXPECT_TRUE(place.dial_raw({reinterpret_cast<const char*>(head.view().data()), head.view().size()}).second);
}

TEST(Rendezvous, messages_that_only_a_server_sends_are_refused) {
  Place place;
  const Bytes bytes = encode_table(test::make_roster(2));
  EXPECT_TRUE(place.dial_raw({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).second);
}

}  // namespace
}  // namespace unisono::rendezvous
