// Members of one job meet, or get the reason why not; and the server when it is full or ends.
#include "rendezvous/rendezvous_test_support.h"
#include "wire/checksum.h"

namespace unisono::rendezvous {
namespace {

// A hello message of another protocol version: the envelope is the same in all versions.
std::string test_seal(uint16_t protocol, ByteView payload) {
  ByteWriter writer;
  writer.write(message_magic).write(protocol).write(uint16_t{1}).write(static_cast<uint32_t>(payload.size()));
  const auto checksum = crc32c(payload.data(), payload.size(), crc32c(writer.view().data(), writer.view().size()));
  writer.write(checksum);
  std::string text(reinterpret_cast<const char*>(writer.view().data()), writer.view().size());
  return text.append(reinterpret_cast<const char*>(payload.data()), payload.size());
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
               {"rank 0 (host h0, pid 100) runs unisono " UNISONO_VERSION ", protocol " + std::to_string(protocol_version),
                "rank 2 (host h2, pid 102) runs unisono 9.9.9"});
  }
}

TEST(Rendezvous, another_protocol_version_is_told_and_named_if_ranks_stay_missing) {
  Place place;
  place.dial(make_hello(0, 2));
  ByteWriter future;  // the same envelope and first fields, but the next protocol
  future.write_string("9.9.9").write_string("h1").write(int32_t{101}).write_string("job").write(uint64_t{123});
  const auto raw = place.dial_raw(test_seal(protocol_version + 1, future.view()));
  expect_has(raw.first,
             {"this process runs unisono 9.9.9, protocol " + std::to_string(protocol_version + 1),
              "rank 0 (host h0, pid 100), runs unisono " UNISONO_VERSION ", protocol " + std::to_string(protocol_version)});
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

TEST(Rendezvous, a_member_of_a_running_job_learns_that) {
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
