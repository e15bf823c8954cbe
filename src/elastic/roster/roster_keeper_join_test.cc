// How long a process looks for the run, and what it says if the seeds are looking for the run, too.
#include <gtest/gtest.h>

#include "base/concat.h"
#include "elastic/roster/roster_keeper.h"
#include "elastic/roster/roster_keeper_test_support.h"

namespace unisono {
namespace {

using test::address_of;
using test::founder;
using test::from_run;
using test::options;
using test::peer_claim;
using test::peer_entry;
using test::peer_id;
using test::run;
using test::sends_of;
using test::times;

RosterMessage still_looking(uint64_t number) {
  return from_run(RosterRefused{RefusalReason::looking, "still looking"}, {peer_claim(number, PeerStatus::joining)});
}

TEST(RosterKeeperJoin, joining_fails_after_the_given_time_to_the_millisecond) {
  for (const Nanos timeout : {millisecond, 700 * millisecond, 3 * second, 25 * second}) {
    auto all = options(false, {address_of(2), address_of(3)});
    all.join_timeout = timeout;
    RosterKeeper keeper(all, peer_entry(1));
    ASSERT_TRUE(keeper.start(5).ok());
    run(keeper, 5 + timeout - 1);
    EXPECT_EQ(keeper.join_state(), JoinState::joining);
    run(keeper, 5 + timeout);
    EXPECT_EQ(keeper.join_state(), JoinState::failed);
    const auto silent = concat(" (no answer in ", timeout / millisecond, " ms)");
    EXPECT_EQ(keeper.join_status().message(),
              "NO_SEED: none of 2 seeds answers: tcp://h2:1" + silent + ", tcp://h3:1" + silent);
  }
}

TEST(RosterKeeperJoin, an_error_tells_seeds_that_are_looking_for_the_run_from_silent_ones) {
  auto all = options(false, {address_of(2), address_of(3)});
  all.join_timeout = 3 * second;
  RosterKeeper keeper(all, peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  keeper.message(peer_id(3), still_looking(3), 1);
  keeper.message(peer_id(4), still_looking(4), 2);  // it answers at a seed's address, but says that it has another one
  EXPECT_EQ(keeper.join_state(), JoinState::joining);
  run(keeper, 3 * second);
  EXPECT_EQ(keeper.join_status().code(), Code::unavailable);
  EXPECT_EQ(
      keeper.join_status().message(),
      "NO_SEED: none of 2 seeds is in run \"demo\" yet: tcp://h2:1 (no answer in 3000 ms), tcp://h3:1 (p3 is itself still "
      "looking for the run); also looking for it: p4 (tcp://h4:1). Has anybody begun the run? One process must begin it, "
      "with the option found");
}

TEST(RosterKeeperJoin, a_seed_that_was_looking_for_the_run_is_joined_as_soon_as_it_has_found_it) {
  RosterKeeper keeper(options(false, {address_of(2)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  (void)keeper.take_sends();
  keeper.message(peer_id(2), still_looking(2), 1);
  run(keeper, times.probe_period);
  EXPECT_EQ(sends_of<RosterHello>(keeper).size(), 1u) << "asked again";
  keeper.message(peer_id(2), from_run(RosterWelcome{.sum = 0, .last = true, .parts = {}}, {peer_claim(2)}), times.probe_period);
  EXPECT_EQ(keeper.join_state(), JoinState::joined);
}

TEST(RosterKeeperJoin, a_peer_of_a_run_ignores_a_process_that_looks_for_the_run) {
  auto keeper = founder(2);
  keeper.message(peer_id(3), still_looking(3), 1);
  EXPECT_EQ(keeper.join_state(), JoinState::joined);
  EXPECT_EQ(keeper.roster().size(), 2u);
}

TEST(RosterKeeperJoin, processes_that_all_look_for_each_other_learn_that_nobody_has_begun_the_run) {
  test::KeeperNetwork network(1);
  network.reports_refusals = false;  // the first one asks before the others have started
  auto all = options(false);
  all.join_timeout = 3 * second;
  for (const uint64_t number : {1, 2, 3}) network.start(number, all, {1, 2, 3});
  network.run_until(4 * second);
  EXPECT_EQ(
      network.keeper(2).join_status().message(),
      "NO_SEED: none of 3 seeds is in run \"demo\" yet: tcp://h1:1 (p1 is itself still looking for the run), tcp://h2:1 "
      "(this process itself), tcp://h3:1 (p3 is itself still looking for the run). Has anybody begun the run? One process "
      "must begin it, with the option found");
  for (const uint64_t number : {1, 3}) EXPECT_EQ(network.keeper(number).join_state(), JoinState::failed);
}

}  // namespace
}  // namespace unisono
