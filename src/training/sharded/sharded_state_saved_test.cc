#include <algorithm>

#include "base/hash.h"
#include "training/sharded/lossy_ranks_test_support.h"

namespace unisono {
namespace {

using namespace test;

using Values = std::vector<float>;

ShardedState make(const RangeGeometry& geometry, Rank self, std::unique_ptr<ShardOptimizer> optimizer) {
  Values values(geometry.cut().elements);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) / 7;
  auto made = ShardedState::make(geometry, self, values, std::move(optimizer));
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(*made);
}

// Returns three ranks after some steps in which a third of the ranges were lost.
std::vector<ShardedState> trained(const RangeGeometry& geometry, uint32_t steps) {
  std::vector<ShardedState> ranks;
  for (Rank rank = 0; rank < 3; ++rank) ranks.push_back(make(geometry, rank, make_adamw({})));
  Random random(3);
  for (uint32_t step = 0; step < steps; ++step) {
    for (auto& rank : ranks) rank.update(Values(rank.own_values().size(), 0.5f + static_cast<float>(step)), {});
    for (auto& owner : ranks) {
      const auto encoded = owner.encode();
      for (auto& to : ranks) {
        for (uint32_t range = 0; range < geometry.ranges(owner.self()); ++range) {
          if (random.chance(0.66))
            to.receive(owner.self(), range, owner.step(),
                       encoded.subspan(geometry.offset(range), geometry.bytes(owner.self(), range)));
        }
      }
    }
  }
  return ranks;
}

// Appends a valid hash to the body.
Bytes sealed(Bytes body) {
  ByteWriter end;
  end.write(hash_of(body));
  body.insert(body.end(), end.view().begin(), end.view().end());
  return body;
}
Bytes body_of(const Bytes& saved) { return {saved.begin(), saved.end() - 8}; }

TEST(ShardedStateSaved, continues_after_loading_as_if_never_stopped) {
  for (const auto type : {DType::f32, DType::bf16}) {
    const auto geometry = geometry_of(3, 1000, plain(type));
    auto ranks = trained(geometry, 5);
    auto loaded = make(geometry, 1, make_adamw({}));
    const auto saved = ranks[1].save();
    ASSERT_TRUE(loaded.load(saved).ok());
    EXPECT_EQ(loaded.save(), saved);
    EXPECT_EQ(loaded.step(), 5u);
    for (auto* state : {&ranks[1], &loaded}) state->update(Values(state->own_values().size(), -1.0f), {});
    EXPECT_TRUE(std::ranges::equal(loaded.encode(), ranks[1].encode()));
    EXPECT_EQ(loaded.save(), ranks[1].save());
    EXPECT_EQ(loaded.close_step(), ranks[1].close_step());
  }
}

// Saves between update() and encode(), when parameters() and own_values() of the rank's shard differ.
TEST(ShardedStateSaved, keeps_every_bit_in_the_middle_of_a_step) {
  const auto geometry = geometry_of(3, 1000);
  auto ranks = trained(geometry, 3);
  ranks[0].update(Values(ranks[0].own_values().size(), 1.0f), {});
  auto loaded = make(geometry, 0, make_adamw({}));
  ASSERT_TRUE(loaded.load(ranks[0].save()).ok());
  EXPECT_EQ(loaded.save(), ranks[0].save());
}

TEST(ShardedStateSaved, truncated_bytes_are_corrupt_and_change_nothing) {
  const auto geometry = geometry_of(3, 60);
  const auto saved = trained(geometry, 3)[1].save();
  auto state = make(geometry, 1, make_adamw({}));
  const auto before = state.save();
  for (size_t size = 0; size < saved.size(); ++size)
    ASSERT_EQ(state.load(ByteView(saved).first(size)).code(), Code::corrupt) << size;
  auto longer = saved;
  longer.push_back(std::byte{0});
  EXPECT_EQ(state.load(longer).code(), Code::corrupt);
  EXPECT_EQ(state.save(), before);
}

TEST(ShardedStateSaved, one_wrong_bit_is_corrupt_and_changes_nothing) {
  const auto geometry = geometry_of(3, 60);
  const auto saved = trained(geometry, 3)[1].save();
  auto state = make(geometry, 1, make_adamw({}));
  const auto before = state.save();
  Random random(5);
  for (size_t i = 0; i < saved.size() + 1000; ++i) {
    auto changed = saved;
    changed[i < saved.size() ? i : random.below(saved.size())] ^= static_cast<std::byte>(1u << random.below(8));
    ASSERT_EQ(state.load(changed).code(), Code::corrupt) << i;
  }
  EXPECT_EQ(state.save(), before);
}

// Forged bytes: the hash is right, but a field or the size is changed.
TEST(ShardedStateSaved, names_each_forged_field) {
  const auto geometry = geometry_of(3, 60);
  const auto body = body_of(trained(geometry, 3)[1].save());
  auto state = make(geometry, 1, make_adamw({}));
  const auto before = state.save();
  const auto says = [&](size_t at, uint8_t value) {
    auto changed = body;
    changed[at] = std::byte{value};
    return state.load(sealed(changed)).to_string();
  };
  EXPECT_EQ(says(0, 'X'), "corrupt: a checkpoint of a sharded state has a wrong magic number");
  EXPECT_EQ(says(4, 2), "corrupt: a checkpoint of a sharded state has version 2; this build reads version 1");
  EXPECT_EQ(says(8, 61), "invalid: a checkpoint of a sharded state: elements = 61, and this state has 60");
  EXPECT_EQ(says(16, 4), "invalid: a checkpoint of a sharded state: ranks = 4, and this state has 3");
  EXPECT_NE(says(20, 9).find(", and this state has 576"), std::string::npos);
  EXPECT_EQ(says(24, 2), "invalid: a checkpoint of a sharded state: rank = 2, and this state has 1");
  EXPECT_EQ(says(28, 1), "invalid: a checkpoint of a sharded state: optimizer states per element = 1, and this state has 2");
  EXPECT_NE(says(32, 9).find("codec hash"), std::string::npos);
  EXPECT_EQ(says(44, 9), "corrupt: a checkpoint of a sharded state of step 3 has a range of step 9")
      << "it would never be received again";
  for (const size_t size : {size_t{12}, size_t{39}, body.size() - 4, body.size() - 1})
    EXPECT_FALSE(state.load(sealed({body.begin(), body.begin() + static_cast<std::ptrdiff_t>(size)})).ok()) << size;
  auto longer = body;
  longer.resize(body.size() + 4);
  EXPECT_NE(state.load(sealed(longer)).message().find("bytes instead of"), std::string::npos);
  EXPECT_EQ(state.save(), before);
  EXPECT_TRUE(state.load(sealed(body)).ok());
}

TEST(ShardedStateSaved, random_bytes_under_a_right_hash_do_no_harm) {
  const auto geometry = geometry_of(3, 60);
  const auto body = body_of(trained(geometry, 3)[1].save());
  auto state = make(geometry, 1, make_adamw({}));
  Random random(9);
  for (int i = 0; i < 5000; ++i) {
    auto changed = body;
    for (uint64_t n = 1 + random.below(8); n > 0; --n)
      changed[random.below(random.chance(0.5) ? 60 : changed.size())] = static_cast<std::byte>(random.next());
    const bool loaded = state.load(sealed(changed)).ok();
    EXPECT_EQ(state.save() == sealed(changed), loaded);
  }
}

}  // namespace
}  // namespace unisono
