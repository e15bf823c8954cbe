// After the table, the members link up with each other. If one of them fails, all of them learn it from the server.
#include "rendezvous/rendezvous_test_support.h"

namespace unisono::rendezvous {
namespace {

// Members of one job that have the table, connection rank + 1 each.
struct Formation : ServerFixture {
  explicit Formation(uint32_t world) {
    for (uint32_t rank = 0; rank < world; ++rank) dial(make_hello(rank, world));
  }
  Status error_of(Rank rank) { return client(rank + 1).formation_error(); }
  void join(Rank rank) {
    if (const auto bytes = client(rank + 1).joined()) send_bytes(rank + 1, *bytes);
  }
};

const Status no_memory{Code::unavailable, "shm: mmap: cannot allocate memory"};

TEST(Formation, a_member_that_cannot_join_is_named_to_all_others_with_its_reason) {
  for (const Rank failing : {0u, 1u, 3u}) {
    Formation members(4);
    const auto bytes = members.client(failing + 1).failed(no_memory);
    ASSERT_TRUE(bytes);
    members.send_bytes(failing + 1, *bytes);
    for (Rank rank = 0; rank < 4; ++rank) {
      if (rank == failing) continue;
      EXPECT_EQ(members.error_of(rank).code(), Code::unavailable);
      EXPECT_EQ(members.error_of(rank).message(), concat("rank ", failing, " (host h", failing, ", pid ", 100 + failing,
                                                         ") could not join: shm: mmap: cannot allocate memory"));
    }
    EXPECT_EQ(members.error_of(failing).message(), no_memory.message()) << "it gets its own reason back";
  }
}

TEST(Formation, a_member_that_fails_before_the_table_is_named_to_all_others) {
  for (const Rank failing : {0u, 2u}) {
    ServerFixture members;
    for (const Rank rank : {0u, 2u, 3u}) members.dial(make_hello(rank, 4));
    const auto connection = failing == 0 ? 1u : 2u;
    const auto bytes = members.client(connection).failed(no_memory);
    ASSERT_TRUE(bytes) << "it is registered";
    members.send_bytes(connection, *bytes);
    for (const auto each : {1u, 2u, 3u}) {
      EXPECT_EQ(members.phase(each), Phase::refused);
      EXPECT_EQ(members.client(each).error().message(), concat("rank ", failing, " (host h", failing, ", pid ", 100 + failing,
                                                               ") could not join: shm: mmap: cannot allocate memory"));
    }
  }
}

TEST(Formation, a_group_whose_last_member_registers_only_to_say_why_it_fails_does_not_form) {
  ServerFixture members;
  for (const Rank rank : {0u, 1u}) members.dial(make_hello(rank, 3));
  auto failing = make_hello(2, 3);
  failing.member.endpoints = {std::string(failing_endpoint)};
  members.dial(failing);
  for (const auto each : {1u, 2u, 3u}) EXPECT_EQ(members.phase(each), Phase::waiting);
  members.send_bytes(3, *members.client(3).failed(no_memory));
  for (const auto each : {1u, 2u}) {
    EXPECT_EQ(members.phase(each), Phase::refused);
    EXPECT_NE(members.client(each).error().message().find("rank 2 (host h2, pid 102) could not join: shm"), std::string::npos);
  }
}

// Ranks 0 and 1, connections 1 and 2, wait. Rank 2 has registered only to say why it cannot join, but has not said it yet.
struct FailingMember : ServerFixture {
  explicit FailingMember(uint32_t world, bool keep_failures = false) : ServerFixture({.keep_failures = keep_failures}) {
    for (const Rank rank : {0u, 1u}) dial(make_hello(rank, world));
    auto failing = make_hello(2, world);
    failing.member.endpoints = {std::string(failing_endpoint)};
    dial(failing);
    for (const auto each : {1u, 2u, 3u}) EXPECT_EQ(phase(each), Phase::waiting);
  }
};

TEST(Formation, a_failing_member_that_dies_before_it_says_why_is_named_to_all_others_at_once) {
  for (const uint32_t world : {3u, 4u}) {
    FailingMember members(world);
    members.hang_up(3);
    for (const auto each : {1u, 2u}) {
      EXPECT_EQ(members.phase(each), Phase::refused);
      EXPECT_EQ(members.client(each).error().code(), Code::peer_lost);
      EXPECT_EQ(members.error(each), "rank 2 (host h2, pid 102) could not join, and has ended before it said why");
    }
    EXPECT_EQ(members.server.job("job"), nullptr) << "its next group may form";
  }
}

TEST(Formation, a_member_that_comes_after_a_failing_one_has_died_learns_it_from_a_server_of_one_run) {
  FailingMember members(4, true);
  members.hang_up(3);
  members.dial(make_hello(3, 4));
  EXPECT_EQ(members.phase(4), Phase::refused);
  EXPECT_EQ(members.error(4), "rank 2 (host h2, pid 102) could not join, and has ended before it said why");
}

TEST(Formation, a_failing_member_that_never_says_why_is_named_when_the_time_to_join_is_over) {
  for (const uint32_t world : {3u, 4u}) {
    FailingMember members(world);
    members.pass(61 * second);
    for (const auto each : {1u, 2u}) {
      EXPECT_EQ(members.phase(each), Phase::refused);
      EXPECT_EQ(members.client(each).error().code(), Code::late);
      expect_has(members.error(each),
                 {world == 3 ? "job 'job': not all 3 ranks can join after 61.0 s; rank 2 (host h2, pid 102)"
                             : "job 'job': rank 3 of 4 missing after 61.0 s",
                  "; rank 2 (host h2, pid 102) cannot join, and has not said why"});
    }
  }
}

TEST(Formation, a_member_that_dies_is_named_to_all_others) {
  for (const Rank dying : {0u, 2u}) {
    Formation members(3);
    members.hang_up(dying + 1);
    for (Rank rank = 0; rank < 3; ++rank) {
      if (rank == dying) continue;
      EXPECT_EQ(members.error_of(rank).code(), Code::peer_lost);
      EXPECT_EQ(members.error_of(rank).message(),
                concat("rank ", dying, " (host h", dying, ", pid ", 100 + dying, ") has ended while the group formed"));
    }
  }
}

TEST(Formation, only_the_first_reason_is_told) {
  Formation members(3);
  const auto later = members.client(1).failed({Code::peer_lost, "rank 1 closed the link"});
  members.send_bytes(2, *members.client(2).failed(no_memory));
  EXPECT_FALSE(members.client(3).failed({Code::late, "another"})) << "the server has closed its connection";
  members.send_bytes(1, *later);
  EXPECT_NE(members.error_of(0).message().find("rank 1 (host h1, pid 101) could not join: shm"), std::string::npos);
  EXPECT_EQ(members.phase(1), Phase::attending);
}

TEST(Formation, a_member_that_has_joined_hears_of_no_failure_and_causes_none) {
  Formation members(4);
  members.join(1);
  EXPECT_EQ(members.phase(2), Phase::leaving);
  members.hang_up(2);
  EXPECT_EQ(members.phase(2), Phase::met);
  for (const Rank rank : {0u, 2u, 3u}) EXPECT_TRUE(members.error_of(rank).ok()) << rank;
  members.join(0);
  members.hang_up(4);
  EXPECT_TRUE(members.error_of(0).ok());
  EXPECT_EQ(members.phase(1), Phase::attending) << "it still answers joiners";
  EXPECT_FALSE(members.error_of(2).ok());
}

TEST(Formation, groups_of_one_server_do_not_disturb_each_other) {
  ServerFixture fixture;
  for (const auto* job : {"a", "b"}) {
    for (uint32_t rank = 0; rank < 2; ++rank) fixture.dial(make_hello(rank, 2, job));
  }
  fixture.hang_up(2);
  EXPECT_FALSE(fixture.client(1).formation_error().ok());
  EXPECT_TRUE(fixture.client(3).formation_error().ok());
  EXPECT_TRUE(fixture.client(4).formation_error().ok());
}

TEST(Formation, a_long_reason_is_cut) {
  Formation members(2);
  members.send_bytes(2, *members.client(2).failed({Code::late, std::string(1 << 20, 'x')}));
  EXPECT_EQ(members.error_of(0).code(), Code::late);
  EXPECT_GT(members.error_of(0).message().size(), 8000u);
}

TEST(Formation, a_failure_without_a_reason_is_corrupt) {
  Formation members(2);
  Bytes bytes = *members.client(2).failed({Code::ok, ""});
  members.send_bytes(2, bytes);
  EXPECT_EQ(members.error_of(0).code(), Code::corrupt);
}

TEST(Formation, a_server_that_ends_is_no_failure) {
  Formation members(2);
  (void)members.client(2).disconnected();
  EXPECT_TRUE(members.error_of(1).ok());
  EXPECT_EQ(members.phase(2), Phase::met);
  EXPECT_FALSE(members.client(2).joined()) << "there is nobody to tell";
}

}  // namespace
}  // namespace unisono::rendezvous
