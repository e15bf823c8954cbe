#include "rendezvous/rendezvous_client.h"

#include "rendezvous/rendezvous_test_support.h"

namespace unisono::rendezvous {
namespace {

Client registered(uint32_t rank, uint32_t world) {
  Client client(make_hello(rank, world), 100 * second);
  (void)client.connected(40 * second);
  client.received(encode(Welcome{{5, 5}, library_version}), 40 * second);
  return client;
}

void receive_text(Client& client, std::string_view text) {
  client.received(ByteView(reinterpret_cast<const std::byte*>(text.data()), text.size()), 40 * second);
}

TEST(RendezvousClient, tells_the_server_how_long_it_will_wait) {
  Client client(make_hello(0, 2), 100 * second);
  MessageStream stream;
  stream.append(client.connected(40 * second));
  EXPECT_EQ(decode_hello(stream.next(hello_bytes_max)->payload, protocol_version)->remaining_ms, 60'000u);
  (void)client.disconnected();
  stream.append(client.connected(200 * second));
  EXPECT_EQ(decode_hello(stream.next(hello_bytes_max)->payload, protocol_version)->remaining_ms, 1u);
}

TEST(RendezvousClient, dials_again_when_the_connection_ends_before_the_table) {
  Client client = registered(1, 2);
  EXPECT_EQ(client.phase(), Phase::waiting);
  EXPECT_TRUE(client.disconnected());
  EXPECT_EQ(client.phase(), Phase::unconnected);
}

TEST(RendezvousClient, reports_a_connection_that_ended_without_a_byte) {
  Client client(make_hello(0, 2), 100 * second);
  (void)client.connected(0);
  EXPECT_FALSE(client.disconnected());
}

TEST(RendezvousClient, names_a_program_that_is_not_a_rendezvous_server) {
  Client client(make_hello(0, 2), 100 * second);
  (void)client.connected(0);
  receive_text(client, "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(client.phase(), Phase::unauthenticated);
  EXPECT_EQ(client.error().message(), "an HTTP server");
}

TEST(RendezvousClient, treats_its_own_hello_as_another_program) {
  Client client(make_hello(0, 2), 100 * second);
  const Bytes hello = client.connected(0);
  client.received(hello, 0);
  EXPECT_EQ(client.phase(), Phase::unauthenticated);
}

TEST(RendezvousClient, refuses_a_table_without_itself_at_its_rank) {
  for (const uint32_t world : {2u, 3u}) {
    Client client = registered(1, world);
    Roster roster = test::make_roster(3);
    if (world == 3) std::swap(roster.members[1].id, roster.members[2].id);
    client.received(encode_table(roster), 41 * second);
    EXPECT_EQ(client.phase(), Phase::refused);
    EXPECT_EQ(client.error().code(), Code::corrupt);
    EXPECT_FALSE(client.take_roster());
  }
}

TEST(RendezvousClient, refuses_malformed_data) {
  Client client = registered(1, 2);
  Bytes table = encode_table(test::make_roster(2));
  table.back() ^= std::byte{1};
  client.received(table, 41 * second);
  EXPECT_EQ(client.phase(), Phase::refused);
  EXPECT_EQ(client.error().code(), Code::corrupt);
}

TEST(RendezvousClient, ignores_messages_after_the_end) {
  Client client = registered(1, 2);
  client.received(encode_refused({Code::late, "rank 0 is missing"}), 41 * second);
  client.received(encode_table(test::make_roster(2)), 42 * second);
  EXPECT_EQ(client.phase(), Phase::refused);
  EXPECT_EQ(client.error().message(), "rank 0 is missing");
}

TEST(RendezvousClient, names_both_versions_to_a_server_of_another_protocol) {
  Client client(make_hello(0, 2), 100 * second);
  (void)client.connected(0);
  Bytes bytes = encode_refused({Code::unsupported, "I am newer"});  // every protocol version can read `refused`
  client.received(bytes, 0);
  EXPECT_EQ(client.error().message(), "I am newer");
}

TEST(RendezvousClient, forgets_joiners_when_the_connection_ends) {
  Client client = registered(0, 1);
  client.received(encode_table(test::make_roster(1)), 41 * second);
  ASSERT_EQ(client.phase(), Phase::attending);
  client.received(encode_joiner(test::member(7)), 42 * second);
  EXPECT_EQ(client.joiners().size(), 1u);
  (void)client.disconnected();
  EXPECT_TRUE(client.joiners().empty());
  EXPECT_FALSE(client.answer(test::member(7).id, Status(Code::invalid, "no")));
}

}  // namespace
}  // namespace unisono::rendezvous
