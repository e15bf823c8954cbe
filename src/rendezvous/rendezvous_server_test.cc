// Tests of the server and its members: the members of a job meet, or each gets the reason why they do not. Also tests a full
// server, and a server that shuts down.
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

TEST(Rendezvous, all_ranks_get_the_same_table_when_the_last_has_registered) {
  ServerFixture fixture;
  for (const uint32_t rank : {2u, 0u, 3u}) EXPECT_EQ(fixture.phase(fixture.dial(make_hello(rank, 4))), Phase::waiting);
  fixture.dial(make_hello(1, 4));
  for (size_t c = 1; c <= 4; ++c) {
    EXPECT_EQ(fixture.phase(c), c == 2 ? Phase::attending : Phase::linking);
    const auto roster = fixture.client(c).take_roster();
    ASSERT_TRUE(roster);
    EXPECT_EQ(roster->epoch, 1u);
    ASSERT_EQ(roster->members.size(), 4u);
    for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(roster->members[rank], test::member(rank));
  }
}

TEST(Rendezvous, a_world_of_one_meets_at_once) {
  ServerFixture fixture;
  EXPECT_EQ(fixture.phase(fixture.dial(make_hello(0, 1))), Phase::attending);
}

TEST(Rendezvous, the_largest_world_meets) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, world_size_max));
  // no client objects for these ranks: their rosters would take too much memory
  for (uint32_t rank = 1; rank + 1 < world_size_max; ++rank) {
    fixture.clients.emplace_back(nullptr);
    fixture.server.connected(rank + 1, "10.0.0.9:1", fixture.now);
    fixture.server.received(rank + 1, Client(make_hello(rank, world_size_max), never).connected(fixture.now), fixture.now);
  }
  const auto last = fixture.dial(make_hello(world_size_max - 1, world_size_max));
  EXPECT_EQ(fixture.phase(1), Phase::attending);
  EXPECT_EQ(fixture.phase(last), Phase::linking);
  EXPECT_EQ(fixture.client(last).take_roster()->members.size(), world_size_max);
}

TEST(Rendezvous, all_registered_ranks_learn_the_missing_ranks) {
  ServerFixture fixture;
  for (const uint32_t rank : {0u, 1u, 2u, 4u, 6u, 7u}) fixture.dial(make_hello(rank, 8));
  fixture.pass(60 * second);
  for (size_t c = 1; c <= 6; ++c) {
    EXPECT_EQ(fixture.phase(c), Phase::refused);
    EXPECT_EQ(fixture.client(c).error().code(), Code::late);
    expect_has(fixture.error(c),
               {"ranks 3, 5 of 8 missing after 60.0 s", "registered: rank 0 (host h0, pid 100), rank 1 (host h1, pid 101)",
                "rank 7 (host h7, pid 107)"});
  }
}

TEST(Rendezvous, the_earliest_deadline_ends_the_wait_of_all_members) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 3), 60 * second);
  fixture.pass(10 * second);
  fixture.dial(make_hello(1, 3), 20 * second);
  fixture.pass(20 * second);
  EXPECT_EQ(fixture.phase(1), Phase::refused);
  EXPECT_EQ(fixture.phase(2), Phase::refused);
  expect_has(fixture.error(1), {"rank 2 of 3 missing after 30.0 s"});
}

TEST(Rendezvous, the_deadline_of_a_member_that_left_does_not_count) {
  ServerFixture fixture;
  const auto impatient = fixture.dial(make_hello(1, 3), 5 * second);
  fixture.dial(make_hello(0, 3), 60 * second);
  fixture.hang_up(impatient);
  fixture.pass(30 * second);
  EXPECT_EQ(fixture.phase(2), Phase::waiting);
}

TEST(Rendezvous, long_lists_of_missing_ranks_are_truncated) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 4096));
  fixture.pass(60 * second);
  expect_has(fixture.error(1), {"and 4079 more"});
  EXPECT_LT(fixture.error(1).size(), 400u);
}

TEST(Rendezvous, two_processes_that_claim_one_rank_are_both_named_and_the_first_stays) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 3));
  fixture.dial(make_hello(1, 3));
  Hello rival = make_hello(1, 3, "job", 7);
  rival.member.host = "other";
  rival.member.pid = 4242;
  const auto c = fixture.dial(rival);
  EXPECT_EQ(fixture.phase(c), Phase::refused);
  EXPECT_EQ(fixture.client(c).error().code(), Code::invalid);
  expect_has(fixture.error(c), {"rank 1 of 3 is claimed twice", "host h1, pid 101", "host other, pid 4242"});
  EXPECT_EQ(fixture.phase(2), Phase::waiting);
  fixture.pass(60 * second);
  expect_has(fixture.error(1), {"rank 2 of 3 missing", "refused:", "rank 1 (host h1, pid 101, from 10.0.0.9:3)"});
}

TEST(Rendezvous, a_process_that_dials_again_replaces_its_older_connection) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 2));
  const auto again = fixture.dial(make_hello(0, 2));
  EXPECT_EQ(fixture.phase(again), Phase::waiting);
  fixture.dial(make_hello(1, 2));
  EXPECT_EQ(fixture.phase(again), Phase::attending);
}

TEST(Rendezvous, a_process_that_leaves_frees_its_rank) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 3));
  fixture.hang_up(fixture.dial(make_hello(1, 3, "job", 7)));
  fixture.dial(make_hello(1, 3, "job", 8));
  EXPECT_EQ(fixture.phase(1), Phase::waiting);
  fixture.dial(make_hello(2, 3));
  EXPECT_EQ(fixture.phase(1), Phase::attending);
  EXPECT_EQ(fixture.client(1).take_roster()->members[1].id, (PeerId{2, 8}));
}

TEST(Rendezvous, one_process_cannot_hold_two_ranks) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 3));
  Hello duplicate = make_hello(1, 3);
  duplicate.member.id = test::member(0).id;
  EXPECT_EQ(fixture.phase(fixture.dial(duplicate)), Phase::refused);
}

TEST(Rendezvous, two_world_sizes_without_a_majority_are_reported_to_all_with_the_size_of_each_rank) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 4));
  const auto c = fixture.dial(make_hello(2, 8));
  for (const size_t each : {size_t{1}, c}) {
    EXPECT_EQ(fixture.phase(each), Phase::refused);
    EXPECT_EQ(fixture.client(each).error().code(), Code::invalid);
    expect_has(fixture.error(each),
               {"disagree on the world size", "rank 0 (host h0, pid 100) says 4", "rank 2 (host h2, pid 102) says 8"});
  }
}

TEST(Rendezvous, different_library_versions_are_reported_to_all) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 4));
  Hello other = make_hello(2, 4);
  other.version = "9.9.9";
  const auto c = fixture.dial(other);
  for (const size_t each : {size_t{1}, c}) {
    EXPECT_EQ(fixture.client(each).error().code(), Code::unsupported);
    expect_has(fixture.error(each),
               {concat("rank 0 (host h0, pid 100) runs unisono " UNISONO_VERSION ", protocol ", protocol_version),
                "rank 2 (host h2, pid 102) runs unisono 9.9.9"});
  }
}

TEST(Rendezvous, another_protocol_version_is_refused_and_named_if_ranks_stay_missing) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 2));
  ByteWriter future;  // a hello of the next protocol version: the first fields, then anything
  future.write_string("9.9.9").write_string("h1").write(int32_t{101}).write_string("job").write(uint64_t{123});
  const auto raw = fixture.dial_raw(test_seal(protocol_version + 1, future.view()));
  expect_has(raw.first, {concat("this process runs unisono 9.9.9, protocol ", protocol_version + 1),
                         concat("rank 0 (host h0, pid 100), runs unisono " UNISONO_VERSION ", protocol ", protocol_version)});
  EXPECT_TRUE(raw.second);
  fixture.pass(60 * second);
  expect_has(fixture.error(1), {"rank 1 of 2 missing", "refused: [host h1, pid 101"});
}

TEST(Rendezvous, shm_across_hosts_is_reported_to_all) {
  ServerFixture fixture;
  Hello first = make_hello(0, 4);
  first.transport = "shm";
  fixture.dial(first);
  const auto c = fixture.dial(make_hello(1, 4));
  for (const size_t each : {size_t{1}, c}) {
    EXPECT_EQ(fixture.phase(each), Phase::refused);
    expect_has(fixture.error(each),
               {"rank 0 (host h0, pid 100) asks for transport shm", "rank 1 (host h1, pid 101) is not on the same host"});
  }
}

TEST(Rendezvous, shm_on_one_host_works_with_different_host_names) {
  ServerFixture fixture;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Hello hello = make_hello(rank, 2);  // the host names h0 and h1 differ, as in containers on one host
    hello.transport = "shm";
    hello.member.network = 7;
    fixture.dial(hello);
  }
  EXPECT_EQ(fixture.phase(1), Phase::attending);
}

TEST(Rendezvous, shm_on_two_hosts_of_one_name_is_reported_to_all) {
  ServerFixture fixture;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Hello hello = make_hello(rank, 2);
    hello.transport = "shm";
    hello.member.host = "same";
    hello.member.network = 7 + rank;
    fixture.dial(hello);
  }
  expect_has(fixture.error(1), {"asks for transport shm", "rank 1 (host same, pid 101) is not on the same host"});
}

TEST(Rendezvous, shm_against_tcp_is_reported_to_all) {
  ServerFixture fixture;
  Hello shm = make_hello(0, 2);
  shm.transport = "shm";
  Hello tcp = make_hello(1, 2);
  tcp.transport = "tcp";
  tcp.member.host = shm.member.host;
  fixture.dial(shm);
  expect_has(fixture.error(fixture.dial(tcp)), {"asks for transport shm", "asks for transport tcp"});
}

TEST(Rendezvous, a_server_of_one_job_refuses_another_job_without_harm) {
  ServerFixture fixture({.only_job = "job"});
  fixture.dial(make_hello(0, 2));
  const auto c = fixture.dial(make_hello(0, 2, "other"));
  EXPECT_EQ(fixture.phase(c), Phase::refused);
  expect_has(fixture.error(c), {"belongs to job 'other'", "rank 0 (host h0, pid 100) serves another job"});
  EXPECT_EQ(fixture.error(c).find("'job'"), std::string::npos) << "the name of the job is not told: " << fixture.error(c);
  EXPECT_EQ(fixture.phase(1), Phase::waiting);
  fixture.pass(60 * second);
  expect_has(fixture.error(1), {"refused: [rank 0 (host h0, pid 100, from 10.0.0.9:2): it belongs to job 'other']"});
}

TEST(Rendezvous, a_standalone_server_serves_jobs_at_once_and_one_after_another) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 2, "a"));
  fixture.dial(make_hello(0, 2, "b"));
  fixture.dial(make_hello(1, 2, "b"));
  fixture.dial(make_hello(1, 2, "a"));
  for (size_t c = 1; c <= 4; ++c) EXPECT_EQ(fixture.phase(c), c <= 2 ? Phase::attending : Phase::linking);
  fixture.hang_up(1);
  fixture.dial(make_hello(0, 1, "a", 9));
  EXPECT_EQ(fixture.phase(5), Phase::attending);
}

TEST(Rendezvous, a_member_of_a_running_job_is_refused) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 1));
  fixture.pass(12 * second);
  const auto c = fixture.dial(make_hello(0, 1, "job", 9));
  EXPECT_EQ(fixture.phase(c), Phase::refused);
  expect_has(fixture.error(c), {"job 'job' is running already, since 12.0 s", "rank 0 (host h0, pid 100)", "join_running"});
}

TEST(Rendezvous, late_members_of_a_failed_run_get_the_same_error) {
  ServerFixture fixture({.only_job = "job", .keep_failures = true});
  fixture.dial(make_hello(0, 4));
  fixture.dial(make_hello(1, 8));
  const auto late = fixture.dial(make_hello(2, 8));
  expect_has(fixture.error(late), {"disagree on the world size"});
  EXPECT_EQ(fixture.server.job("job")->notified_count, 3u);
}

TEST(Rendezvous, a_job_that_its_server_cannot_serve_ends_for_all_members) {
  ServerFixture fixture({.only_job = "job", .keep_failures = true});
  for (uint32_t rank = 0; rank < 2; ++rank) fixture.dial(make_hello(rank, 4));
  fixture.server.fail_job("job", {Code::unavailable, "too many open files"}, fixture.now);
  fixture.deliver();
  fixture.dial(make_hello(2, 4));
  for (size_t c = 1; c <= 3; ++c) {
    EXPECT_EQ(fixture.phase(c), Phase::refused);
    EXPECT_EQ(fixture.error(c), "too many open files");
  }
}

TEST(Rendezvous, a_job_can_end_before_its_first_member_comes_but_not_when_its_group_has_formed) {
  ServerFixture early({.only_job = "job", .keep_failures = true});
  early.server.fail_job("job", {Code::unavailable, "too many open files"}, early.now);
  early.dial(make_hello(0, 4));
  EXPECT_EQ(early.error(1), "too many open files");
  ServerFixture formed;
  formed.dial(make_hello(0, 1));
  formed.server.fail_job("job", {Code::unavailable, "too many open files"}, formed.now);
  formed.deliver();
  EXPECT_EQ(formed.phase(1), Phase::attending);
}

TEST(Rendezvous, connections_over_the_limit_are_refused_and_counted) {
  ServerFixture fixture({.connections_max = 2});
  fixture.dial(make_hello(0, 4));
  fixture.dial(make_hello(1, 4));
  const auto c = fixture.dial(make_hello(2, 4));
  EXPECT_EQ(fixture.phase(c), Phase::refused);
  EXPECT_EQ(fixture.server.counters().crowded, 1u);
}

TEST(Rendezvous, jobs_over_the_limit_are_refused) {
  ServerFixture fixture({.jobs_max = 1});
  fixture.dial(make_hello(0, 2, "a"));
  EXPECT_EQ(fixture.phase(fixture.dial(make_hello(0, 2, "b"))), Phase::refused);
  fixture.hang_up(1);
  EXPECT_EQ(fixture.phase(fixture.dial(make_hello(0, 2, "b", 3))), Phase::waiting);
}

TEST(Rendezvous, shutting_down_notifies_all_members) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 2));
  fixture.server.shut_down({Code::unavailable, "stopped"}, fixture.now);
  fixture.deliver();
  EXPECT_EQ(fixture.error(1), "stopped");
}

}  // namespace
}  // namespace unisono::rendezvous
