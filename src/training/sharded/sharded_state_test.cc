#include "training/sharded/sharded_state.h"

#include <algorithm>
#include <cstring>

#include "base/concat.h"
#include "training/sharded/lossy_ranks_test_support.h"

namespace unisono {
namespace {

using namespace test;

using Values = std::vector<float>;

const WireCodec int8_codec{.kind = StepCodec::Kind::quantize, .block = {.bits = 8, .group = 32}};
const std::vector<WireCodec> codecs{plain(DType::f32), plain(DType::bf16), int8_codec};

Values ramp(uint64_t elements) {
  Values values(elements);
  for (size_t i = 0; i < elements; ++i) values[i] = 0.37f * static_cast<float>(i % 1013) - 90;
  return values;
}

ShardedState make(const RangeGeometry& geometry, Rank self, std::unique_ptr<ShardOptimizer> optimizer = make_sgd({.rate = 1}),
                  uint32_t stale_max = 0) {
  auto made = ShardedState::make(geometry, self, ramp(geometry.cut().elements), std::move(optimizer), {.stale_max = stale_max});
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(*made);
}

Values decoded(const RangeGeometry& geometry, Rank owner, std::span<const std::byte> encoded) {
  Values values(geometry.shard(owner).count());
  kernels::BlockCounts counts;
  for (uint32_t range = 0; range < geometry.ranges(owner); ++range) {
    const auto extent = geometry.range(owner, range);
    decode({.codec = geometry.cut().codec,
            .message = encoded.data() + geometry.offset(range),
            .elements = values.data() + (extent.begin - geometry.shard(owner).begin),
            .count = extent.count()},
           counts);
  }
  return values;
}

Values part(const ShardedState& state, Rank owner) {
  const auto extent = state.geometry().shard(owner);
  return {state.parameters().begin() + static_cast<std::ptrdiff_t>(extent.begin),
          state.parameters().begin() + static_cast<std::ptrdiff_t>(extent.end)};
}

bool never(Rank, uint32_t, Rank) { return false; }

TEST(ShardedState, ranks_start_with_equal_decoded_replicas) {
  for (const auto& codec : codecs) {
    for (const auto& [world, elements] : {std::pair{3u, 3000u}, {8u, 5u}, {1u, 700u}, {2u, 0u}}) {
      SCOPED_TRACE(concat(to_string(codec), " ", world));
      const auto geometry = geometry_of(world, elements, codec);
      const auto first = make(geometry, 0);
      for (Rank rank = 0; rank < world; ++rank) {
        auto state = make(geometry, rank);
        EXPECT_TRUE(std::ranges::equal(state.parameters(), first.parameters()));
        const auto shard = geometry.shard(rank);
        const auto values = ramp(elements);
        EXPECT_TRUE(std::ranges::equal(state.own_values(), std::span(values).subspan(shard.begin, shard.count())));
        EXPECT_EQ(decoded(geometry, rank, state.encode()), part(state, rank));
        EXPECT_TRUE(std::ranges::equal(state.parameters(), first.parameters()));
      }
    }
  }
}

TEST(ShardedState, refuses_sizes_that_do_not_match) {
  const auto geometry = geometry_of(2, 100);
  const auto code = [&](Rank self, size_t count, std::unique_ptr<ShardOptimizer> optimizer) {
    return ShardedState::make(geometry, self, Values(count), std::move(optimizer)).status().code();
  };
  EXPECT_EQ(code(1, 100, make_sgd({})), Code::ok);
  EXPECT_EQ(code(2, 100, make_sgd({})), Code::invalid);
  EXPECT_EQ(code(1, 99, make_sgd({})), Code::invalid);
  EXPECT_EQ(code(1, 100, nullptr), Code::invalid);
}

TEST(ShardedState, update_changes_own_values_and_encode_publishes_them) {
  for (const auto& codec : codecs) {
    auto state = make(geometry_of(2, 1000, codec), 1);
    const Values before(state.own_values().begin(), state.own_values().end()), shown = part(state, 1), others = part(state, 0);
    const Values gradient(before.size(), 2.0f);
    state.update(gradient, {}, 0.5f);
    EXPECT_EQ(state.step(), 1u);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(state.own_values()[i], before[i] - 1);
    EXPECT_EQ(part(state, 1), shown);
    const auto encoded = state.encode();
    EXPECT_EQ(encoded.size(), state.geometry().shard_bytes(1));
    EXPECT_NE(part(state, 1), shown);
    EXPECT_EQ(decoded(state.geometry(), 1, encoded), part(state, 1));
    EXPECT_EQ(part(state, 0), others);
  }
}

// In a held range nothing changes: values, the optimizer's moments and sent values stay, without weight decay.
TEST(ShardedState, held_ranges_do_not_change) {
  const auto geometry = geometry_of(2, 2000);
  auto state = make(geometry, 0, make_adamw({.rate = 0.1, .weight_decay = 0.5}));
  const Values before(state.own_values().begin(), state.own_values().end()), gradient(before.size(), 1.0f);
  const size_t ranges = geometry.ranges(0), each = geometry.range_elements();
  ASSERT_EQ(ranges, 8u);
  ASSERT_LT(geometry.range(0, 7).count(), each);
  for (const std::vector<uint8_t>& held :
       std::vector<std::vector<uint8_t>>{{1, 0, 0, 1, 1, 0, 1, 0}, {0, 0, 0, 0, 0, 0, 0, 1}, {1, 1, 1, 1, 1, 1, 1, 1}}) {
    state = make(geometry, 0, make_adamw({.rate = 0.1, .weight_decay = 0.5}));
    state.update(gradient, held);
    state.encode();
    EXPECT_EQ(state.close_step().held_ranges, static_cast<uint64_t>(std::ranges::count(held, 1)));
    for (size_t i = 0; i < before.size(); ++i) {
      const bool is_held = held[i / each] != 0;
      ASSERT_EQ(state.own_values()[i] == before[i] && state.optimizer().state(0)[i] == 0 && state.optimizer().state(1)[i] == 0,
                is_held)
          << i;
    }
  }
}

TEST(ShardedState, scalars_exclude_held_ranges) {
  const auto geometry = geometry_of(2, 2000);
  auto state = make(geometry, 0);
  Values gradient(state.own_values().size());
  const size_t each = geometry.range_elements(), last = geometry.range(0, 7).begin;
  gradient[0] = 3, gradient[each] = 1e30f, gradient[last] = -4;
  std::vector<uint8_t> held{0, 1, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(state.scalars(gradient, held).squares, 25);
  EXPECT_TRUE(state.scalars(gradient, {}).finite);
  EXPECT_NEAR(state.scalars(gradient, {}).squares, 1e60, 1e54);
  for (const float strange : {std::nanf(""), INFINITY}) {
    gradient[each] = strange;
    EXPECT_TRUE(state.scalars(gradient, held).finite);
    EXPECT_FALSE(state.scalars(gradient, {}).finite);
  }
  EXPECT_EQ(clip_factor(25, 10), 1);
  EXPECT_NEAR(clip_factor(25, 1), 0.2, 1e-6);
  EXPECT_EQ(clip_factor(0, 1), 1);
}

TEST(ShardedState, a_held_step_counts_and_changes_nothing) {
  auto state = make(geometry_of(2, 2000), 0, make_adamw({}));
  const auto before = state.save();
  state.hold();
  EXPECT_EQ(state.close_step(), (StaleReport{.stale_ranges = 8, .age_max = 1, .held_ranges = 8}));
  state.hold(6);
  EXPECT_EQ(state.step(), 7u);
  EXPECT_EQ(state.close_step().age_max, 7u);
  auto other = make(geometry_of(2, 2000), 0, make_adamw({}));
  ASSERT_TRUE(other.load(before).ok());
  EXPECT_TRUE(std::ranges::equal(state.parameters(), other.parameters()));
  EXPECT_TRUE(std::ranges::equal(state.own_values(), other.own_values()));
}

// Returns the encoded shards that an owner sends in steps 1, 2, …
std::vector<std::vector<std::byte>> history(ShardedState& owner, uint32_t steps) {
  std::vector<std::vector<std::byte>> sent;
  for (uint32_t step = 0; step < steps; ++step) {
    owner.update(Values(owner.own_values().size(), 1.0f + static_cast<float>(step)), {});
    const auto encoded = owner.encode();
    sent.emplace_back(encoded.begin(), encoded.end());
  }
  return sent;
}

TEST(ShardedState, writes_only_newer_values_in_any_order) {
  for (const auto& codec : codecs) {
    const auto geometry = geometry_of(2, 2000, codec);
    auto owner = make(geometry, 0);
    const auto sent = history(owner, 5);
    const auto bytes = [&](uint32_t step, uint32_t range) {
      return std::span(sent[step - 1]).subspan(geometry.offset(range), geometry.bytes(0, range));
    };
    Random random(7);
    for (int round = 0; round < 50; ++round) {
      auto state = make(geometry, 1);
      state.hold(5);
      std::vector<uint32_t> newest(geometry.ranges(0));
      for (int message = 0; message < 30; ++message) {
        const auto step = static_cast<uint32_t>(1 + random.below(5)),
                   range = static_cast<uint32_t>(random.below(newest.size()));
        EXPECT_EQ(state.receive(0, range, step, bytes(step, range)), step > newest[range]);
        newest[range] = std::max(newest[range], step);
        EXPECT_EQ(state.version(0, range), newest[range]);
        EXPECT_EQ(state.age(0, range), 5 - newest[range]);
      }
      auto expected = part(make(geometry, 1), 0);
      for (uint32_t range = 0; range < newest.size(); ++range) {
        const auto extent = geometry.range(0, range);
        if (newest[range] != 0)
          std::copy_n(decoded(geometry, 0, sent[newest[range] - 1]).begin() + static_cast<std::ptrdiff_t>(extent.begin),
                      extent.count(), expected.begin() + static_cast<std::ptrdiff_t>(extent.begin));
      }
      EXPECT_EQ(part(state, 0), expected);
    }
  }
}

TEST(ShardedState, refuses_messages_for_no_range_of_another_shard) {
  for (const auto& codec : codecs) {
    const auto geometry = geometry_of(3, 2700, codec);
    auto owner = make(geometry, 0), state = make(geometry, 1);
    const auto sent = history(owner, 2);
    state.hold(1);
    const auto before = state.save();
    const auto first = std::span(sent[0]).first(geometry.range_bytes());
    EXPECT_FALSE(state.receive(3, 0, 1, first));
    EXPECT_FALSE(state.receive(1, 0, 1, first));
    EXPECT_FALSE(state.receive(0, geometry.ranges(0), 1, first));
    EXPECT_FALSE(state.receive(0, geometry.ranges(0) - 1, 1, first)) << "that one is shorter";
    EXPECT_FALSE(state.receive(0, 0, 0, first));
    EXPECT_FALSE(state.receive(0, 0, 2, first)) << "this rank has not begun that step";
    EXPECT_FALSE(state.receive(0, 0, 1, first.first(first.size() - 1)));
    EXPECT_FALSE(state.receive(0, 0, 1, {}));
    EXPECT_EQ(state.receive_shard(0, 1, first), 0u);
    EXPECT_EQ(state.receive_shard(7, 1, sent[0]), 0u);
    EXPECT_EQ(state.save(), before);
    EXPECT_EQ(state.receive_shard(0, 1, sent[0]), geometry.ranges(0));
    EXPECT_EQ(state.receive_shard(0, 1, sent[0]), 0u);
    EXPECT_EQ(part(state, 0), decoded(geometry, 0, sent[0]));
  }
}

TEST(ShardedState, a_missed_range_keeps_its_value_and_ages) {
  LossyRanks group({.world = 3, .shard = 1000});
  const Values start(group.ranks[1].parameters().begin(), group.ranks[1].parameters().end());
  const auto lost = [](Rank owner, uint32_t range, Rank to) { return owner == 0 && range == 2 && to == 1; };
  for (uint32_t step = 1; step <= 4; ++step) {
    group.step(lost);
    EXPECT_EQ(group.ranks[1].age(0, 2), step);
    EXPECT_EQ(group.ranks[1].version(0, 2), 0u);
    EXPECT_EQ(group.ranks[1].close_step(), (StaleReport{.stale_ranges = 1, .age_max = step, .held_ranges = 0}));
    EXPECT_EQ(group.ranks[2].close_step(), StaleReport{});
    EXPECT_EQ(group.ranks[0].age(0, 2), 0u);
    const auto extent = group.geometry.range(0, 2);
    EXPECT_TRUE(std::ranges::equal(std::span(group.ranks[1].parameters()).subspan(extent.begin, extent.count()),
                                   std::span(start).subspan(extent.begin, extent.count())));
  }
  std::vector<uint64_t> ages(3);
  group.ranks[1].age_histogram(ages);
  EXPECT_EQ(ages, (std::vector<uint64_t>{15, 0, 1}));
  std::vector<uint64_t> more(6);
  group.ranks[1].age_histogram(more);
  EXPECT_EQ(more, (std::vector<uint64_t>{15, 0, 0, 0, 1, 0}));
  group.step(never);
  EXPECT_EQ(group.ranks[1].age(0, 2), 0u);
  EXPECT_EQ(group.ranks[1].close_step(), StaleReport{});
  EXPECT_TRUE(group.identical());
}

// Check B6 of docs/design/methods/packet_loss.md: after one step without loss, all replicas are equal.
TEST(ShardedState, one_step_without_loss_makes_all_replicas_equal) {
  for (const auto& codec : codecs) {
    LossyRanks group({.world = 4, .shard = 1200, .codec = codec, .seed = 3});
    Random random(11);
    for (int round = 0; round < 5; ++round) {
      for (int step = 0; step < 6; ++step) group.step([&](Rank, uint32_t, Rank) { return random.chance(0.4); });
      EXPECT_FALSE(group.identical());
      // Later rounds also hold some ranges; the last round holds all.
      std::vector<uint8_t> held(group.geometry.ranges(0));
      for (auto& one : held) one = round == 4 || (round > 1 && random.chance(0.5));
      group.step(never, held);
      EXPECT_TRUE(group.identical());
      for (auto& rank : group.ranks) {
        EXPECT_EQ(rank.close_step().stale_ranges, 0u);
        EXPECT_EQ(decoded(group.geometry, rank.self(), rank.encode()), part(group.ranks[0], rank.self()));
      }
    }
  }
}

// A range of a replica has a version. It must equal what the owner sent in that step.
TEST(ShardedState, every_range_equals_its_owners_values_at_its_version) {
  LossyRanks group({.world = 3, .shard = 500, .codec = plain(DType::bf16), .seed = 5});
  std::vector<std::vector<Values>> shown(3);
  const auto remember = [&] {
    for (Rank owner = 0; owner < 3; ++owner) shown[owner].push_back(part(group.ranks[owner], owner));
  };
  remember();
  Random random(13);
  for (int step = 0; step < 30; ++step) {
    group.step([&](Rank, uint32_t, Rank) { return random.chance(0.5); });
    remember();
    for (const auto& rank : group.ranks) {
      for (Rank owner = 0; owner < 3; ++owner) {
        for (uint32_t range = 0; range < group.geometry.ranges(owner); ++range) {
          const auto extent = group.geometry.range(owner, range);
          const auto& then = shown[owner][rank.version(owner, range)];
          ASSERT_TRUE(
              std::ranges::equal(std::span(rank.parameters()).subspan(extent.begin, extent.count()),
                                 std::span(then).subspan(extent.begin - group.geometry.shard(owner).begin, extent.count())));
        }
      }
    }
  }
}

TEST(ShardedState, ranges_of_age_stale_max_must_be_fetched) {
  const auto geometry = geometry_of(2, 2000);
  auto owner = make(geometry, 0), state = make(geometry, 1, make_sgd({}), 3), patient = make(geometry, 1, make_sgd({}), 0);
  const auto sent = history(owner, 4);
  std::vector<uint32_t> ranges{9, 9};
  const auto message = [&](uint32_t step, uint32_t range) {
    return std::span(sent[step - 1]).subspan(geometry.offset(range), geometry.bytes(0, range));
  };
  for (uint32_t step = 1; step <= 3; ++step) {
    state.to_fetch(0, ranges);
    EXPECT_TRUE(ranges.empty());
    state.hold();
    for (const uint32_t range : {0, 2, 3, 4, 5, 6}) state.receive(0, range, step, message(step, range));
    if (step == 1) state.receive(0, 7, step, message(step, 7));
  }
  state.to_fetch(0, ranges);
  EXPECT_EQ(ranges, (std::vector<uint32_t>{1}));
  state.hold();
  state.to_fetch(0, ranges);
  EXPECT_EQ(ranges, (std::vector<uint32_t>{1, 7}));
  EXPECT_TRUE(state.receive(0, 1, 4, message(4, 1)));
  EXPECT_EQ(state.age(0, 1), 0u);
  state.to_fetch(0, ranges);
  EXPECT_EQ(ranges, (std::vector<uint32_t>{7}));
  state.to_fetch(1, ranges);
  EXPECT_TRUE(ranges.empty());
  patient.hold(1000);
  patient.to_fetch(0, ranges);
  EXPECT_TRUE(ranges.empty());
}

TEST(ShardedState, shards_without_elements_take_part) {
  const auto geometry = geometry_of(8, 5);
  std::vector<ShardedState> ranks;
  for (Rank rank = 0; rank < 8; ++rank) ranks.push_back(make(geometry, rank));
  for (auto& rank : ranks) rank.update(Values(rank.own_values().size(), 1.0f), {});
  EXPECT_EQ(ranks[7].encode().size(), 0u);
  EXPECT_EQ(ranks[3].receive_shard(7, 1, {}), 0u);
  EXPECT_EQ(ranks[3].receive_shard(0, 1, ranks[0].encode()), 1u);
  EXPECT_EQ(part(ranks[3], 0), part(ranks[0], 0));
  EXPECT_EQ(ranks[3].close_step(), StaleReport{});
}

}  // namespace
}  // namespace unisono
