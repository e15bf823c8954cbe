// Check A33 of docs/design/methods/moshpit.md. With M^d peers, all groups are full, no two peers meet twice in d rounds, and d
// rounds give the exact mean.
#include "elastic/layout/moshpit_key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/random.h"
#include "elastic/formation/line_slot.h"
#include "elastic/layout/formation_view_test_support.h"

namespace unisono {
namespace {

Layout keyed_layout(uint32_t peers, uint32_t group, uint64_t version = 1) {
  const auto layout =
      make_layout({.run = "run", .version = version, .grid = GridKind::chunk_keys, .max_group = group}, test::peer_ids(peers));
  EXPECT_TRUE(layout.ok()) << layout.status().to_string();
  return *layout;
}

// M^d peers that all take part in each round, without faults.
struct KeyedPeers {
  KeyedPeers(uint32_t group, uint32_t digits)
      : layout(keyed_layout(static_cast<uint32_t>(std::lround(std::pow(group, digits))), group)), keys(layout.peers.size()) {
    for (uint32_t rank = 0; rank < keys.size(); ++rank) {
      keys[rank].enter(layout, layout.peers[rank]);
      values.push_back(random.unit());
    }
    mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
  // Runs one round, in which each member takes its group's mean. Returns the members of all groups.
  std::vector<std::vector<uint32_t>> form_groups() {
    std::vector<std::vector<uint32_t>> groups(key_count(layout));
    for (uint32_t rank = 0; rank < keys.size(); ++rank) groups[keys[rank].index()].push_back(rank);
    for (const auto& group : groups) {
      const auto slots = draw_slots({random.next(), random.next()}, key_group(layout));
      double sum = 0;
      for (const auto rank : group) sum += values[rank];
      for (size_t i = 0; i < group.size(); ++i) {
        values[group[i]] = sum / static_cast<double>(group.size());
        keys[group[i]].move(slots[i]);
      }
    }
    return groups;
  }
  double error() const {
    double most = 0;
    for (const auto value : values) most = std::max(most, std::abs(value - mean));
    return most;
  }

  Random random{7};
  Layout layout;
  std::vector<MoshpitKey> keys;  // by rank
  std::vector<double> values;
  double mean = 0;
};

TEST(MoshpitKey, a33_a_full_grid_is_exact_after_d_rounds_and_no_two_peers_meet_twice) {
  for (const auto& [group, digits] : {std::pair{2u, 3u}, {3u, 4u}, {4u, 5u}, {8u, 3u}, {32u, 2u}}) {
    KeyedPeers peers(group, digits);
    // The second step begins with the last keys of the first step. So any d successive rounds must be exact, not only the first
    // d.
    for (int step = 0; step < 2; ++step) {
      if (step > 0) {
        for (auto& value : peers.values) value = peers.random.unit();
        peers.mean = std::accumulate(peers.values.begin(), peers.values.end(), 0.0) / static_cast<double>(peers.values.size());
      }
      std::set<std::pair<uint32_t, uint32_t>> met;
      for (uint32_t round = 1; round <= digits; ++round) {
        for (const auto& members : peers.form_groups()) {
          ASSERT_EQ(members.size(), group);
          for (size_t i = 0; i < members.size(); ++i) {
            for (size_t j = 0; j < i; ++j)
              ASSERT_TRUE(met.insert({members[j], members[i]}).second) << group << ", round " << round;
          }
        }
        if (round == digits) EXPECT_LE(peers.error(), 1e-12) << group;
        else EXPECT_GT(peers.error(), 1e-3) << group << ", round " << round;
      }
    }
  }
}

TEST(MoshpitKey, begins_with_the_rank_so_that_keys_are_balanced) {
  const auto layout = keyed_layout(37, 4);
  ASSERT_EQ(key_count(layout), 16u);
  EXPECT_EQ(key_group(layout), 4u);
  for (uint32_t rank = 0; rank < 37; ++rank) {
    MoshpitKey key;
    key.enter(layout, layout.peers[rank]);
    EXPECT_TRUE(key.held());
    EXPECT_EQ(key.index(), rank % 16);
  }
}

TEST(MoshpitKey, of_an_unlisted_peer_follows_from_its_id) {
  const auto layout = keyed_layout(37, 4);
  const auto ids = test::peer_ids(200);
  std::set<uint32_t> keys;
  for (size_t i = 37; i < ids.size(); ++i) {
    MoshpitKey key;
    key.enter(layout, ids[i]);
    ASSERT_EQ(key.index(), mix64(pid64(ids[i])) % 16);
    keys.insert(key.index());
  }
  EXPECT_EQ(keys.size(), 16u);
}

TEST(MoshpitKey, loses_its_oldest_digit_and_gains_the_slot) {
  const auto layout = keyed_layout(200, 4);  // 4^3 < 200 <= 4^4, so d = 4 and keys have d-1 = 3 digits in base 4
  MoshpitKey key;
  key.enter(layout, layout.peers[1 * 16 + 2 * 4 + 3]);
  key.move(0);
  EXPECT_EQ(key.index(), 2u * 16 + 3 * 4 + 0);
  key.move(1);
  EXPECT_EQ(key.index(), 3u * 16 + 0 * 4 + 1);
}

TEST(MoshpitKey, stays_under_its_layout_and_begins_anew_under_another) {
  const auto layout = keyed_layout(37, 4), newer = keyed_layout(37, 4, 2);
  const auto& self = layout.peers[5];
  MoshpitKey key;
  key.enter(layout, self);
  key.move(2);
  key.enter(layout, self);
  EXPECT_EQ(key.index(), (5 * 4 + 2) % 16u);
  key.enter(newer, self);
  EXPECT_EQ(key.index(), newer.rank_of(self) % 16);
}

TEST(MoshpitKey, no_slot_leads_beyond_the_keys) {
  const auto layout = keyed_layout(37, 4);
  MoshpitKey key;
  for (const uint32_t slot : {4u, 7u, 0xffffffffu}) {
    key.enter(layout, layout.peers[5]);
    key.move(slot);
    EXPECT_LT(key.index(), 16u);
  }
}

TEST(MoshpitKey, does_not_exist_on_other_grids_or_with_a_single_group) {
  const auto one_group = keyed_layout(4, 4);
  const auto published =
      *make_layout({.run = "run", .version = 2, .grid = GridKind::published, .max_group = 4}, test::peer_ids(37));
  MoshpitKey key;
  for (const auto& layout : {test::layout_of(test::peer_ids(37)), one_group, published}) {
    EXPECT_EQ(key_count(layout), 0u);
    key.enter(keyed_layout(37, 4, 9), layout.peers[3]);
    key.enter(layout, layout.peers[3]);
    EXPECT_FALSE(key.held());
    key.move(3);
    EXPECT_EQ(key.index(), 0u);
  }
}

TEST(MoshpitKeySlots, are_all_different_and_the_same_for_all_members) {
  for (const uint32_t count : {0u, 1u, 2u, 4u, 128u}) {
    auto slots = draw_slots({3, count}, count);
    EXPECT_EQ(slots, draw_slots({3, count}, count));
    std::ranges::sort(slots);
    std::vector<uint32_t> all(count);
    std::iota(all.begin(), all.end(), 0u);
    EXPECT_EQ(slots, all);
  }
}

TEST(MoshpitKeySlots, each_slot_is_drawn_equally_often_by_each_rank) {
  std::vector<std::vector<int>> times(4, std::vector<int>(4));
  for (uint64_t group = 0; group < 8000; ++group) {
    const auto slots = draw_slots({group, group % 3}, 4);
    for (size_t rank = 0; rank < 4; ++rank) ++times[rank][slots[rank]];
  }
  for (const auto& of_rank : times) {
    for (const int count : of_rank) EXPECT_NEAR(count, 2000, 200);
  }
}

TEST(MoshpitKeyPosition, is_the_line_of_the_key_for_peers_of_the_layout_and_others) {
  const auto layout = keyed_layout(37, 4);
  EXPECT_EQ(position_in(layout, layout.peers[21], 1), (LinePosition{.cell = 5, .position = 0, .line = 5, .in_layout = true}));
  const auto unlisted = test::peer_ids(60).back();
  const auto line_position = position_in(layout, unlisted, 0);
  EXPECT_FALSE(line_position.in_layout);
  EXPECT_EQ(line_position.line, mix64(pid64(unlisted)) % 16);
  EXPECT_TRUE(line_of(layout, 0, 5).empty()) << "under keys no peer is expected by name";
}

TEST(MoshpitKeyPosition, may_be_any_of_the_keys_and_nothing_else) {
  const auto layout = keyed_layout(37, 4);
  const auto& peer = layout.peers[21];
  for (uint32_t key = 0; key < 16; ++key)
    EXPECT_TRUE(may_register(layout, peer, 0, {.cell = key, .position = 0, .line = key, .in_layout = true}));
  EXPECT_FALSE(may_register(layout, peer, 0, {.cell = 16, .position = 0, .line = 16, .in_layout = true}));
  EXPECT_FALSE(may_register(layout, peer, 0, {.cell = 5, .position = 0, .line = 6, .in_layout = true}));
  EXPECT_FALSE(may_register(layout, peer, 0, {.cell = 5, .position = 1, .line = 5, .in_layout = true}));
  EXPECT_FALSE(may_register(layout, peer, 0, {.cell = 5, .position = 0, .line = 5, .in_layout = false}));
  const auto fitted = test::layout_of(test::peer_ids(6), 1, {2, 3});
  EXPECT_TRUE(may_register(fitted, fitted.peers[4], 0, position_in(fitted, fitted.peers[4], 0)));
  EXPECT_FALSE(may_register(fitted, fitted.peers[4], 0, position_in(fitted, fitted.peers[5], 0)));
}

}  // namespace
}  // namespace unisono
