#include "training/sharded/shard_rebuild.h"

#include <algorithm>
#include <set>

#include "base/hash.h"
#include "training/sharded/lossy_ranks_test_support.h"

namespace unisono {
namespace {

using namespace test;

using Values = std::vector<float>;

constexpr uint64_t tensor_elements = 2000;

// Four ranks that lose a third of the broadcast ranges, at random.
struct Four {
  explicit Four(uint32_t steps, const WireCodec& codec = plain(DType::f32)) : geometry(geometry_of(4, tensor_elements, codec)) {
    Values values(tensor_elements);
    Random random(17);
    for (auto& value : values) value = uniform(random);
    for (Rank rank = 0; rank < 4; ++rank) {
      auto made = ShardedState::make(geometry, rank, values, make_adamw({.rate = 0.1}));
      ranks.push_back(std::move(*made));
    }
    for (uint32_t step = 0; step < steps; ++step) {
      for (auto& rank : ranks) {
        Values gradient(rank.own_values().size());
        for (auto& g : gradient) g = uniform(random);
        rank.update(gradient, {});
      }
      for (auto& owner : ranks) {
        const auto encoded = owner.encode();
        for (uint32_t range = 0; range < geometry.ranges(owner.self()); ++range) {
          for (auto& to : ranks) {
            if (random.chance(0.66))
              to.receive(owner.self(), range, owner.step(),
                         encoded.subspan(geometry.offset(range), geometry.bytes(owner.self(), range)));
          }
        }
      }
    }
  }
  RangeGeometry geometry;
  std::vector<ShardedState> ranks;
};

void add(Values& sum, const Values& share) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += share[i];
}

// The results of the caller's all-reduces: sums of the survivors' shares.
struct Gathered {
  Values values = Values(tensor_elements);
  std::vector<Values> states = std::vector<Values>(2, Values(tensor_elements));
};
Gathered gather(std::vector<ShardedState>& ranks, const std::set<Rank>& survivors, std::span<const LostShard> lost,
                Rank holder) {
  Gathered all;
  Values share(tensor_elements);
  for (const Rank rank : survivors) {
    std::vector<LostShard> mine(lost.begin(), lost.end());
    for (auto& shard : mine) shard.backup = rank == holder ? shard.backup : nullptr;
    EXPECT_TRUE(own_share_of_values(ranks[rank], mine, share).ok());
    add(all.values, share);
    for (uint32_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(own_share_of_state(ranks[rank], i, mine, share).ok());
      add(all.states[i], share);
    }
  }
  return all;
}

Result<NewestReplicas> sources_of(const std::vector<ShardedState>& ranks, const std::set<Rank>& survivors, Rank lost) {
  std::vector<ReplicaVersions> replicas;
  for (const Rank rank : survivors) replicas.push_back({.rank = rank, .versions = ranks[rank].versions(lost)});
  return newest_replicas(replicas, ranks[*survivors.begin()].step());
}

TEST(ShardRebuild, takes_the_newest_replica_of_each_range) {
  const std::vector<uint32_t> a{3, 7, 5, 0}, b{4, 7, 5, 9}, c{9, 6, 5, 9};
  const ReplicaVersions replicas[] = {{.rank = 2, .versions = a}, {.rank = 0, .versions = b}, {.rank = 5, .versions = c}};
  const auto sources = newest_replicas(replicas, 9);
  ASSERT_TRUE(sources.ok());
  EXPECT_EQ(*sources, (NewestReplicas{.by_range = {5, 2, 2, 0}, .age_max = 4, .stale_ranges = 2}));
}

TEST(ShardRebuild, refuses_replicas_of_different_shards) {
  EXPECT_EQ(newest_replicas({}, 1).status().code(), Code::invalid);
  const std::vector<uint32_t> a{1, 2}, b{1};
  const ReplicaVersions replicas[] = {{.rank = 2, .versions = a}, {.rank = 0, .versions = b}};
  EXPECT_EQ(newest_replicas(replicas, 9).status().message(), "rebuilding shards: rank 0 has versions of 1 ranges, rank 2 of 2");
}

// The lost shard must come from the newest replicas and the backup. All other values and states must stay the same bit by bit.
TEST(ShardRebuild, survivors_continue_with_the_newest_values) {
  Four four(6);
  auto& ranks = four.ranks;
  const Rank lost = 1;
  const std::set<Rank> survivors{0, 2, 3};
  const auto backup = decode_backup(encode_backup(ranks[lost]), four.geometry);
  ASSERT_TRUE(backup.ok());
  const auto sources = sources_of(ranks, survivors, lost);
  ASSERT_TRUE(sources.ok());
  EXPECT_GT(std::set<Rank>(sources->by_range.begin(), sources->by_range.end()).size(), 1u) << "or the test shows little";
  const LostShard shards[] = {{.owner = lost, .sources = sources->by_range, .backup = &*backup}};
  const auto all = gather(ranks, survivors, shards, 2);
  for (uint32_t range = 0; range < four.geometry.ranges(lost); ++range) {
    const auto extent = four.geometry.range(lost, range);
    uint32_t newest = 0;
    for (const Rank rank : survivors) newest = std::max(newest, ranks[rank].version(lost, range));
    for (const Rank rank : survivors) {
      if (ranks[rank].version(lost, range) != newest) continue;
      EXPECT_TRUE(std::equal(all.values.begin() + static_cast<std::ptrdiff_t>(extent.begin),
                             all.values.begin() + static_cast<std::ptrdiff_t>(extent.end),
                             ranks[rank].parameters().begin() + static_cast<std::ptrdiff_t>(extent.begin)));
    }
  }
  const auto cut = geometry_of(3, tensor_elements);
  Values states[2] = {Values(tensor_elements), Values(tensor_elements)};
  for (auto& rank : ranks) {
    for (uint32_t i = 0; i < 2; ++i)
      std::ranges::copy(rank.optimizer().state(i),
                        states[i].begin() + static_cast<std::ptrdiff_t>(four.geometry.shard(rank.self()).begin));
  }
  std::vector<ShardedState*> next;
  for (const Rank rank : survivors) next.push_back(&ranks[rank]);
  for (Rank rank = 0; rank < 3; ++rank) {
    const auto old = four.geometry.shard(next[rank]->self());
    EXPECT_TRUE(std::ranges::equal(next[rank]->own_values(), std::span(all.values).subspan(old.begin, old.count())));
    ASSERT_TRUE(next[rank]->rebuild(cut, rank, {.step = 6, .values = all.values, .states = all.states}).ok());
    const auto own = cut.shard(rank);
    EXPECT_TRUE(std::ranges::equal(next[rank]->own_values(), std::span(all.values).subspan(own.begin, own.count())));
    for (uint32_t i = 0; i < 2; ++i)
      EXPECT_TRUE(std::ranges::equal(next[rank]->optimizer().state(i), std::span(states[i]).subspan(own.begin, own.count())));
    EXPECT_TRUE(std::ranges::equal(next[rank]->parameters(), next[0]->parameters()));
    EXPECT_EQ(next[rank]->close_step(), StaleReport{});
    EXPECT_EQ(next[rank]->step(), 6u);
  }
}

TEST(ShardRebuild, training_continues_after_a_rebuild) {
  Four four(4, plain(DType::bf16));
  const std::set<Rank> survivors{1, 2};
  const auto first = sources_of(four.ranks, survivors, 0), last = sources_of(four.ranks, survivors, 3);
  const LostShard shards[] = {{.owner = 0, .sources = first->by_range}, {.owner = 3, .sources = last->by_range}};
  const auto all = gather(four.ranks, survivors, shards, 1);
  for (const Rank rank : survivors) {
    const auto shard = four.geometry.shard(rank);
    EXPECT_TRUE(std::ranges::equal(four.ranks[rank].own_values(), std::span(all.values).subspan(shard.begin, shard.count())))
        << "exactly, not as they travel";
  }
  EXPECT_TRUE(std::ranges::all_of(std::span(all.states[0]).first(four.geometry.shard(0).count()), [](float v) {
    return v == 0;
  })) << "no backup: it starts anew";
  const auto cut = geometry_of(2, tensor_elements, plain(DType::bf16));
  auto &a = four.ranks[1], &b = four.ranks[2];
  ASSERT_TRUE(a.rebuild(cut, 0, {.step = 4, .values = all.values, .states = all.states}).ok());
  ASSERT_TRUE(b.rebuild(cut, 1, {.step = 4, .values = all.values, .states = all.states}).ok());
  for (auto* state : {&a, &b}) state->update(Values(state->own_values().size(), 1.0f), {});
  EXPECT_EQ(a.receive_shard(1, 5, b.encode()), cut.ranges(1));
  EXPECT_EQ(b.receive_shard(0, 5, a.encode()), cut.ranges(0));
  EXPECT_TRUE(std::ranges::equal(a.parameters(), b.parameters()));
}

TEST(ShardRebuild, rebuilds_for_more_ranks_than_before) {
  Four four(3);
  const auto all = gather(four.ranks, {0, 1, 2, 3}, {}, 0);
  const auto cut = geometry_of(7, tensor_elements);
  for (Rank rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(four.ranks[rank].rebuild(cut, rank + 2, {.step = 3, .values = all.values, .states = all.states}).ok());
    EXPECT_TRUE(std::ranges::equal(four.ranks[rank].parameters(), all.values));
  }
}

TEST(ShardRebuild, refuses_pieces_of_other_sizes_and_changes_nothing) {
  Four four(2);
  auto& state = four.ranks[0];
  const auto before = state.save();
  const Values values(tensor_elements);
  const std::vector<Values> one(1, values), shorter{values, Values(3)};
  const auto cut = geometry_of(3, tensor_elements);
  EXPECT_EQ(state.rebuild(cut, 3, {.step = 2, .values = values}).code(), Code::invalid);
  EXPECT_EQ(state.rebuild(cut, 0, {.step = 2, .values = std::span(values).first(5)}).code(), Code::invalid);
  EXPECT_EQ(state.rebuild(geometry_of(3, 5), 0, {.step = 2, .values = std::span(values).first(5)}).code(), Code::invalid);
  EXPECT_EQ(state.rebuild(cut, 0, {.step = 2, .values = values, .states = one}).code(), Code::invalid);
  EXPECT_EQ(state.rebuild(cut, 0, {.step = 2, .values = values, .states = shorter}).code(), Code::invalid);
  Values share(tensor_elements), small(3);
  const std::vector<Rank> sources(2);
  const LostShard self[] = {{.owner = 0}}, nobody[] = {{.owner = 4}}, few[] = {{.owner = 1, .sources = sources}};
  EXPECT_EQ(own_share_of_values(state, {}, small).code(), Code::invalid);
  EXPECT_EQ(own_share_of_values(state, self, share).code(), Code::invalid);
  EXPECT_EQ(own_share_of_values(state, nobody, share).code(), Code::invalid);
  EXPECT_EQ(own_share_of_values(state, few, share).code(), Code::invalid);
  EXPECT_EQ(own_share_of_state(state, 2, {}, share).code(), Code::invalid);
  const ShardBackup strange{.owner = 2, .step = 1, .states = {Values(3), Values(3)}};
  const LostShard wrong[] = {{.owner = 1, .backup = &strange}};
  EXPECT_EQ(own_share_of_state(state, 0, wrong, share).code(), Code::invalid);
  EXPECT_EQ(state.save(), before);
}

TEST(ShardRebuild, refuses_a_truncated_or_changed_backup) {
  Four four(1);
  auto geometry = geometry_of(4, 64);
  auto state = ShardedState::make(geometry, 2, Values(64, 1.0f), make_adamw({}));
  state->update(Values(16, 1.0f), {});
  const auto bytes = encode_backup(*state);
  const auto back = decode_backup(bytes, geometry);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->owner, 2u);
  EXPECT_EQ(back->step, 1u);
  ASSERT_EQ(back->states.size(), 2u);
  EXPECT_TRUE(std::ranges::equal(back->states[1], state->optimizer().state(1)));
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(decode_backup(ByteView(bytes).first(size), geometry).status().code(), Code::corrupt) << size;
  for (size_t at = 0; at < bytes.size(); ++at) {
    auto changed = bytes;
    changed[at] ^= std::byte{4};
    EXPECT_EQ(decode_backup(changed, geometry).status().code(), Code::corrupt) << at;
  }
  EXPECT_EQ(decode_backup(bytes, geometry_of(4, 65)).status().code(), Code::invalid);
  EXPECT_EQ(decode_backup(bytes, geometry_of(2, 64)).status().code(), Code::invalid);
}

// Forged backups: the hash is right, but a field is changed.
TEST(ShardRebuild, a_backup_with_forged_sizes_allocates_nothing) {
  auto geometry = geometry_of(4, 64);
  auto state = ShardedState::make(geometry, 2, Values(64, 1.0f), make_adamw({}));
  const auto bytes = encode_backup(*state);
  const auto lies = [&](size_t at, uint8_t value, size_t cut = 0, size_t more = 0) {
    Bytes body(bytes.begin(), bytes.end() - 8 - static_cast<std::ptrdiff_t>(cut));
    body.resize(body.size() + more);
    if (at < body.size()) body[at] = std::byte{value};
    ByteWriter end;
    end.write(hash_of(body));
    body.insert(body.end(), end.view().begin(), end.view().end());
    return decode_backup(body, geometry).status();
  };
  EXPECT_TRUE(lies(SIZE_MAX, 0).ok());
  EXPECT_EQ(lies(4, 2).message(), "a backup of an optimizer's state has version 2; this build reads version 1");
  EXPECT_EQ(lies(8, 9).code(), Code::invalid);      // byte 8: owner
  EXPECT_EQ(lies(19, 0x7F).code(), Code::corrupt);  // byte 19: number of states, now two thousand million
  EXPECT_EQ(lies(16, 1).code(), Code::corrupt);
  EXPECT_EQ(lies(27, 0x7F).code(), Code::invalid);  // byte 27: number of elements
  EXPECT_EQ(lies(SIZE_MAX, 0, 1).code(), Code::corrupt);
  EXPECT_EQ(lies(SIZE_MAX, 0, 4).code(), Code::corrupt);
  EXPECT_EQ(lies(SIZE_MAX, 0, 140).code(), Code::corrupt);
  for (const size_t more : {1, 4, 64}) EXPECT_EQ(lies(SIZE_MAX, 0, 0, more).code(), Code::corrupt) << more;
}

}  // namespace
}  // namespace unisono
