// Connections of unauthenticated peers: silent, slow, malformed, and hostile ones.
#include "rendezvous/rendezvous_test_support.h"

namespace unisono::rendezvous {
namespace {

TEST(Rendezvous, silent_peers_are_dropped_after_a_timeout_and_counted) {
  ServerFixture fixture;
  fixture.server.connected(1, "10.0.0.8:1", fixture.now);
  fixture.clients.emplace_back(nullptr);
  fixture.pass(4 * second);
  EXPECT_EQ(fixture.server.counters().silent, 0u);
  fixture.pass(second);
  EXPECT_EQ(fixture.server.counters().silent, 1u);
  EXPECT_EQ(fixture.server.next_deadline(), never);
}

TEST(Rendezvous, a_peer_that_sends_single_bytes_is_dropped_too) {
  ServerFixture fixture;
  fixture.server.connected(1, "10.0.0.8:1", fixture.now);
  fixture.clients.emplace_back(nullptr);
  const Bytes hello = Client(make_hello(0, 2), never).connected(fixture.now);
  for (size_t i = 0; i < 6; ++i) {
    fixture.server.received(1, ByteView(hello).subspan(i, 1), fixture.now);
    fixture.pass(second);
  }
  EXPECT_EQ(fixture.server.counters().silent, 1u);
}

TEST(Rendezvous, http_clients_get_a_readable_reply) {
  ServerFixture fixture;
  const auto [text, closed] = fixture.dial_raw("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(closed);
  expect_has(text, {"HTTP/1.0 400", "rendezvous port of a Unisono job"});
  EXPECT_EQ(fixture.server.counters().http, 1u);
}

TEST(Rendezvous, malformed_data_is_dropped_and_counted_without_harm) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 2));
  EXPECT_TRUE(fixture.dial_raw(std::string_view("\x16\x03\x01\x00garbage", 11)).second);
  EXPECT_EQ(fixture.server.counters().garbage, 1u);
  fixture.dial(make_hello(1, 2));
  EXPECT_EQ(fixture.phase(1), Phase::attending);
}

TEST(Rendezvous, an_unauthenticated_peer_cannot_announce_a_large_message) {
  ServerFixture fixture;
  ByteWriter head;
  head.write(message_magic).write(protocol_version).write(uint16_t{1}).write(uint32_t{hello_bytes_max + 1}).write(uint32_t{0});
  EXPECT_TRUE(fixture.dial_raw({reinterpret_cast<const char*>(head.view().data()), head.view().size()}).second);
}

TEST(Rendezvous, messages_that_only_a_server_sends_are_refused) {
  ServerFixture fixture;
  const Bytes bytes = encode_table(test::make_roster(2));
  EXPECT_TRUE(fixture.dial_raw({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).second);
}

}  // namespace
}  // namespace unisono::rendezvous
