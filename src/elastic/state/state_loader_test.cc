#include "elastic/state/state_loader.h"

#include <gtest/gtest.h>

#include "elastic/state/state_test_support.h"

namespace unisono {
namespace {

using test::StateWorld;

constexpr double bandwidth = 10e6;
constexpr size_t chunk = 50'000;

std::vector<size_t> chunks(size_t count) {
  std::vector<size_t> sizes(count, chunk);
  if (count > 1) sizes.back() = 4;
  return sizes;
}

// Adds a donor whose roster entry shows an old state, after averaging step `step`.
void add_stale_donor(StateWorld& world, uint64_t id, uint64_t values_seed, int64_t step) {
  auto& donor = world.add_donor(id, bandwidth, values_seed);
  donor.listed = 1000 + id;
  donor.listed_step = step;
}

const LoadedState& loaded(StateWorld::Joiner& joiner) {
  static const LoadedState none;
  EXPECT_TRUE(joiner.outcome.has_value()) << "it has not ended";
  if (!joiner.outcome) return none;
  EXPECT_TRUE(joiner.outcome->ok()) << joiner.outcome->status().to_string();
  EXPECT_FALSE(joiner.lost_parts);
  return joiner.outcome->ok() ? joiner.outcome->value() : none;
}

TEST(StateLoader, loads_from_four_donors_at_once) {
  StateWorld world(chunks(100));
  for (uint64_t id = 1; id <= 6; ++id) world.add_donor(id, bandwidth);
  auto& joiner = world.add_joiner(100);
  world.run_all();
  const auto& state = loaded(joiner);
  EXPECT_EQ(state.values, test::random_bytes(world.vector_bytes(), 1));
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.donors, 4u);
  EXPECT_FALSE(state.mixed);
  // 5 MB from four donors of 2.5 MB/s each take 500 ms.
  EXPECT_LT(joiner.ended_at, 700 * millisecond);
}

TEST(StateLoader, takes_donors_in_the_order_of_the_mixed_ids) {
  StateWorld world(chunks(100));
  std::vector<uint64_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const auto id : ids) world.add_donor(id, bandwidth);
  auto& joiner = world.add_joiner(100);
  world.run_all();
  (void)loaded(joiner);
  std::sort(ids.begin(), ids.end(), [](uint64_t a, uint64_t b) { return mix64(100 ^ a) < mix64(100 ^ b); });
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(world.bytes_between().contains({PeerId{ids[i], 1}, joiner.id}), i < 4) << ids[i];
  }
}

TEST(StateLoader, prefers_the_state_that_most_donors_have) {
  StateWorld world(chunks(20));
  for (uint64_t id = 1; id <= 8; ++id) world.add_donor(id, bandwidth, id % 3 == 0 ? 5 : id % 3 == 1 ? 6 : 50 + id);
  // Donors 1, 4 and 7 have the state of seed 6. Donors 3 and 6 have the state of seed 5. Donors 2, 5 and 8 have three other
  // states.
  for (uint64_t id = 100; id < 120; ++id) {
    auto& joiner = world.add_joiner(id);
    world.run_all();
    const auto& state = loaded(joiner);
    EXPECT_EQ(state.values, test::random_bytes(world.vector_bytes(), 6));
    EXPECT_FALSE(state.mixed);
    for (const uint64_t other : {2, 3, 5, 6, 8}) {
      EXPECT_FALSE(world.bytes_between().contains({joiner.id, PeerId{other, 1}})) << "it asked donor " << other;
    }
  }
}

TEST(StateLoader, takes_one_donor_if_no_two_have_the_same) {
  StateWorld world(chunks(20));
  for (uint64_t id = 1; id <= 5; ++id) world.add_donor(id, bandwidth, id);
  auto& joiner = world.add_joiner(100);
  world.run_all();
  const auto& state = loaded(joiner);
  EXPECT_EQ(state.donors, 1u);
  EXPECT_FALSE(state.mixed);
}

TEST(StateLoader, asks_donors_that_announced_their_state_after_another_step_too) {
  StateWorld world(chunks(100));
  for (uint64_t id = 1; id <= 5; ++id) add_stale_donor(world, id, 1, static_cast<int64_t>(id));
  auto& joiner = world.add_joiner(100);
  world.run_all();
  EXPECT_EQ(loaded(joiner).donors, 4u);
  EXPECT_FALSE(loaded(joiner).mixed);
}

TEST(StateLoader, takes_another_donor_for_one_that_turns_out_to_have_something_else) {
  StateWorld world(chunks(100));
  for (uint64_t id = 1; id <= 8; ++id) add_stale_donor(world, id, id % 2 == 0 ? 1 : 9, static_cast<int64_t>(id));
  auto& joiner = world.add_joiner(100);
  world.run_all();
  EXPECT_EQ(loaded(joiner).donors, 4u);
  EXPECT_FALSE(loaded(joiner).mixed);
}

TEST(StateLoader, limits_requests_if_no_two_donors_have_the_same_state) {
  StateWorld world(chunks(20));
  for (uint64_t id = 1; id <= 60; ++id) add_stale_donor(world, id, id, static_cast<int64_t>(id % 7));
  auto& joiner = world.add_joiner(100);
  world.run_all();
  EXPECT_EQ(loaded(joiner).donors, 1u);
  size_t asked = 0;
  for (const auto& [pair, bytes] : world.bytes_between()) asked += pair.first == joiner.id ? 1 : 0;
  EXPECT_LE(asked, 20u);
}

TEST(StateLoader, is_not_misled_by_a_roster_that_is_wrong) {
  StateWorld world(chunks(20));
  for (uint64_t id = 1; id <= 4; ++id) world.add_donor(id, bandwidth, id == 2 ? 9 : 1).listed = 1234;
  auto& joiner = world.add_joiner(100);
  world.run_all();
  const auto& state = loaded(joiner);
  EXPECT_EQ(state.values, test::random_bytes(world.vector_bytes(), 1));
  EXPECT_EQ(state.donors, 3u);
}

TEST(StateLoader, goes_on_with_others_when_its_only_donor_dies_and_says_that_the_state_is_mixed) {
  StateWorld world(chunks(100));
  for (uint64_t id = 1; id <= 3; ++id)
    world.add_donor(id, bandwidth, id, {test::blob("optimizer", test::random_bytes(900'000, id))});
  auto& joiner = world.add_joiner(100);
  uint32_t parts_before = 0;
  PeerId killed;
  world.at(second, [&] {
    parts_before = joiner.machine->progress().parts;
    for (auto& [id, donor] : world.donors()) {
      if (donor->machine->serving() == 0) continue;
      killed = id;
      world.kill(*donor);
    }
  });
  world.run_all();
  const auto& state = loaded(joiner);
  ASSERT_EQ(state.values.size(), world.vector_bytes());
  EXPECT_GT(parts_before, 20u);
  EXPECT_TRUE(state.mixed);
  EXPECT_EQ(state.donors, 2u);
  EXPECT_LE(state.bytes, world.vector_bytes() + 900'000u) << "something was loaded twice";
  // Each chunk must come from one of the three donors, and the whole blob from one donor.
  size_t of_killed = 0;
  std::vector<Bytes> values;
  for (uint64_t id = 1; id <= 3; ++id) values.push_back(test::random_bytes(world.vector_bytes(), id));
  for (size_t at = 0; at < world.vector_bytes(); at += chunk) {
    const size_t size = std::min(chunk, world.vector_bytes() - at);
    size_t matches = 0;
    for (uint64_t id = 1; id <= 3; ++id) {
      const auto& one = values[id - 1];
      const bool equal = std::equal(one.begin() + at, one.begin() + at + size, state.values.begin() + at);
      matches += equal ? 1 : 0;
      of_killed += equal && id == killed.low ? 1 : 0;
    }
    EXPECT_GE(matches, 1u) << at;
  }
  EXPECT_GE(of_killed, parts_before);
  ASSERT_EQ(state.blobs.size(), 1u);
  size_t blob_matches = 0;
  for (uint64_t id = 1; id <= 3; ++id) blob_matches += state.blobs[0].bytes == test::random_bytes(900'000, id) ? 1 : 0;
  EXPECT_EQ(blob_matches, 1u);
}

TEST(StateLoader, asks_faster_donors_for_more) {
  StateWorld world(chunks(400));
  for (uint64_t id = 1; id <= 4; ++id) world.add_donor(id, id == 1 ? 8 * bandwidth : bandwidth);
  auto& joiner = world.add_joiner(100);
  world.run_all();
  (void)loaded(joiner);
  const auto bytes = [&](uint64_t id) { return world.bytes_between().at({PeerId{id, 1}, joiner.id}); };
  EXPECT_GT(bytes(1), 5 * bytes(2));
  // All donors together send 27.5 MB/s, so 20 MB take 730 ms. At the end, the joiner must not wait for a slow donor.
  EXPECT_LT(joiner.ended_at, 1000 * millisecond);
}

TEST(StateLoader, requests_the_last_parts_of_a_slow_donor_from_others) {
  StateWorld world(chunks(20));
  world.add_donor(1, 8 * bandwidth);
  world.add_donor(2, bandwidth / 100);  // this donor needs 2 s per chunk
  auto& joiner = world.add_joiner(100);
  world.run_all();
  (void)loaded(joiner);
  EXPECT_LT(joiner.ended_at, second);
}

TEST(StateLoader, releases_a_donor_that_has_nothing_left_to_send) {
  StateWorld world(chunks(1));
  for (uint64_t id = 1; id <= 3; ++id) world.add_donor(id, bandwidth / 100);
  auto& joiner = world.add_joiner(100);
  world.run(100 * millisecond);
  uint32_t serving = 0;
  for (auto& [id, donor] : world.donors()) serving += donor->machine->serving();
  EXPECT_EQ(serving, 2u) << "one, and one in case that it does not";
  world.run_all();
  (void)loaded(joiner);
}

TEST(StateLoader, keeps_its_slot_however_slowly_parts_arrive) {
  StateWorld world(chunks(10));
  // A chunk takes 2.4 s. A silent donor is dropped earlier, after the stall_timeout of 2 s.
  auto& donor = world.add_donor(1, bandwidth / 120);
  auto& joiner = world.add_joiner(100);
  world.run_all();
  (void)loaded(joiner);
  EXPECT_EQ(joiner.machine->counters().stalled, 0u);
  EXPECT_EQ(donor.machine->counters().stalled, 0u);
  EXPECT_EQ(donor.machine->counters().granted, 1u);
}

TEST(StateLoader, discards_damaged_parts) {
  StateWorld world(chunks(60));
  for (uint64_t id = 1; id <= 3; ++id) world.add_donor(id, bandwidth);
  world.tamper = [](const PeerId& from, const PeerId&, Bytes& bytes) {
    if (from == PeerId{2, 1} && bytes.size() > 1000) bytes[500] ^= std::byte{1};
    return true;
  };
  auto& joiner = world.add_joiner(100);
  world.run_all();
  const auto& state = loaded(joiner);
  EXPECT_EQ(state.values, test::random_bytes(world.vector_bytes(), 1));
  EXPECT_EQ(joiner.machine->counters().damaged, 3u) << "after three it is asked no more";
  EXPECT_EQ(state.donors, 2u);
}

TEST(StateLoader, reports_no_state_if_all_parts_are_damaged) {
  StateWorld world(chunks(20));
  world.add_donor(1, bandwidth);
  world.tamper = [](const PeerId& from, const PeerId&, Bytes& bytes) {
    if (from.high == 1 && bytes.size() > 1000) bytes[500] ^= std::byte{1};
    return true;
  };
  auto& joiner = world.add_joiner(100);
  world.run_all();
  ASSERT_TRUE(joiner.outcome.has_value());
  EXPECT_EQ(joiner.outcome->status().code(), Code::unavailable);
  EXPECT_LT(joiner.ended_at, 10 * second);
}

TEST(StateLoader, a_load_of_an_empty_state_ends_with_the_manifest) {
  for (const bool empty_chunk : {false, true}) {
    StateWorld world(empty_chunk ? std::vector<size_t>{0} : std::vector<size_t>{});
    world.add_donor(1, bandwidth, 1, {test::blob("nothing", {})});
    auto& joiner = world.add_joiner(100);
    world.run_all();
    const auto& state = loaded(joiner);
    EXPECT_TRUE(state.values.empty());
    ASSERT_EQ(state.blobs.size(), 1u);
    EXPECT_EQ(state.blobs[0].name, "nothing");
    EXPECT_LT(joiner.ended_at, 100 * millisecond);
  }
}

TEST(StateLoader, loads_a_state_of_blobs_only) {
  StateWorld world({});
  const auto large = test::random_bytes(3 * state_piece_bytes + 17, 3), small = test::random_bytes(1, 4),
             exact = test::random_bytes(state_piece_bytes, 5);
  for (uint64_t id = 1; id <= 2; ++id) {
    world.add_donor(id, bandwidth, 1, {test::blob("small", small), test::blob("exact", exact), test::blob("large", large)});
  }
  auto& joiner = world.add_joiner(100);
  world.run_all();
  const auto& state = loaded(joiner);
  ASSERT_EQ(state.blobs.size(), 3u);
  EXPECT_EQ(state.blobs[0].bytes, exact);
  EXPECT_EQ(state.blobs[1].bytes, large);
  EXPECT_EQ(state.blobs[2].bytes, small);
}

TEST(StateLoader, gets_the_state_that_it_began_with_although_its_donor_goes_on) {
  StateWorld world(chunks(100));
  auto& donor = world.add_donor(1, bandwidth);
  auto& joiner = world.add_joiner(100);
  for (int64_t step = 8; step < 20; ++step) {
    world.at((step - 7) * 100 * millisecond, [&world, &donor, step] {
      world.step(donor, step, static_cast<uint64_t>(step));
      world.roster_changed();
    });
  }
  world.run_all();
  EXPECT_GT(joiner.ended_at, second);
  const auto& state = loaded(joiner);
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.values, test::random_bytes(world.vector_bytes(), 1));
  world.run(world.now() + second);
  EXPECT_FALSE(donor.copy->held());
  EXPECT_GT(donor.copy->step(), 7) << "a new joiner gets a newer state";
}

TEST(StateLoader, reports_why_if_there_is_no_donor) {
  StateWorld world(chunks(20));
  auto& joiner = world.add_joiner(100);
  world.run_all();
  ASSERT_TRUE(joiner.outcome.has_value());
  EXPECT_EQ(joiner.outcome->status().code(), Code::unavailable);
  EXPECT_EQ(joiner.outcome->status().message().rfind("STATE_UNAVAILABLE", 0), 0u) << joiner.outcome->status().message();
  EXPECT_EQ(joiner.ended_at, world.times.result_timeout);
}

TEST(StateLoader, times_out_on_silent_donors) {
  StateWorld world(chunks(20));
  for (uint64_t id = 1; id <= 4; ++id) world.add_donor(id, bandwidth);
  world.tamper = [](const PeerId& from, const PeerId&, Bytes&) { return from.high != 1; };
  auto& joiner = world.add_joiner(100);
  world.run_all();
  ASSERT_TRUE(joiner.outcome.has_value());
  EXPECT_EQ(joiner.outcome->status().code(), Code::unavailable);
  EXPECT_EQ(joiner.ended_at, 30 * second);
}

TEST(StateLoader, times_out_on_donors_that_are_always_busy_or_only_send_signs_of_life) {
  for (const bool busy : {false, true}) {
    StateWorld world(chunks(20));
    world.add_donor(1, bandwidth);
    world.tamper = [&](const PeerId& from, const PeerId&, Bytes& bytes) {
      if (from.high != 1 || (!busy && std::holds_alternative<StateOffer>(*decode_state(bytes)))) return true;
      const auto forged = busy ? encode(StateBusy{1}) : encode(StateAlive{});
      bytes.assign(forged.view().begin(), forged.view().end());
      return true;
    };
    auto& joiner = world.add_joiner(100);
    world.run_all(2 * 3600 * second);
    ASSERT_TRUE(joiner.outcome.has_value());
    EXPECT_EQ(joiner.outcome->status().code(), Code::unavailable);
    EXPECT_LE(joiner.ended_at, 3600 * second);
  }
}

TEST(StateLoader, ignores_impossible_messages) {
  const std::vector<size_t> sizes = chunks(3);
  StateLoaderOptions options;
  options.self = {100, 2};
  options.schema = test::state_schema;
  options.chunk_bytes = sizes;
  const PeerId donor{1, 1};
  StateCopy copy(test::state_schema, sizes);
  const auto values = test::random_bytes(2 * chunk + 4, 1);
  test::finish(copy, 1, values, sizes);
  copy.hold();
  StateLoader loader(options, {{donor, copy.state_digest()}}, 0);
  const auto state = copy.state_digest();
  EXPECT_EQ(loader.message(donor, StateAsk{}, 0).code(), Code::corrupt);
  EXPECT_TRUE(loader.message(donor, StatePart{state, 0, values}, 0).ok());   // a part that comes before the manifest
  EXPECT_TRUE(loader.message({5, 5}, StateOffer{copy.manifest()}, 0).ok());  // an offer from an unauthenticated peer
  EXPECT_EQ(loader.progress().parts_all, 0u);
  EXPECT_TRUE(loader.message(donor, StateOffer{copy.manifest()}, 0).ok());
  EXPECT_EQ(loader.progress().parts_all, 3u);
  EXPECT_EQ(loader.message(donor, StatePart{state, 3, values}, 0).code(), Code::corrupt);
  EXPECT_EQ(loader.message(donor, StatePart{state, 0, ByteView(values).first(chunk - 1)}, 0).code(), Code::corrupt);
  EXPECT_TRUE(loader.message(donor, StatePart{state + 1, 0, ByteView(values).first(chunk)}, 0).ok());
  EXPECT_EQ(loader.progress().parts, 0u);
  EXPECT_TRUE(loader.message(donor, StatePart{state, 0, ByteView(values).first(chunk)}, 0).ok());
  EXPECT_TRUE(loader.message(donor, StatePart{state, 0, ByteView(values).first(chunk)}, 0).ok());
  EXPECT_EQ(loader.progress().parts, 1u);
  EXPECT_EQ(loader.counters().repeated, 1u);
}

TEST(StateLoader, refuses_the_manifest_of_other_tensors) {
  const std::vector<size_t> sizes = chunks(3);
  StateManifest manifest{1, test::state_schema, 2 * chunk + 4, {1, 2, 3}, {}};
  for (int fault = 0; fault < 3; ++fault) {
    StateLoaderOptions options;
    options.schema = test::state_schema;
    options.chunk_bytes = sizes;
    StateLoader loader(options, {{{1, 1}, 5}}, 0);
    auto wrong = manifest;
    if (fault == 0) wrong.schema += 1;
    if (fault == 1) wrong.vector_bytes += 1;
    if (fault == 2) wrong.chunk_digests.push_back(4);
    EXPECT_EQ(loader.message({1, 1}, StateOffer{wrong}, 0).code(), Code::corrupt);
    EXPECT_EQ(loader.progress().parts_all, 0u);
  }
}

}  // namespace
}  // namespace unisono
