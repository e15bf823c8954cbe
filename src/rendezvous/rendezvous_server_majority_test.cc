// A registration that disagrees cannot end a job that has a majority of agreeing ones.
#include "rendezvous/rendezvous_test_support.h"

namespace unisono::rendezvous {
namespace {

// Ranks 0 and 1 of 3 have registered, connections 1 and 2.
struct Majority : ServerFixture {
  Majority() {
    for (uint32_t rank = 0; rank < 2; ++rank) dial(make_hello(rank, 3));
  }
  // The process is refused with these texts, the others wait, and their group forms when rank 2 comes.
  void expect_refused_alone(const Hello& odd, Code code, std::initializer_list<std::string> texts) {
    const auto c = dial(odd);
    EXPECT_EQ(phase(c), Phase::refused);
    EXPECT_EQ(client(c).error().code(), code);
    expect_has(error(c), texts);
    for (const size_t each : {1, 2}) EXPECT_EQ(phase(each), Phase::waiting);
    const auto last = dial(make_hello(2, 3));
    EXPECT_EQ(phase(1), Phase::attending);
    EXPECT_EQ(phase(last), Phase::linking);
  }
};

TEST(RendezvousMajority, another_world_size_is_refused_with_both_sizes) {
  Majority().expect_refused_alone(
      make_hello(2, 8), Code::invalid,
      {"disagree on the world size", "rank 0 (host h0, pid 100) says 3", "rank 2 (host h2, pid 102) says 8"});
}

TEST(RendezvousMajority, a_smaller_world_is_refused_too) {
  Majority().expect_refused_alone(make_hello(0, 1), Code::invalid, {"says 3", "says 1"});
}

TEST(RendezvousMajority, another_version_is_refused_with_both_versions) {
  auto odd = make_hello(2, 3);
  odd.version = "9.9.9";
  Majority().expect_refused_alone(odd, Code::unsupported, {"runs unisono " UNISONO_VERSION, "runs unisono 9.9.9"});
}

TEST(RendezvousMajority, a_taken_rank_is_refused_with_both_processes) {
  Majority().expect_refused_alone(make_hello(1, 3, "job", 7), Code::invalid,
                                  {"rank 1 of 3 is claimed twice", "host h1, pid 101 (registered first)"});
}

TEST(RendezvousMajority, another_transport_is_refused_with_both_transports) {
  ServerFixture fixture;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    auto hello = make_hello(rank, 3);
    hello.transport = "tcp";
    fixture.dial(hello);
  }
  auto odd = make_hello(2, 3);
  odd.transport = "shm";
  const auto c = fixture.dial(odd);
  EXPECT_EQ(fixture.phase(c), Phase::refused);
  expect_has(fixture.error(c), {"asks for transport tcp", "rank 2 (host h2, pid 102) asks for transport shm"});
  for (const size_t each : {1, 2}) EXPECT_EQ(fixture.phase(each), Phase::waiting);
}

TEST(RendezvousMajority, any_number_of_odd_registrations_ends_nothing) {
  Majority fixture;
  for (uint32_t i = 0; i < 100; ++i) {
    const auto c = fixture.dial(make_hello(2, 4 + i, "job", 100 + i));
    EXPECT_EQ(fixture.phase(c), Phase::refused);
  }
  fixture.dial(make_hello(2, 3));
  EXPECT_EQ(fixture.phase(1), Phase::attending);
}

TEST(RendezvousMajority, the_others_learn_what_was_odd_if_a_rank_stays_missing) {
  Majority fixture;
  fixture.dial(make_hello(2, 8));
  fixture.pass(60 * second);
  for (const size_t each : {1, 2}) {
    EXPECT_EQ(fixture.client(each).error().code(), Code::late);
    expect_has(fixture.error(each), {"rank 2 of 3 missing",
                                     "refused: [rank 2 (host h2, pid 102, from 10.0.0.9:3): it says that "
                                     "the world size is 8, not 3]"});
  }
}

}  // namespace
}  // namespace unisono::rendezvous
