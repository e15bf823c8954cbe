#include "membership/rendezvous_server.h"

#include <gtest/gtest.h>

#include "membership/rendezvous_client.h"
#include "membership/test_support.h"
#include "wire/checksum.h"

namespace unisono::rendezvous {
namespace {

Hello make_hello(uint32_t rank, uint32_t world, const std::string& job = "job", uint64_t life = 1) {
  Hello hello;
  hello.member = test::member(rank, life);
  hello.host = hello.member.host;
  hello.pid = hello.member.pid;
  hello.job = job;
  hello.world_size = world;
  hello.transport = "auto";
  return hello;
}

Hello make_joiner(uint32_t number, const std::string& job = "job") {
  Hello hello = make_hello(number, 0, job, 2);
  hello.role = Role::joiner;
  return hello;
}

// A hello message of another protocol version: the envelope is the same in all versions.
std::string test_seal(uint16_t protocol, ByteView payload) {
  ByteWriter writer;
  writer.write(message_magic).write(protocol).write(uint16_t{1}).write(static_cast<uint32_t>(payload.size()));
  const auto checksum = crc32c(payload.data(), payload.size(), crc32c(writer.view().data(), writer.view().size()));
  writer.write(checksum);
  std::string text(reinterpret_cast<const char*>(writer.view().data()), writer.view().size());
  return text.append(reinterpret_cast<const char*>(payload.data()), payload.size());
}

// A server and its clients without a network: what one says, the other hears at once. Clients number their connections.
class Place {
 public:
  explicit Place(ServerSettings settings = {}) : server(complete(std::move(settings))) {}

  // Dials with this hello; the number of the connection.
  size_t dial(const Hello& hello, Nanos timeout = 60 * second) {
    clients.emplace_back(std::make_unique<Client>(hello, now + timeout));
    const auto connection = clients.size();
    server.connected(connection, "10.0.0.9:" + std::to_string(connection), now);
    server.received(connection, clients.back()->connected(now), now);
    deliver();
    return connection;
  }
  // A connection that says these bytes; what came back, and whether it was closed.
  std::pair<std::string, bool> dial_raw(std::string_view text) {
    clients.emplace_back(nullptr);
    const auto connection = clients.size();
    server.connected(connection, "10.0.0.8:1", now);
    server.received(connection, ByteView(reinterpret_cast<const std::byte*>(text.data()), text.size()), now);
    std::pair<std::string, bool> out;
    for (const auto& send : server.take_sends()) {
      if (send.bytes) out.first.append(reinterpret_cast<const char*>(send.bytes->data()), send.bytes->size());
      out.second = out.second || send.close;
    }
    if (out.second) server.disconnected(connection, now);
    return out;
  }
  void say(size_t from, const Bytes& bytes) {
    server.received(from, bytes, now);
    deliver();
  }
  void hang_up(size_t connection) {
    (void)client(connection).disconnected();
    server.disconnected(connection, now);
    deliver();
  }
  void pass(Nanos time) {
    now += time;
    if (server.next_deadline() <= now) server.woke(now);
    deliver();
  }
  void deliver() {
    for (auto sends = server.take_sends(); !sends.empty(); sends = server.take_sends()) {
      for (const auto& send : sends) {
        auto* client = clients[send.to - 1].get();
        if (client != nullptr && send.bytes) client->received(*send.bytes, now);
        if (send.close) server.disconnected(send.to, now);
      }
    }
  }
  Client& client(size_t connection) { return *clients[connection - 1]; }
  Client::Phase phase(size_t connection) { return client(connection).phase(); }
  std::string error(size_t connection) { return client(connection).error().message(); }

  Nanos now = 100 * second;
  Server server;
  std::vector<std::unique_ptr<Client>> clients;

 private:
  static ServerSettings complete(ServerSettings settings) {
    settings.identity = {5, 5};
    if (settings.label.empty()) settings.label = "rank 0 (host h0, pid 100)";
    settings.make_key = [] {
      RosterKey key;
      key.fill(std::byte{9});
      return key;
    };
    return settings;
  }
};

using Phase = Client::Phase;

void expect_has(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(Rendezvous, all_ranks_get_the_same_table_when_the_last_has_come) {
  Place place;
  for (const uint32_t rank : {2u, 0u, 3u}) EXPECT_EQ(place.phase(place.dial(make_hello(rank, 4))), Phase::waiting);
  place.dial(make_hello(1, 4));
  for (size_t c = 1; c <= 4; ++c) {
    EXPECT_EQ(place.phase(c), c == 2 ? Phase::attending : Phase::met);
    const auto roster = place.client(c).take_roster();
    ASSERT_TRUE(roster);
    EXPECT_EQ(roster->epoch, 1u);
    ASSERT_EQ(roster->members.size(), 4u);
    for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(roster->members[rank], test::member(rank));
  }
}

TEST(Rendezvous, a_world_of_one_meets_at_once) {
  Place place;
  EXPECT_EQ(place.phase(place.dial(make_hello(0, 1))), Phase::attending);
}

TEST(Rendezvous, the_largest_world_meets) {
  Place place;
  place.dial(make_hello(0, world_size_max));
  for (uint32_t rank = 1; rank + 1 < world_size_max; ++rank) {  // their tables would fill the memory of a small machine
    place.clients.emplace_back(nullptr);
    place.server.connected(rank + 1, "10.0.0.9:1", place.now);
    place.server.received(rank + 1, Client(make_hello(rank, world_size_max), never).connected(place.now), place.now);
  }
  const auto last = place.dial(make_hello(world_size_max - 1, world_size_max));
  EXPECT_EQ(place.phase(1), Phase::attending);
  EXPECT_EQ(place.phase(last), Phase::met);
  EXPECT_EQ(place.client(last).take_roster()->members.size(), world_size_max);
}

TEST(Rendezvous, missing_ranks_are_named_to_everyone_who_came) {
  Place place;
  for (const uint32_t rank : {0u, 1u, 2u, 4u, 6u, 7u}) place.dial(make_hello(rank, 8));
  place.pass(60 * second);
  for (size_t c = 1; c <= 6; ++c) {
    EXPECT_EQ(place.phase(c), Phase::refused);
    EXPECT_EQ(place.client(c).error().code(), Code::late);
    expect_has(place.error(c), {"ranks 3, 5 of 8 missing after 60.0 s",
                                "here: rank 0 (host h0, pid 100), rank 1 (host h1, pid 101)", "rank 7 (host h7, pid 107)"});
  }
}

TEST(Rendezvous, the_first_member_to_give_up_ends_the_waiting_of_all) {
  Place place;
  place.dial(make_hello(0, 3), 60 * second);
  place.pass(10 * second);
  place.dial(make_hello(1, 3), 20 * second);
  place.pass(20 * second);
  EXPECT_EQ(place.phase(1), Phase::refused);
  EXPECT_EQ(place.phase(2), Phase::refused);
  expect_has(place.error(1), {"rank 2 of 3 missing after 30.0 s"});
}

TEST(Rendezvous, a_member_that_leaves_takes_its_deadline_with_it) {
  Place place;
  const auto hasty = place.dial(make_hello(1, 3), 5 * second);
  place.dial(make_hello(0, 3), 60 * second);
  place.hang_up(hasty);
  place.pass(30 * second);
  EXPECT_EQ(place.phase(2), Phase::waiting);
}

TEST(Rendezvous, long_lists_of_missing_ranks_are_cut) {
  Place place;
  place.dial(make_hello(0, 4096));
  place.pass(60 * second);
  expect_has(place.error(1), {"and 4079 more"});
  EXPECT_LT(place.error(1).size(), 400u);
}

TEST(Rendezvous, two_processes_that_claim_one_rank_are_both_named_and_the_first_stays) {
  Place place;
  place.dial(make_hello(0, 3));
  place.dial(make_hello(1, 3));
  Hello rival = make_hello(1, 3, "job", 7);
  rival.member.host = "other";
  rival.member.pid = 4242;
  const auto c = place.dial(rival);
  EXPECT_EQ(place.phase(c), Phase::refused);
  EXPECT_EQ(place.client(c).error().code(), Code::invalid);
  expect_has(place.error(c), {"rank 1 of 3 is claimed twice", "host h1, pid 101", "host other, pid 4242"});
  EXPECT_EQ(place.phase(2), Phase::waiting);
  place.pass(60 * second);
  expect_has(place.error(1), {"rank 2 of 3 missing", "turned away:", "rank 1 (host h1, pid 101, from 10.0.0.9:3)"});
}

TEST(Rendezvous, a_process_that_dials_again_replaces_its_older_connection) {
  Place place;
  place.dial(make_hello(0, 2));
  const auto again = place.dial(make_hello(0, 2));
  EXPECT_EQ(place.phase(again), Phase::waiting);
  place.dial(make_hello(1, 2));
  EXPECT_EQ(place.phase(again), Phase::attending);
}

TEST(Rendezvous, a_process_that_leaves_frees_its_rank) {
  Place place;
  place.dial(make_hello(0, 3));
  place.hang_up(place.dial(make_hello(1, 3, "job", 7)));
  place.dial(make_hello(1, 3, "job", 8));
  EXPECT_EQ(place.phase(1), Phase::waiting);
  place.dial(make_hello(2, 3));
  EXPECT_EQ(place.phase(1), Phase::attending);
  EXPECT_EQ(place.client(1).take_roster()->members[1].id, (PeerId{2, 8}));
}

TEST(Rendezvous, one_process_cannot_hold_two_ranks) {
  Place place;
  place.dial(make_hello(0, 3));
  Hello twin = make_hello(1, 3);
  twin.member.id = test::member(0).id;
  EXPECT_EQ(place.phase(place.dial(twin)), Phase::refused);
}

TEST(Rendezvous, different_world_sizes_are_told_to_all_with_who_said_what) {
  Place place;
  place.dial(make_hello(0, 4));
  place.dial(make_hello(1, 4));
  const auto c = place.dial(make_hello(2, 8));
  for (const size_t each : {size_t{1}, size_t{2}, c}) {
    EXPECT_EQ(place.phase(each), Phase::refused);
    EXPECT_EQ(place.client(each).error().code(), Code::invalid);
    expect_has(place.error(each),
               {"disagree on the world size", "rank 0 (host h0, pid 100) says 4", "rank 2 (host h2, pid 102) says 8"});
  }
}

TEST(Rendezvous, different_library_versions_are_told_to_all) {
  Place place;
  place.dial(make_hello(0, 4));
  Hello other = make_hello(2, 4);
  other.version = "9.9.9";
  const auto c = place.dial(other);
  for (const size_t each : {size_t{1}, c}) {
    EXPECT_EQ(place.client(each).error().code(), Code::unsupported);
    expect_has(place.error(each),
               {"rank 0 (host h0, pid 100) runs unisono 0.1.0, protocol 1", "rank 2 (host h2, pid 102) runs unisono 9.9.9"});
  }
}

TEST(Rendezvous, another_protocol_version_is_told_and_named_if_ranks_stay_missing) {
  Place place;
  place.dial(make_hello(0, 2));
  ByteWriter future;  // the same envelope and first fields, but protocol 2: made by the next version
  future.write_string("9.9.9").write_string("h1").write(int32_t{101}).write_string("job").write(uint64_t{123});
  const auto raw = place.dial_raw(test_seal(2, future.view()));
  expect_has(raw.first,
             {"this process runs unisono 9.9.9, protocol 2", "rank 0 (host h0, pid 100), runs unisono 0.1.0, protocol 1"});
  EXPECT_TRUE(raw.second);
  place.pass(60 * second);
  expect_has(place.error(1), {"rank 1 of 2 missing", "turned away: [host h1, pid 101"});
}

TEST(Rendezvous, shm_only_across_hosts_is_told_to_all) {
  Place place;
  Hello first = make_hello(0, 4);
  first.transport = "shm";
  place.dial(first);
  const auto c = place.dial(make_hello(1, 4));
  for (const size_t each : {size_t{1}, c}) {
    EXPECT_EQ(place.phase(each), Phase::refused);
    expect_has(place.error(each),
               {"rank 0 (host h0, pid 100) asks for transport shm", "rank 1 (host h1, pid 101) is not on the same host"});
  }
}

TEST(Rendezvous, shm_only_on_one_host_meets_whatever_the_host_is_called) {
  Place place;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Hello hello = make_hello(rank, 2);  // host names differ, as in containers
    hello.transport = "shm";
    hello.member.endpoints = {"tcp://10.0.0.1:1", "shm://boot-7/name" + std::to_string(rank)};
    place.dial(hello);
  }
  EXPECT_EQ(place.phase(1), Phase::attending);
}

TEST(Rendezvous, shm_against_tcp_is_told_to_all) {
  Place place;
  Hello shm = make_hello(0, 2);
  shm.transport = "shm";
  Hello tcp = make_hello(1, 2);
  tcp.transport = "tcp";
  tcp.member.host = shm.member.host;
  place.dial(shm);
  expect_has(place.error(place.dial(tcp)), {"asks for transport shm", "asks for transport tcp"});
}

TEST(Rendezvous, another_job_at_a_server_of_one_job_is_turned_away_and_harms_nobody) {
  Place place({.only_job = "job"});
  place.dial(make_hello(0, 2));
  const auto c = place.dial(make_hello(0, 2, "other"));
  EXPECT_EQ(place.phase(c), Phase::refused);
  expect_has(place.error(c), {"belongs to job 'other'", "rank 0 (host h0, pid 100) serves job 'job'"});
  EXPECT_EQ(place.phase(1), Phase::waiting);
  place.pass(60 * second);
  expect_has(place.error(1), {"turned away:", "job 'other', rank 0 (host h0, pid 100"});
}

TEST(Rendezvous, a_standalone_server_serves_jobs_at_once_and_one_after_another) {
  Place place;
  place.dial(make_hello(0, 2, "a"));
  place.dial(make_hello(0, 2, "b"));
  place.dial(make_hello(1, 2, "b"));
  place.dial(make_hello(1, 2, "a"));
  for (size_t c = 1; c <= 4; ++c) EXPECT_EQ(place.phase(c), c <= 2 ? Phase::attending : Phase::met);
  place.hang_up(1);
  place.dial(make_hello(0, 1, "a", 9));
  EXPECT_EQ(place.phase(5), Phase::attending);
}

TEST(Rendezvous, a_member_of_a_job_that_runs_is_told_so) {
  Place place;
  place.dial(make_hello(0, 1));
  place.pass(12 * second);
  const auto c = place.dial(make_hello(0, 1, "job", 9));
  EXPECT_EQ(place.phase(c), Phase::refused);
  expect_has(place.error(c), {"job 'job' is running already, since 12.0 s", "rank 0 (host h0, pid 100)", "join_running"});
}

TEST(Rendezvous, a_failed_run_tells_late_members_the_same) {
  Place place({.only_job = "job", .keep_verdicts = true});
  place.dial(make_hello(0, 4));
  place.dial(make_hello(1, 8));
  const auto late = place.dial(make_hello(2, 8));
  expect_has(place.error(late), {"disagree on the world size"});
  EXPECT_EQ(place.server.job("job")->told, 3u);
}

TEST(Rendezvous, joiners_are_announced_to_the_attending_rank_and_answered) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto c = place.dial(make_joiner(5));
  EXPECT_EQ(place.phase(c), Phase::waiting);
  auto joiners = place.client(1).joiners();
  ASSERT_EQ(joiners.size(), 1u);
  Roster roster = test::make_roster(1, 2);
  roster.members.push_back(joiners[0]);
  roster.members[1].rank = 1;
  const auto answer = place.client(1).answer(joiners[0].id, roster);
  ASSERT_TRUE(answer);
  place.say(1, *answer);
  EXPECT_EQ(place.phase(c), Phase::met);
  EXPECT_EQ(place.client(c).take_roster(), roster);
  EXPECT_TRUE(place.client(1).joiners().empty());
}

TEST(Rendezvous, a_joiner_can_be_refused_with_a_reason) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto c = place.dial(make_joiner(5));
  place.say(1, *place.client(1).answer(make_joiner(5).member.id, Status(Code::unavailable, "the group is full")));
  EXPECT_EQ(place.phase(c), Phase::refused);
  EXPECT_EQ(place.error(c), "the group is full");
}

TEST(Rendezvous, a_joiner_may_come_before_the_group) {
  Place place;
  place.dial(make_joiner(5));
  place.dial(make_hello(0, 1));
  EXPECT_EQ(place.client(2).joiners().size(), 1u);
}

TEST(Rendezvous, a_joiner_that_leaves_is_taken_back) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto c = place.dial(make_joiner(5));
  place.hang_up(c);
  EXPECT_TRUE(place.client(1).joiners().empty());
}

TEST(Rendezvous, a_joiner_that_waits_too_long_is_told_what_the_group_does) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto c = place.dial(make_joiner(5), 10 * second);
  place.pass(10 * second);
  EXPECT_EQ(place.client(c).error().code(), Code::late);
  expect_has(place.error(c), {"attended by rank 0 (host h0, pid 100)", "was not re-formed", "10.0 s"});
  EXPECT_TRUE(place.client(1).joiners().empty());
  const auto nobody = place.dial(make_joiner(6, "elsewhere"), 10 * second);
  place.pass(10 * second);
  expect_has(place.error(nobody), {"has no running group"});
}

TEST(Rendezvous, a_joiner_of_another_version_is_refused) {
  Place place;
  place.dial(make_hello(0, 1));
  Hello other = make_joiner(5);
  other.version = "9.9.9";
  expect_has(place.error(place.dial(other)), {"runs unisono 9.9.9", "runs unisono 0.1.0"});
  EXPECT_TRUE(place.client(1).joiners().empty());
}

TEST(Rendezvous, too_many_joiners_are_refused) {
  Place place({.joiners_max = 2});
  place.dial(make_hello(0, 1));
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(place.phase(place.dial(make_joiner(i + 5))), Phase::waiting);
  EXPECT_EQ(place.phase(place.dial(make_joiner(9))), Phase::refused);
}

// The hello of a member of a running group that wants to be told of joiners.
size_t attend(Place& place, uint32_t rank, uint32_t epoch) {
  Client client(make_hello(rank, 2), never);
  Roster roster = test::make_roster(2, epoch);
  roster.key.fill(std::byte{9});
  (void)client.attend(roster, rank);
  place.clients.emplace_back(std::make_unique<Client>(client));
  const auto connection = place.clients.size();
  place.server.connected(connection, "10.0.0.7:1", place.now);
  place.say(connection, place.client(connection).connected(place.now));
  return connection;
}

TEST(Rendezvous, a_new_attending_rank_takes_over_with_the_joiners_that_wait) {
  Place place;
  place.dial(make_hello(0, 1));
  place.dial(make_joiner(5));
  place.hang_up(1);  // rank 0 died
  const auto c = attend(place, 1, 2);
  EXPECT_EQ(place.phase(c), Phase::attending);
  EXPECT_EQ(place.client(c).joiners().size(), 1u);
}

TEST(Rendezvous, an_attending_rank_of_a_later_epoch_replaces_a_stopped_one) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto c = attend(place, 1, 2);
  EXPECT_EQ(place.phase(c), Phase::attending);
  EXPECT_EQ(place.client(1).error().code(), Code::peer_lost);
}

TEST(Rendezvous, an_attending_rank_of_the_same_epoch_does_not_replace_another) {
  Place place;
  place.dial(make_hello(0, 1));
  EXPECT_EQ(place.phase(attend(place, 1, 1)), Phase::refused);
  EXPECT_EQ(place.phase(1), Phase::attending);
}

TEST(Rendezvous, silent_strangers_are_dropped_after_a_while_and_counted) {
  Place place;
  place.server.connected(1, "10.0.0.8:1", place.now);
  place.clients.emplace_back(nullptr);
  place.pass(4 * second);
  EXPECT_EQ(place.server.counters().silent, 0u);
  place.pass(second);
  EXPECT_EQ(place.server.counters().silent, 1u);
  EXPECT_EQ(place.server.next_deadline(), never);
}

TEST(Rendezvous, a_stranger_that_sends_a_byte_now_and_then_is_dropped_too) {
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

TEST(Rendezvous, a_stranger_cannot_announce_a_large_message) {
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

TEST(Rendezvous, connections_over_the_limit_are_told_and_counted) {
  Place place({.connections_max = 2});
  place.dial(make_hello(0, 4));
  place.dial(make_hello(1, 4));
  const auto c = place.dial(make_hello(2, 4));
  EXPECT_EQ(place.phase(c), Phase::refused);
  EXPECT_EQ(place.server.counters().crowded, 1u);
}

TEST(Rendezvous, jobs_over_the_limit_are_refused) {
  Place place({.jobs_max = 1});
  place.dial(make_hello(0, 2, "a"));
  EXPECT_EQ(place.phase(place.dial(make_hello(0, 2, "b"))), Phase::refused);
  place.hang_up(1);
  EXPECT_EQ(place.phase(place.dial(make_hello(0, 2, "b", 3))), Phase::waiting);
}

TEST(Rendezvous, shutting_down_tells_everyone) {
  Place place;
  place.dial(make_hello(0, 2));
  place.server.shut_down({Code::unavailable, "stopped"}, place.now);
  place.deliver();
  EXPECT_EQ(place.error(1), "stopped");
}

}  // namespace
}  // namespace unisono::rendezvous
