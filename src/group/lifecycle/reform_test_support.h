// For tests: all members of a group in one process. The test carries their messages by hand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "group/lifecycle/reform.h"
#include "testing/peer_ids.h"

namespace unisono::test {

inline constexpr Nanos start_time = 10 * second;

struct MemberGroup {
  explicit MemberGroup(uint32_t world) : roster(make_roster(world)) {
    for (const auto& each : roster.members) members.emplace_back(roster, each.id);
  }
  void start(Rank rank, std::vector<Rank> dead, ReformRequest request = {}) {
    for (const Rank d : dead) request.dead.push_back(roster.members[d].id);
    ASSERT_TRUE(members[rank].start(request, now).ok());
  }
  // Carries messages until no member sends any more. Messages of `unreachable` ranks do not arrive, and none arrive at these
  // ranks.
  void deliver(std::vector<Rank> unreachable = {}) {
    const auto cut_off = [&](Rank rank) {
      return std::find(unreachable.begin(), unreachable.end(), rank) != unreachable.end();
    };
    for (bool any = true; any;) {
      any = false;
      for (Rank from = 0; from < members.size(); ++from) {
        for (auto& send : members[from].take_sends()) {
          const auto to = roster.rank_of(send.to);
          if (!to || cut_off(from) || cut_off(*to)) continue;
          EXPECT_TRUE(members[*to].message(roster.members[from].id, send.bytes, now).ok());
          any = true;
        }
      }
    }
  }
  void pass(Nanos time, std::vector<Rank> asleep = {}) {
    now += time;
    for (Rank rank = 0; rank < members.size(); ++rank) {
      const bool awake = std::find(asleep.begin(), asleep.end(), rank) == asleep.end();
      if (awake && members[rank].next_deadline() <= now) members[rank].woke(now);
    }
    deliver(asleep);
  }
  ReformResult result(Rank rank) {
    auto taken = members[rank].take_result();
    EXPECT_TRUE(taken.has_value()) << "rank " << rank << " has not finished";
    if (!taken) return {};
    EXPECT_TRUE(taken->ok()) << taken->status().to_string();
    return taken->ok() ? taken->value() : ReformResult{};
  }
  Status failure(Rank rank) {
    auto taken = members[rank].take_result();
    return taken ? taken->status() : Status();
  }

  Roster roster;
  std::vector<Reform> members;
  Nanos now = start_time;
};

}  // namespace unisono::test
