#include "elastic/roster/peer_slots.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "elastic/roster/elastic_test_support.h"

namespace unisono {
namespace {

using test::peer_id;

TEST(PeerSlots, an_empty_table_has_no_peer) {
  PeerSlots slots;
  slots.erase(peer_id(1));
  EXPECT_EQ(slots.find(peer_id(1)), PeerSlots::none);
  EXPECT_EQ(slots.size(), 0u);
}

// The ids hash to few positions. So runs of entries join, wrap around the end of the table, and are split again.
TEST(PeerSlots, behaves_like_a_map_for_any_ids) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const uint64_t spread = 1 + random.below(3);
    std::map<PeerId, uint32_t> expected;
    PeerSlots slots;
    for (uint32_t step = 0; step < 3000; ++step) {
      const PeerId id{random.below(8) * spread + 12, random.below(2) == 0 ? 0 : random.below(64) << 58};
      const auto known = expected.find(id);
      if (known == expected.end()) {
        slots.insert(id, step);
        expected[id] = step;
      } else if (random.below(3) != 0) {
        slots.erase(id);
        expected.erase(known);
      }
      ASSERT_EQ(slots.size(), expected.size());
      ASSERT_EQ(slots.find(id), expected.contains(id) ? expected.at(id) : PeerSlots::none);
      if (step % 20 != 0) continue;
      for (const auto& [one, number] : expected) ASSERT_EQ(slots.find(one), number) << "seed " << seed << ", step " << step;
    }
    std::map<PeerId, uint32_t> visited;
    slots.for_each([&](const PeerId& id, uint32_t number) { EXPECT_TRUE(visited.emplace(id, number).second); });
    EXPECT_EQ(visited, expected);
    for (const auto& [one, number] : visited) slots.erase(one);
    EXPECT_EQ(slots.size(), 0u);
  }
}

}  // namespace
}  // namespace unisono
