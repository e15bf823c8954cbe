// Members die, fall silent, leave or come back in each phase of a round. Messages are lost, damaged or forged.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "elastic/round/moshpit_round.h"
#include "elastic/round/round_test_support.h"
#include "wire/digest.h"

namespace unisono {
namespace {

using test::Fate;
using test::line_of;
using test::RoundGroup;
using test::RoundGroupOptions;

constexpr size_t chunk = 256;

// Each member owns one chunk of 256 elements. All elements of chunk c at member i are 10 i + c.
RoundGroupOptions owners(uint32_t members) {
  RoundGroupOptions options{.members = line_of(members),
                            .chunk_counts = std::vector<uint32_t>(members, 1),
                            .table = ChunkTable(members * chunk, 2),
                            .x = {}};
  for (uint32_t rank = 0; rank < members; ++rank) {
    std::vector<float> x(members * chunk);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(10 * rank + i / chunk);
    options.x.push_back(std::move(x));
  }
  return options;
}

template <typename Message>
bool is(const RoundMessage& message) {
  if (const auto* verdict = std::get_if<VerdictMessage>(&message)) {
    if constexpr (std::is_constructible_v<VerdictMessage, Message>) return std::holds_alternative<Message>(*verdict);
  }
  if constexpr (!std::is_constructible_v<VerdictMessage, Message>) return std::holds_alternative<Message>(message);
  return false;
}
template <>
bool is<VerdictMessage>(const RoundMessage& message) {
  return std::holds_alternative<VerdictMessage>(message);
}

void expect_unchanged(RoundGroup& group, uint32_t rank) {
  for (size_t i = 0; i < group.x(rank).size(); ++i) ASSERT_EQ(group.x(rank)[i], 10 * rank + i / chunk);
  for (const auto& state : group.states(rank)) EXPECT_EQ(state, (ChunkState{.weight = 1, .full = false, .sharers = 1}));
}

TEST(MoshpitRoundFaults, a_silent_member_is_excused_after_stall_timeout) {
  auto options = owners(4);
  options.absent = {false, false, false, true};
  options.noticed_after = never;
  RoundGroup group(std::move(options));
  group.run();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group.report(rank).committed, 3u);
    EXPECT_EQ(group.x(rank)[0], 10);
    EXPECT_EQ(group.report(rank).absent,
              (std::vector<AbsentMember>{{3, "sent nothing for 2.0 s, contributed to 0 of 3 chunks"}}));
    // The members wait for the results of rank 3 for result_timeout (4 s), and for its HAVE for half a ballot_timeout (500 ms).
    EXPECT_GE(group.ended_at(rank), 4 * second);
    EXPECT_LE(group.ended_at(rank), 4 * second + 600 * millisecond);
  }
}

TEST(MoshpitRoundFaults, a_live_member_that_does_not_contribute_is_excused_after_contribute_timeout) {
  RoundGroup group(owners(4));
  group.filter([](uint32_t from, uint32_t, const RoundMessage& message) {
    return from == 3 && is<Contribution>(message) ? Fate::lost : Fate::arrives;
  });
  group.run();
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(group.x(rank)[0], 10);
  EXPECT_EQ(group.report(3).kept_local, 3u);
  EXPECT_EQ(group.report(3).committed, 1u);
  EXPECT_EQ(group.x(3)[0], 30);
  EXPECT_EQ(group.x(3)[3 * chunk], 18);
  EXPECT_EQ(group.states(3)[0], (ChunkState{.weight = 1, .full = false, .sharers = 1}));
  EXPECT_GE(group.report(0).contribute, 5 * second);
  EXPECT_LE(group.ended_at(0), 5 * second + 100 * millisecond);
}

TEST(MoshpitRoundFaults, a_member_that_declines_is_excused_at_once_and_its_messages_are_ignored) {
  auto options = owners(4);
  options.absent = {false, false, false, true};
  RoundGroup group(std::move(options));
  group.start();
  for (uint32_t rank = 0; rank < 3; ++rank) group.gone(rank, 3, MemberLoss::declined);
  const auto late = contribution_message(group.format(), {.chunk = 0, .author = 3});
  group.inject(3, 0, late);
  group.run_until(100 * millisecond);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(group.round(rank).ended());
    EXPECT_EQ(group.report(rank).committed, 3u);
    EXPECT_EQ(group.x(rank)[0], 10);
    EXPECT_EQ(group.report(rank).absent,
              (std::vector<AbsentMember>{{3, "took part in another group, contributed to 0 of 3 chunks"}}));
  }
  EXPECT_EQ(group.report(0).ignored, 1u);
}

TEST(MoshpitRoundFaults, the_round_ends_at_once_if_too_many_decline) {
  auto options = owners(4);
  options.absent = {false, false, true, true};
  RoundGroup group(std::move(options));
  group.start();
  group.run_until(10 * millisecond);
  group.gone(0, 2, MemberLoss::declined);
  EXPECT_FALSE(group.round(0).ended());
  group.gone(0, 3, MemberLoss::declined);
  EXPECT_TRUE(group.round(0).ended());
  EXPECT_EQ(group.report(0).problem, "too few members took part");
  EXPECT_EQ(group.report(0).undecided, 4u);
  expect_unchanged(group, 0);
}

TEST(MoshpitRoundFaults, a_member_that_abandons_the_round_is_excused_at_once) {
  RoundGroup group(owners(4));
  group.filter([](uint32_t from, uint32_t, const RoundMessage& message) {
    return from == 3 && is<Contribution>(message) ? Fate::lost : Fate::arrives;
  });
  group.start();
  group.round(3).abandon(group.now());
  group.run_until(100 * millisecond);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group.report(rank).committed, 3u);
    EXPECT_EQ(group.x(rank)[0], 10);
  }
  EXPECT_EQ(group.report(3).problem, "this process left");
  expect_unchanged(group, 3);
}

TEST(MoshpitRoundFaults, the_round_aborts_half_a_ballot_after_half_of_the_group_died) {
  auto options = owners(4);
  options.noticed_after = 50 * millisecond;
  RoundGroup group(std::move(options));
  group.filter([](uint32_t from, uint32_t, const RoundMessage&) { return from >= 2 ? Fate::sender_dies : Fate::arrives; });
  group.run();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(group.report(rank).problem, "too few members are left");
    EXPECT_EQ(group.report(rank).undecided, 4u);
    EXPECT_EQ(group.ended_at(rank), 550 * millisecond);
    expect_unchanged(group, rank);
  }
}

TEST(MoshpitRoundFaults, the_last_member_aborts_at_once) {
  auto options = owners(2);
  options.noticed_after = 50 * millisecond;
  RoundGroup group(std::move(options));
  group.filter([](uint32_t from, uint32_t, const RoundMessage&) { return from == 1 ? Fate::sender_dies : Fate::arrives; });
  group.run();
  EXPECT_EQ(group.report(0).problem, "too few members are left");
  EXPECT_EQ(group.ended_at(0), 50 * millisecond);
  expect_unchanged(group, 0);
}

TEST(MoshpitRoundFaults, a_proposer_that_is_known_to_be_dead_is_passed_over) {
  auto options = owners(4);
  options.noticed_after = 50 * millisecond;
  RoundGroup group(std::move(options));
  group.filter([](uint32_t from, uint32_t, const RoundMessage& message) {
    return from == 0 && is<VerdictPropose>(message) ? Fate::sender_dies : Fate::arrives;
  });
  group.run();
  for (uint32_t rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(group.report(rank).committed, 4u);
    EXPECT_LE(group.ended_at(rank), 200 * millisecond);
  }
}

TEST(MoshpitRoundFaults, a_round_with_only_clients_left_aborts) {
  auto options = owners(3);
  options.members[1].role = options.members[2].role = ElasticRole::client;
  options.chunk_counts = {3, 0, 0};
  RoundGroup group(std::move(options));
  group.filter([](uint32_t from, uint32_t, const RoundMessage& message) {
    return from == 0 && is<VerdictPropose>(message) ? Fate::sender_dies : Fate::arrives;
  });
  group.run();
  for (const uint32_t rank : {1, 2}) {
    EXPECT_EQ(group.report(rank).problem, "too few members are left");
    EXPECT_LE(group.ended_at(rank), 3 * second);
    expect_unchanged(group, rank);
  }
}

TEST(MoshpitRoundFaults, the_round_aborts_at_round_timeout_if_half_of_the_group_is_silent) {
  auto options = owners(2);
  options.absent = {false, true};
  options.noticed_after = never;
  RoundGroup group(std::move(options));
  group.run();
  EXPECT_EQ(group.ended_at(0), 30 * second);
  EXPECT_EQ(group.report(0).problem, "no verdict within the round's time");
  expect_unchanged(group, 0);
}

TEST(MoshpitRoundFaults, a_proposer_that_dies_costs_a_ballot) {
  RoundGroup group(owners(4));
  group.filter([](uint32_t from, uint32_t, const RoundMessage& message) {
    return from == 0 && is<VerdictPropose>(message) ? Fate::sender_dies : Fate::arrives;
  });
  group.run();
  for (uint32_t rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(group.report(rank).committed, 4u);
    EXPECT_EQ(group.x(rank)[0], 15);
    EXPECT_LE(group.ended_at(rank), 1100 * millisecond);
  }
}

TEST(MoshpitRoundFaults, a_result_that_one_member_lacks_is_fetched) {
  RoundGroup group(owners(4));
  group.filter([](uint32_t from, uint32_t to, const RoundMessage& message) {
    return from == 2 && to == 3 && is<ChunkResult>(message) ? Fate::lost : Fate::arrives;
  });
  group.run();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(group.report(rank).committed, 4u);
    EXPECT_EQ(group.x(rank), group.x(0));
  }
}

TEST(MoshpitRoundFaults, a_decided_result_is_fetched_until_it_arrives) {
  RoundGroup group(owners(5));
  group.filter([&](uint32_t from, uint32_t to, const RoundMessage& message) {
    if (from == 2 && to == 3 && is<ChunkResult>(message) && group.now() < 20 * second) return Fate::lost;
    return from == 3 && is<Fetch>(message) && group.now() < 20 * second ? Fate::lost : Fate::arrives;
  });
  group.run();
  EXPECT_EQ(group.report(3).committed, 5u);
  EXPECT_GE(group.ended_at(3), 20 * second);
  EXPECT_LE(group.ended_at(0), 12 * second);
  EXPECT_EQ(group.x(3), group.x(0));
}

TEST(MoshpitRoundFaults, a_decided_result_that_cannot_be_fetched_is_lost_only_here) {
  RoundGroup group(owners(5));
  group.filter([](uint32_t from, uint32_t to, const RoundMessage& message) {
    return (from == 2 && to == 3 && is<ChunkResult>(message)) || (from == 3 && is<Fetch>(message)) ? Fate::lost : Fate::arrives;
  });
  group.run();
  EXPECT_EQ(group.report(3).lost, 1u);
  EXPECT_EQ(group.report(3).committed, 4u);
  EXPECT_EQ(group.report(3).problem, "the results of 1 chunks could not be fetched");
  EXPECT_EQ(group.x(3)[2 * chunk], 32);
  EXPECT_EQ(group.x(0)[2 * chunk], 22);
  EXPECT_FALSE(group.states(3)[2].full);
}

TEST(MoshpitRoundFaults, a_decided_result_is_lost_at_once_if_no_member_is_left_to_ask) {
  RoundGroup group(owners(5));
  group.filter([&](uint32_t from, uint32_t to, const RoundMessage& message) {
    if (from != 3 && group.now() >= 15 * second) return Fate::sender_dies;
    return (from == 2 && to == 3 && is<ChunkResult>(message)) || (from == 3 && is<Fetch>(message)) ? Fate::lost : Fate::arrives;
  });
  group.run();
  EXPECT_EQ(group.report(3).lost, 1u);
  EXPECT_EQ(group.report(3).committed, 4u);
  EXPECT_GE(group.ended_at(3), 15 * second);
  EXPECT_LE(group.ended_at(3), 17 * second);
}

TEST(MoshpitRoundFaults, a_result_that_only_a_minority_holds_is_applied_by_no_member) {
  RoundGroup group(owners(4));
  group.filter([](uint32_t from, uint32_t to, const RoundMessage& message) {
    if (from == 2 && !is<Contribution>(message))
      return is<ChunkResult>(message) ? (to == 0 ? Fate::arrives : Fate::lost) : Fate::sender_dies;
    return is<Fetch>(message) ? Fate::lost : Fate::arrives;
  });
  group.run();
  for (const uint32_t rank : {0, 1, 3}) {
    EXPECT_EQ(group.report(rank).voided, 1u);
    EXPECT_EQ(group.report(rank).committed, 3u);
    EXPECT_EQ(group.x(rank)[2 * chunk], 10 * rank + 2);
  }
}

TEST(MoshpitRoundFaults, a_member_without_the_verdict_gets_it_with_its_next_message) {
  RoundGroup group(owners(4));
  group.filter([&](uint32_t, uint32_t to, const RoundMessage& message) {
    const bool late = to == 3 && is<VerdictMessage>(message) && group.now() < 200 * millisecond;
    return late ? Fate::lost : Fate::arrives;
  });
  group.run();
  EXPECT_EQ(group.report(3).committed, 4u);
  EXPECT_LE(group.ended_at(0), 100 * millisecond);
  // Rank 3 sends a keep-alive after stall_timeout / 4 = 500 ms. The keep-alive takes 1 ms, and its answer another one.
  EXPECT_LE(group.ended_at(3), 502 * millisecond);
}

TEST(MoshpitRoundFaults, a_damaged_result_is_refused_and_fetched) {
  RoundGroup group(owners(3));
  group.filter([&](uint32_t from, uint32_t to, const RoundMessage& message) {
    return from == 1 && to == 2 && is<ChunkResult>(message) ? Fate::lost : Fate::arrives;
  });
  group.start();
  ChunkResult head;
  head.chunk = head.author = 1;
  head.contributors = 7;
  head.total = 3;
  auto damaged = result_message(group.format(), head);
  std::memset(damaged.data() + result_head_bytes, 0, chunk * sizeof(float));
  group.inject(1, 2, damaged);
  group.run_until(20 * second);
  EXPECT_EQ(group.report(2).ignored, 1u);
  EXPECT_EQ(group.report(2).committed, 3u);
  EXPECT_EQ(group.x(2)[chunk], 11);
}

TEST(MoshpitRoundFaults, a_restored_connection_resends_lost_messages) {
  RoundGroup group(owners(3));
  bool cut = true;
  group.filter(
      [&](uint32_t from, uint32_t to, const RoundMessage&) { return cut && from + to == 1 ? Fate::lost : Fate::arrives; });
  group.start();
  group.gone(0, 1, MemberLoss::closed);
  group.gone(1, 0, MemberLoss::closed);
  cut = false;
  const auto hello = round_message(group.format().group, KeepAlive{});
  group.inject(0, 1, hello);
  group.inject(1, 0, hello);
  group.run_until(100 * millisecond);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(group.round(rank).ended());
  EXPECT_EQ(group.report(1).committed + group.report(1).voided, 3u);
  // Chunks that were closed during the cut may lack a member's values. All members must still hold the same values.
  for (uint32_t rank = 1; rank < 3; ++rank) EXPECT_EQ(group.x(rank)[2 * chunk], group.x(0)[2 * chunk]);
}

TEST(MoshpitRoundFaults, without_a_verdict_each_member_applies_the_results_that_it_has) {
  auto options = owners(4);
  options.commit = CommitRule::per_result;
  RoundGroup group(std::move(options));
  group.filter([](uint32_t from, uint32_t to, const RoundMessage& message) {
    if (from != 2 || is<Contribution>(message)) return is<Fetch>(message) ? Fate::lost : Fate::arrives;
    return is<ChunkResult>(message) ? (to == 0 ? Fate::arrives : Fate::lost) : Fate::sender_dies;
  });
  group.run();
  EXPECT_EQ(group.x(0)[2 * chunk], 17);
  EXPECT_EQ(group.x(1)[2 * chunk], 12);
  EXPECT_EQ(group.report(0).committed, 4u);
  EXPECT_EQ(group.report(1).lost, 1u);
}

TEST(MoshpitRoundFaults, applied_chunks_are_reported_without_a_verdict_too) {
  auto options = owners(4);
  options.commit = CommitRule::per_result;
  RoundGroup group(std::move(options));
  // The contributions of rank 3 are lost, and the result of rank 2 does not reach rank 1.
  group.filter([](uint32_t from, uint32_t to, const RoundMessage& message) {
    const bool no_contribution = from == 3 && is<Contribution>(message),
               unknown = from == 2 && to == 1 && is<ChunkResult>(message);
    return no_contribution || unknown || is<Fetch>(message) ? Fate::lost : Fate::arrives;
  });
  group.run();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (uint32_t part = 0; part < 4; ++part) {
      const auto* applied = group.round(rank).applied(part);
      ASSERT_EQ(applied == nullptr, rank == 1 && part == 2) << rank << ", chunk " << part;
      if (applied == nullptr) continue;
      EXPECT_EQ(applied->contributors[3], part == 3) << rank << ", chunk " << part;
      EXPECT_EQ(applied->total, part == 3 ? 4 : 3) << rank << ", chunk " << part;
    }
  }
}

TEST(MoshpitRoundFaults, an_aborted_round_applies_nothing) {
  for (const auto commit : {CommitRule::agreed, CommitRule::per_result}) {
    auto options = owners(4);
    options.commit = commit;
    RoundGroup group(std::move(options));
    group.filter([](uint32_t from, uint32_t to, const RoundMessage& message) {
      return is<VerdictMessage>(message) || is<Fetch>(message) || (from == 2 && to == 0 && is<ChunkResult>(message))
                 ? Fate::lost
                 : Fate::arrives;
    });
    group.start();
    group.run_until(100 * millisecond);
    ASSERT_FALSE(group.round(0).ended());
    ASSERT_GT(group.round(0).held_bytes(), 2 * chunk * sizeof(float)) << "results are there";
    group.round(0).abandon(group.now());
    group.run_until(200 * millisecond);
    for (uint32_t part = 0; part < 4; ++part) EXPECT_EQ(group.round(0).applied(part), nullptr) << "chunk " << part;
    expect_unchanged(group, 0);
  }
}

TEST(MoshpitRoundFaults, results_are_served_until_they_are_released_and_the_round_is_over_later) {
  RoundGroup group(owners(3));
  group.run();
  uint32_t results = 0, misses = 0, decided = 0;
  group.filter([&](uint32_t, uint32_t, const RoundMessage& message) {
    results += is<ChunkResult>(message) ? 1 : 0;
    misses += is<FetchMiss>(message) ? 1 : 0;
    decided += is<VerdictDecided>(message) ? 1 : 0;
    return Fate::arrives;
  });
  const auto fetch = round_message(group.format().group, Fetch{2});
  group.inject(1, 0, fetch);
  EXPECT_EQ(results, 1u);
  group.inject(1, 0, round_message(group.format().group, KeepAlive{}));
  EXPECT_EQ(decided, 1u);
  group.inject(1, 0, round_message(group.format().group, KeepAlive{.ended = true}));
  EXPECT_EQ(decided, 1u);
  group.round(0).release_results();
  group.inject(1, 0, fetch);
  EXPECT_EQ(misses, 1u);
  const Nanos end = group.ended_at(0) + 30 * second;
  EXPECT_EQ(group.round(0).next_deadline(), end);
  EXPECT_FALSE(group.round(0).over(end - 1));
  EXPECT_TRUE(group.round(0).over(end));
}

TEST(MoshpitRoundFaults, a_member_that_aborted_does_not_vote) {
  auto options = owners(2);
  options.absent = {false, true};
  RoundGroup group(std::move(options));
  group.run();
  uint32_t sent = 0;
  group.filter([&](uint32_t, uint32_t, const RoundMessage& message) {
    sent += is<VerdictMessage>(message) ? 1 : 0;
    return Fate::lost;
  });
  group.inject(1, 0, round_message(group.format().group, RoundMessage{VerdictMessage{VerdictPrepare{.ballot = 999}}}));
  EXPECT_EQ(sent, 0u);
}

TEST(MoshpitRoundFaults, impossible_messages_are_counted_and_ignored) {
  RoundGroup group(owners(3));
  group.start();
  const auto format = group.format();
  ChunkResult forged;
  forged.chunk = 2;
  forged.author = 1;  // rank 2 owns this chunk, not rank 1
  forged.contributors = 7;
  forged.digest = digest64({});
  const SharedBuffer messages[] = {
      SharedBuffer::copy({}),
      contribution_message(format, {.chunk = 0, .author = 2}),  // sent by rank 1, although the author is rank 2
      contribution_message(format, {.chunk = 2, .author = 1}),  // sent to rank 0, which does not own chunk 2
      result_message(format, forged),
      round_message({7, 8}, KeepAlive{}),  // has another group's id
  };
  for (const auto& message : messages) group.inject(1, 0, message);
  group.inject(0, 0, round_message(format.group, KeepAlive{}));
  group.run_until(second);
  EXPECT_EQ(group.report(0).ignored, 5u + 1u);
  EXPECT_EQ(group.report(0).committed, 3u);
  EXPECT_EQ(group.x(0)[0], 10);
}

TEST(MoshpitRoundRequest, an_inconsistent_request_is_refused) {
  struct Nowhere final : RoundPort {
    void send(uint32_t, SharedMessage, bool) override {}
    bool credit(uint32_t) const override { return false; }
  } port;
  ChunkValues values(ChunkTable(600, 32), SharedBuffer::make(600 * sizeof(float)));
  std::vector<ChunkState> states(3);
  const RoundRequest good{.id = {1, 2},
                          .self = 0,
                          .members = line_of(3),
                          .chunk_counts = {1, 1, 1},
                          .table = ChunkTable(600, 32),
                          .times = {},
                          .contribute_timeout = second,
                          .round_timeout = second,
                          .contribute_codec = {},
                          .result_codec = {},
                          .values = &values,
                          .states = states};
  EXPECT_TRUE(MoshpitRound::make(good, port).ok());
  const auto refused = [&](auto change) {
    auto bad = good;
    change(bad);
    return MoshpitRound::make(bad, port).status().code() == Code::invalid;
  };
  EXPECT_TRUE(refused([](auto& bad) { bad.members.resize(1); }));
  EXPECT_TRUE(refused([](auto& bad) { bad.members.resize(257); }));
  EXPECT_TRUE(refused([](auto& bad) { bad.self = 3; }));
  EXPECT_TRUE(refused([](auto& bad) { bad.chunk_counts = {1, 2}; }));
  EXPECT_TRUE(refused([](auto& bad) { bad.chunk_counts = {1, 1, 2}; }));
  EXPECT_TRUE(refused([](auto& bad) { bad.members[1].role = ElasticRole::client; }));
  ChunkValues shorter(ChunkTable(599, 32), SharedBuffer::make(599 * sizeof(float)));
  EXPECT_TRUE(refused([&](auto& bad) { bad.values = &shorter; }));
  EXPECT_TRUE(refused([](auto& bad) { bad.values = nullptr; }));
  EXPECT_TRUE(refused([](auto& bad) { bad.states = bad.states.first(2); }));
  EXPECT_TRUE(refused([](auto& bad) { bad.round_timeout = 0; }));
  EXPECT_TRUE(refused([](auto& bad) { bad.times.result_timeout = second; }));
  for (const double weight : {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1.1e100, 1e308}) {
    states[1].weight = weight;
    EXPECT_TRUE(refused([](auto&) {})) << weight;
  }
}

}  // namespace
}  // namespace unisono
