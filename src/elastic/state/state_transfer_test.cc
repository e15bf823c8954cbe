// Check A30 of docs/design/methods/moshpit.md: many joiners and few donors at once.

#include <gtest/gtest.h>

#include "base/concat.h"
#include "elastic/state/state_test_support.h"

namespace unisono {
namespace {

using test::StateWorld;

constexpr double link_bandwidth = 20e6;
// 100 chunks of 40 kB are 4 MB. One donor alone sends them to one joiner in 0.8 s.
const std::vector<size_t> hundred(100, 40'000);

void expect_loaded(StateWorld& world, const Bytes& values) {
  for (auto& [id, joiner] : world.joiners()) {
    ASSERT_TRUE(joiner->outcome.has_value()) << "joiner " << id.low << " has not ended";
    ASSERT_TRUE(joiner->outcome->ok()) << "joiner " << id.low << ": " << joiner->outcome->status().to_string();
    EXPECT_EQ(joiner->outcome->value().values, values);
    EXPECT_FALSE(joiner->outcome->value().mixed);
    EXPECT_FALSE(joiner->lost_parts);
  }
  for (auto& [id, donor] : world.donors()) EXPECT_LE(donor->serving_max, 2u) << "donor " << id.low;
}

TEST(StateTransfer, a30_thirty_joiners_at_once_and_no_donor_serves_more_than_two) {
  StateWorld world(hundred);
  for (uint64_t id = 1; id <= 10; ++id) world.add_donor(id, link_bandwidth);
  for (uint64_t id = 100; id < 130; ++id) world.add_joiner(id);
  world.run_all();
  expect_loaded(world, test::random_bytes(world.vector_bytes(), 1));
  // 30 joiners load 4 MB each. 120 MB from ten donors of 5 MB/s each take 2.4 s if no donor is ever idle.
  RecordProperty("all_loaded_ms", static_cast<int>(world.now() / millisecond));
  EXPECT_LT(world.now(), 6 * second);
  uint64_t sent = 0;
  for (const auto& [pair, bytes] : world.bytes_between()) sent += bytes;
  EXPECT_LT(sent, 30 * world.vector_bytes() * 11 / 10);
  for (auto& [id, donor] : world.donors()) {
    const auto& counters = donor->machine->counters();
    EXPECT_GT(counters.parts, 100u) << "donor " << id.low << " had little to do";
    EXPECT_LE(static_cast<double>(counters.part_bytes),
              0.25 * link_bandwidth * 1e-9 * static_cast<double>(world.now()) + 50'000);
  }
}

TEST(StateTransfer, a30_a_donor_that_is_killed_costs_no_joiner_a_finished_chunk) {
  for (const uint64_t killed : {1, 7}) {
    SCOPED_TRACE(concat("donor ", killed));
    StateWorld world(hundred);
    for (uint64_t id = 1; id <= 10; ++id) world.add_donor(id, link_bandwidth);
    for (uint64_t id = 100; id < 130; ++id) world.add_joiner(id);
    uint32_t interrupted = 0;
    world.at(700 * millisecond, [&] {
      interrupted = world.donors()[PeerId{killed, 1}]->machine->serving();
      world.kill(*world.donors()[PeerId{killed, 1}]);
    });
    world.run_all();
    EXPECT_EQ(interrupted, 2u);
    expect_loaded(world, test::random_bytes(world.vector_bytes(), 1));
    for (auto& [id, joiner] : world.joiners()) {
      // At most 16 parts come twice. They were in flight when the donor died, or were requested from two donors at the end.
      EXPECT_LE(joiner->outcome->value().bytes, world.vector_bytes() + 16 * 40'000) << id.low;
    }
  }
}

TEST(StateTransfer, goes_on_while_nine_of_ten_donors_die_one_after_the_other) {
  StateWorld world(hundred);
  for (uint64_t id = 1; id <= 10; ++id) world.add_donor(id, link_bandwidth);
  for (uint64_t id = 100; id < 110; ++id) world.add_joiner(id);
  for (uint64_t id = 1; id <= 9; ++id) {
    world.at(static_cast<Nanos>(id) * 200 * millisecond, [&world, id] { world.kill(*world.donors()[PeerId{id, 1}]); });
  }
  world.run_all();
  expect_loaded(world, test::random_bytes(world.vector_bytes(), 1));
}

TEST(StateTransfer, one_donor_serves_a_storm_of_joiners_two_at_a_time) {
  StateWorld world(std::vector<size_t>(20, 40'000));
  world.add_donor(1, link_bandwidth);
  for (uint64_t id = 100; id < 130; ++id) world.add_joiner(id);
  world.run_all();
  expect_loaded(world, test::random_bytes(world.vector_bytes(), 1));
  RecordProperty("all_loaded_ms", static_cast<int>(world.now() / millisecond));
  // 30 joiners load 0.8 MB each. 24 MB at 5 MB/s take 4.8 s. Joiners that get BUSY wait before they ask again, so more time is
  // allowed.
  EXPECT_LT(world.now(), 20 * second);
}

TEST(StateTransfer, joiners_get_one_whole_state_while_averaging_steps_continue) {
  StateWorld world(hundred);
  auto& donor = world.add_donor(1, link_bandwidth);
  bool over = false;
  std::function<void(int64_t)> step = [&](int64_t number) {
    if (over) return;
    world.step(donor, number, 1000 + static_cast<uint64_t>(number));
    world.at(world.now() + 10 * millisecond, [&, number] { step(number + 1); });
  };
  world.at(0, [&] { step(8); });
  world.at(505 * millisecond, [&] { world.add_joiner(100); });
  world.run(600 * millisecond);
  world.run_all();
  over = true;
  world.run(world.now() + 100 * millisecond);
  auto& joiner = *world.joiners().begin()->second;
  ASSERT_TRUE(joiner.outcome && joiner.outcome->ok());
  const auto& state = joiner.outcome->value();
  EXPECT_EQ(state.values, test::random_bytes(world.vector_bytes(), 1000 + static_cast<uint64_t>(state.step)));
  // Averaging step 8 ends at 0 ms, and another step every 10 ms. The joiner's request arrives at 510 ms.
  EXPECT_EQ(state.step, 8 + 51);
  EXPECT_LT(joiner.ended_at, 2 * second);
  EXPECT_FALSE(donor.copy->held());
}

// Checks that each chunk equals that chunk of one donor's state, and that the blob equals the blob of one donor. If the state
// is not mixed, all chunks must come from one state.
void expect_sound(const StateWorld& world, const LoadedState& state, const std::vector<Bytes>& values,
                  const std::vector<Bytes>& blobs) {
  size_t whole = 0;
  for (const auto& one : values) whole += state.values == one ? 1 : 0;
  EXPECT_TRUE(state.mixed || whole > 0);
  for (size_t at = 0; at < world.vector_bytes(); at += 40'000) {
    const auto equal = [&](const Bytes& one) {
      return std::equal(one.begin() + at, one.begin() + at + 40'000, state.values.begin() + at);
    };
    EXPECT_TRUE(std::any_of(values.begin(), values.end(), equal)) << at;
  }
  ASSERT_EQ(state.blobs.size(), 1u);
  EXPECT_TRUE(std::find(blobs.begin(), blobs.end(), state.blobs[0].bytes) != blobs.end());
}

TEST(StateTransfer, survives_random_loss_damage_deaths_and_steps) {
  uint64_t ended = 0, loaded = 0, mixed = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Random random(seed);
    StateWorld world(std::vector<size_t>(1 + random.below(30), 40'000));
    world.tamper = [&](const PeerId&, const PeerId&, Bytes& bytes) {
      if (random.chance(0.01) && !bytes.empty()) bytes[random.below(bytes.size())] ^= std::byte{4};
      return !random.chance(0.02);
    };
    std::vector<Bytes> values, blobs;
    for (uint64_t i = 1; i <= 4; ++i) values.push_back(test::random_bytes(world.vector_bytes(), i));
    for (uint64_t i = 0; i < 3; ++i) blobs.push_back(test::random_bytes(300'000 * (i / 2 + 1), i));
    const uint64_t donors = 1 + random.below(6);
    const auto soon = [&] { return static_cast<Nanos>(random.below(1'500'000'000)); };
    for (uint64_t id = 1; id <= donors; ++id) {
      auto& donor = world.add_donor(id, link_bandwidth * (0.1 + random.unit()), 1 + random.below(3),
                                    {test::blob("step", blobs[random.below(3)])});
      if (id > 1 && random.chance(0.4)) world.at(soon(), [&] { world.kill(donor); });
      if (random.chance(0.5)) {
        world.at(soon(), [&] {
          world.step(donor, 8, 4);
          world.roster_changed();
        });
      }
    }
    for (uint64_t id = 100; id < 101 + random.below(8); ++id) world.add_joiner(id);
    world.run_all();
    for (auto& [id, joiner] : world.joiners()) {
      ASSERT_TRUE(joiner->outcome.has_value()) << "joiner " << id.low << " waits for ever";
      ++ended;
      if (!joiner->outcome->ok()) continue;
      ++loaded;
      mixed += joiner->outcome->value().mixed ? 1 : 0;
      expect_sound(world, joiner->outcome->value(), values, blobs);
    }
    for (auto& [id, donor] : world.donors()) EXPECT_LE(donor->serving_max, 2u);
    if (::testing::Test::HasFailure()) FAIL() << "first failing seed: " << seed;
  }
  RecordProperty("ended", static_cast<int>(ended));
  RecordProperty("loaded", static_cast<int>(loaded));
  EXPECT_GT(loaded, ended * 9 / 10) << "of " << ended;
  EXPECT_GT(mixed, 5u);
  EXPECT_LT(mixed, loaded / 2);
}

}  // namespace
}  // namespace unisono
