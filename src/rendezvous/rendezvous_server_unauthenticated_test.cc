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
  EXPECT_TRUE(fixture.dial_raw(std::string_view("\x17\x03\x01\x00garbage", 11)).second);
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

constexpr const char* other_key = "authentication failed: its key differs from ours, or it has none";

// A server with one key. Rank 0 of 2 has shown it, and waits on connection 1.
struct KeyedServer : ServerFixture {
  explicit KeyedServer(size_t key_count = 1, const std::string& only_job = "secret-job")
      : ServerFixture({.key_count = key_count, .only_job = only_job}) {
    if (!only_job.empty()) dial_with_key(make_hello(0, 2, only_job));
  }
  size_t dial_with_key(const Hello& hello, size_t key = 0) {
    clients.emplace_back(std::make_unique<Client>(hello, now + 60 * second));
    const auto connection = clients.size();
    server.connected(connection, concat("10.0.0.9:", connection), now);
    server.authenticated(connection, key);
    server.received(connection, clients.back()->connected(now), now);
    deliver();
    return connection;
  }
  // The process has begun TLS with another key.
  void dial_with_another_key() {
    clients.emplace_back(nullptr);
    server.connected(clients.size(), "10.0.0.7:1", now);
    server.rejected(clients.size(), now);
    deliver();
  }
  std::string dial_in_clear(const Hello& hello) {
    const auto bytes = Client(hello, now + 60 * second).connected(now);
    const auto [answer, closed] = dial_raw({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    EXPECT_TRUE(closed);
    return answer;
  }
};

TEST(RendezvousKeys, a_process_without_a_key_is_told_so_and_nothing_about_the_job) {
  KeyedServer fixture;
  const auto answer = fixture.dial_in_clear(make_hello(1, 2, "guess"));
  expect_has(answer,
             {"authentication failed: the job at this address has a key, and this process has none", "UNISONO_KEY_FILE"});
  for (const auto* told : {"secret-job", "guess", "h0", "rank 0", "world", UNISONO_VERSION})
    EXPECT_EQ(answer.find(told), std::string::npos) << told << " is in: " << answer;
  // The envelope has the protocol version behind the magic number.
  EXPECT_EQ(answer.substr(4, 2), std::string(2, '\0'));
  EXPECT_EQ(fixture.server.counters().unauthenticated, 1u);
}

TEST(RendezvousKeys, a_process_without_a_key_understands_the_answer) {
  KeyedServer fixture;
  const auto c = fixture.dial(make_hello(1, 2, "secret-job"));
  EXPECT_EQ(fixture.phase(c), Phase::refused);
  EXPECT_EQ(fixture.client(c).error().code(), Code::invalid);
  expect_has(fixture.error(c), {"this process has none: set UNISONO_KEY_FILE"});
}

TEST(RendezvousKeys, a_process_without_the_key_ends_nothing_and_is_named_to_those_that_miss_a_rank) {
  KeyedServer fixture;
  auto hello = make_hello(1, 2, "secret-job");
  hello.host = "b";
  fixture.dial_in_clear(hello);
  fixture.dial_with_another_key();
  EXPECT_EQ(fixture.phase(1), Phase::waiting);
  fixture.pass(60 * second);
  expect_has(fixture.error(1), {"rank 1 of 2 missing", std::string("not authenticated: [rank 1 (host b): ") + other_key,
                                std::string("[a process at 10.0.0.7:1: ") + other_key + "]"});
}

TEST(RendezvousKeys, what_a_process_without_the_key_says_changes_nothing) {
  KeyedServer fixture;
  for (uint32_t world = 1; world < 9; ++world) fixture.dial_in_clear(make_hello(0, world, "secret-job", world));
  fixture.dial_in_clear(make_joiner(5, "secret-job"));
  auto attender = make_hello(0, 2, "secret-job");
  attender.role = Role::attending_member;
  fixture.dial_in_clear(attender);
  EXPECT_EQ(fixture.phase(1), Phase::waiting);
  fixture.dial_with_key(make_hello(1, 2, "secret-job"));
  EXPECT_EQ(fixture.phase(1), Phase::attending);
  fixture.dial_in_clear(attender);
  EXPECT_EQ(fixture.phase(1), Phase::attending);
  EXPECT_TRUE(fixture.client(1).joiners().empty());
}

TEST(RendezvousKeys, malformed_messages_in_clear_get_no_details) {
  KeyedServer fixture;
  const auto table = encode_table(test::make_roster(2));
  const auto answer = fixture.dial_raw({reinterpret_cast<const char*>(table.data()), table.size()});
  EXPECT_TRUE(answer.second);
  expect_has(answer.first, {"authentication failed"});
  EXPECT_EQ(answer.first.find("kind"), std::string::npos);
  expect_has(fixture.dial_raw("GET / HTTP/1.1\r\n\r\n").first, {"rendezvous port of a Unisono job"});
  EXPECT_EQ(fixture.dial_raw("garbage").first, "");
}

TEST(RendezvousKeys, a_server_that_ends_tells_the_reason_to_those_with_a_key_only) {
  KeyedServer fixture;
  fixture.clients.emplace_back(nullptr);
  fixture.server.connected(2, "10.0.0.8:1", fixture.now);
  fixture.server.shut_down({Code::unavailable, "job 'secret-job' has ended"}, fixture.now);
  for (const auto& send : fixture.server.take_sends()) EXPECT_EQ(send.bytes != nullptr, send.to == 1) << send.to;
}

TEST(RendezvousKeys, equal_names_with_different_keys_are_different_jobs) {
  KeyedServer fixture(2, "");
  const auto a = fixture.dial_with_key(make_hello(0, 2, "default"), 0);
  const auto b = fixture.dial_with_key(make_hello(0, 3, "default"), 1);
  const auto c = fixture.dial_with_key(make_hello(1, 2, "default", 5), 1);
  EXPECT_EQ(fixture.phase(a), Phase::waiting);
  EXPECT_EQ(fixture.phase(b), Phase::refused) << "of the same key, without a majority";
  EXPECT_EQ(fixture.phase(c), Phase::refused);
  fixture.dial_with_key(make_hello(1, 2, "default"), 0);
  EXPECT_EQ(fixture.phase(a), Phase::attending);
  std::string events;
  for (const auto& event : fixture.server.take_events()) events += event.job + "; ";
  expect_has(events, {"default (key 1)", "default (key 2)"});
}

TEST(RendezvousKeys, a_process_with_a_key_is_told_by_a_server_without_one) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 2));
  const auto [answer, closed] = fixture.dial_raw(std::string_view("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_TRUE(closed);
  expect_has(answer, {"authentication failed: this process has a key, and the server at this address has none"});
  EXPECT_EQ(fixture.phase(1), Phase::waiting);
  EXPECT_EQ(fixture.server.counters().unauthenticated, 1u);
}

TEST(RendezvousKeys, idle_connections_give_way_to_new_ones) {
  ServerFixture fixture({.connections_max = 3});
  fixture.dial(make_hello(0, 2));
  for (const size_t number : {2, 3}) {
    fixture.clients.emplace_back(nullptr);
    fixture.server.connected(number, "10.0.0.8:1", fixture.now);
  }
  ASSERT_TRUE(fixture.server.is_crowded());
  ASSERT_EQ(fixture.server.oldest_unauthenticated(), 2u);
  fixture.server.disconnected(2, fixture.now);
  fixture.dial(make_hello(1, 2));
  EXPECT_EQ(fixture.phase(1), Phase::attending);
}

TEST(RefusalLog, reports_at_a_bounded_rate_and_counts_the_rest) {
  RefusalLog log;
  int reported = 0;
  for (int i = 0; i < 1000; ++i) reported += log.add(concat("text ", i), second) ? 1 : 0;
  EXPECT_EQ(reported, 4);
  EXPECT_EQ(log.add("later", second + RefusalLog::period), "later (996 more before it)");
  EXPECT_EQ(log.summary(), "; not authenticated: [text 0] [text 1] [text 2] [text 3] and 997 more");
}

TEST(RefusalLog, a_claim_is_short_and_has_no_control_characters) {
  auto hello = make_hello(3, 8);
  hello.host = "evil\nhost\x1b" + std::string(200, 'x');
  const auto claim = claim_of(hello);
  expect_has(claim, {"rank 3 (host evil?host?xxx"});
  EXPECT_LT(claim.size(), 100u);
}

}  // namespace
}  // namespace unisono::rendezvous
