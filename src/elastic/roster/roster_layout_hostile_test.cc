// Layouts and claims about layouts that no correct keeper makes. They must not replace the run's layout or use memory without
// limit.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "elastic/roster/roster_keeper_test_support.h"
#include "elastic/roster/roster_messages.h"

namespace unisono {
namespace {

using test::address_of;
using test::founder;
using test::from_run;
using test::options;
using test::peer_claim;
using test::peer_entry;
using test::peer_id;
using test::run_answered;
using test::sends_of;
using test::times;

constexpr uint64_t impossible[] = {uint64_t{1} << 26, (uint64_t{1} << 53) - 1, uint64_t{1} << 53, (uint64_t{1} << 53) + 1,
                                   ~uint64_t{0} - 1};

Layout layout_of(const LayoutRequest& request, uint64_t first, uint64_t last) {
  std::vector<PeerId> ids;
  for (uint64_t number = first; number <= last; ++number) ids.push_back(peer_id(number));
  auto layout = make_layout(request, ids);
  EXPECT_TRUE(layout.ok()) << layout.status().to_string();
  return *layout;
}
std::shared_ptr<const Layout> shared(Layout layout) { return std::make_shared<const Layout>(std::move(layout)); }

// Returns the keeper of peer 1. It knows peers 2 and 3, and holds version 1 of the layout, which lists all three peers.
RosterKeeper settled_keeper() {
  auto all = options(true);
  all.min_peers = 3;
  auto keeper = founder(3, all);
  EXPECT_TRUE(keeper.adopt_layout(layout_of({.run = "demo", .version = 1}, 1, 3), 0));
  (void)keeper.take_sends();
  (void)keeper.take_layout_change();
  return keeper;
}

// Checks that a hostile message had no effect. The keeper neither requests nor sends a layout, and the next layout has version
// 2.
void expect_undisturbed(RosterKeeper& keeper) {
  EXPECT_FALSE(keeper.take_layout_change());
  ASSERT_NE(keeper.newest_layout(), nullptr);
  EXPECT_EQ(keeper.newest_layout()->version, 1u);
  for (const auto& one : keeper.take_sends()) {
    EXPECT_FALSE(std::holds_alternative<LayoutPull>(one.message.body) || std::holds_alternative<LayoutPush>(one.message.body));
    EXPECT_TRUE(decode_roster_message(encode(one.message)).ok()) << "otherwise its messages would be refused by all peers";
  }
  keeper.message(peer_id(4), from_run(RosterGossip{.answer = true}, {peer_claim(4)}), 2);
  const auto sends = run_answered(keeper, 2, 2 * times.relayout_period + 15 * second);
  EXPECT_EQ(keeper.newest_layout()->version, 2u);
  EXPECT_LE(keeper.newest_layout()->first_step, 2u);
  EXPECT_TRUE(
      std::ranges::all_of(sends, [](const RosterSend& one) { return decode_roster_message(encode(one.message)).ok(); }));
}

TEST(RosterLayoutHostile, an_impossible_version_is_neither_pulled_nor_counted_on_from) {
  for (const auto version : impossible) {
    auto keeper = settled_keeper();
    auto message = from_run(RosterGossip{.answer = true});
    message.layout_version = version;
    message.layout_digest = 1;
    keeper.message(peer_id(2), message, 1);
    expect_undisturbed(keeper);
  }
}

TEST(RosterLayoutHostile, a_push_with_an_impossible_version_is_ignored) {
  for (const auto version : impossible) {
    const auto pushed = layout_of({.run = "demo", .version = version}, 1, 3);
    auto keeper = settled_keeper();
    keeper.message(peer_id(2), from_run(LayoutPush{shared(pushed)}), 1);
    expect_undisturbed(keeper);
    auto other = settled_keeper();
    EXPECT_FALSE(other.adopt_layout(pushed, 1)) << "nor one that comes with a message of formation";
    expect_undisturbed(other);
  }
}

TEST(RosterLayoutHostile, a_layout_that_begins_too_many_steps_ahead_is_ignored) {
  for (const uint64_t step : {uint64_t{1} << 34, (uint64_t{1} << 53) - 1, uint64_t{1} << 53, ~uint64_t{0}}) {
    const auto pushed = layout_of({.run = "demo", .version = 2, .first_step = step}, 1, 3);
    auto keeper = settled_keeper();
    keeper.message(peer_id(2), from_run(LayoutPush{shared(pushed)}), 1);
    expect_undisturbed(keeper);
    auto other = settled_keeper();
    EXPECT_FALSE(other.adopt_layout(pushed, 1));
  }
}

TEST(RosterLayoutHostile, a_message_with_an_impossible_step_opens_no_step) {
  for (const uint64_t steps : {uint64_t{1} << 34, (uint64_t{1} << 53) - 1, uint64_t{1} << 53}) {
    auto keeper = settled_keeper();
    auto message = from_run(RosterGossip{.answer = true});
    message.steps_opened = steps;
    keeper.message(peer_id(2), message, 1);
    keeper.note_opened(steps, 1);
    EXPECT_EQ(keeper.steps_opened(), 0u);
    expect_undisturbed(keeper);
  }
}

TEST(RosterLayoutHostile, a_joiner_accepts_the_numbers_of_an_old_run_but_no_impossible_ones) {
  constexpr uint64_t old_version = uint64_t{1} << 39, old_step = uint64_t{1} << 47;
  const auto join = [](uint64_t version, uint64_t steps) {
    auto keeper = RosterKeeper(options(false, {address_of(2)}), peer_entry(1));
    EXPECT_TRUE(keeper.start(0).ok());
    auto welcome = from_run(RosterWelcome{.sum = 0, .last = true, .parts = {}}, {peer_claim(2)});
    welcome.layout_version = version;
    welcome.steps_opened = steps;
    keeper.message(peer_id(2), welcome, 0);
    return keeper;
  };
  auto keeper = join(old_version, old_step);
  EXPECT_EQ(keeper.steps_opened(), old_step);
  EXPECT_EQ(sends_of<LayoutPull>(keeper).size(), 1u);
  EXPECT_TRUE(keeper.adopt_layout(layout_of({.run = "demo", .version = old_version, .first_step = old_step + 1}, 1, 2), 1));
  auto misled = join(uint64_t{1} << 52, uint64_t{1} << 52);
  EXPECT_EQ(misled.steps_opened(), 0u);
  EXPECT_TRUE(sends_of<LayoutPull>(misled).empty());
  EXPECT_FALSE(misled.adopt_layout(layout_of({.run = "demo", .version = uint64_t{1} << 52}, 1, 2), 1));
}

TEST(RosterLayoutHostile, a_peer_that_was_cut_off_for_long_follows_the_others) {
  auto keeper = settled_keeper();
  auto message =
      from_run(LayoutPush{shared(layout_of({.run = "demo", .version = 1'000'000, .first_step = 900'000'000}, 1, 5))});
  message.steps_opened = 1'000'000'000;
  keeper.message(peer_id(2), message, 1);
  EXPECT_EQ(keeper.newest_layout()->version, 1'000'000u);
  EXPECT_EQ(keeper.steps_opened(), 1'000'000'000u);
}

TEST(RosterLayoutHostile, an_older_layout_is_ignored) {
  auto keeper = settled_keeper();
  ASSERT_TRUE(keeper.adopt_layout(layout_of({.run = "demo", .version = 10}, 1, 3), 1));
  (void)keeper.take_sends();
  (void)keeper.take_layout_change();
  for (const uint64_t version : {9, 5, 2, 1}) {
    auto message = from_run(LayoutPush{shared(layout_of({.run = "demo", .version = version, .first_step = 7}, 2, 9))});
    message.layout_version = version;
    keeper.message(peer_id(2), message, 2);
  }
  EXPECT_EQ(keeper.newest_layout()->version, 10u);
  EXPECT_EQ(keeper.layout_for(1000)->version, 10u);
  EXPECT_FALSE(keeper.take_layout_change());
  for (const auto& one : keeper.take_sends())
    EXPECT_FALSE(std::holds_alternative<LayoutPull>(one.message.body) || std::holds_alternative<LayoutPush>(one.message.body));
}

TEST(RosterLayoutHostile, a_layout_of_unknown_peers_is_replaced_at_once_and_requests_for_them_end) {
  auto keeper = settled_keeper();
  constexpr uint64_t pushes = 20;
  for (uint64_t version = 2; version < 2 + pushes; ++version) {
    keeper.message(peer_id(2),
                   from_run(LayoutPush{shared(
                       layout_of({.run = "demo", .version = version}, 1000 * version, 1000 * version + roster_peers_max - 1))}),
                   1);
  }
  EXPECT_EQ(keeper.roster().size(), 3u) << "a layout adds no peer to the roster";
  size_t held = 0;
  for (uint64_t version = 1; version < 2 + pushes; ++version) {
    const auto layout = layout_of({.run = "demo", .version = version}, version == 1 ? 1 : 1000 * version,
                                  version == 1 ? 3 : 1000 * version + roster_peers_max - 1);
    held += keeper.find_layout(version, layout.digest) != nullptr ? 1 : 0;
  }
  EXPECT_LE(held, layouts_held_max);
  for (const auto& one : keeper.take_sends()) EXPECT_LE(one.message.claims.size(), 3u);
  const auto sends = run_answered(keeper, 1, 30 * second);
  EXPECT_EQ(keeper.newest_layout()->version, 2 + pushes) << "one, however many there were";
  EXPECT_EQ(keeper.newest_layout()->peers.size(), 3u);
  EXPECT_TRUE(keeper.settled());
  EXPECT_LE(
      std::ranges::count_if(sends, [](const RosterSend& one) { return std::holds_alternative<RosterHello>(one.message.body); }),
      20);
}

// Decoding refuses a layout whose dimensions or digest do not match, so a keeper never gets such a layout.
TEST(RosterLayoutHostile, a_push_with_inconsistent_bytes_is_refused) {
  for (const bool dims : {true, false}) {
    auto bad = layout_of({.run = "demo", .version = 2, .dims = {2, 2}}, 1, 4);
    if (dims) bad.dims = {3, 3};
    else bad.digest ^= 1;
    const auto decoded = decode_roster_message(encode(from_run(LayoutPush{shared(bad)})));
    ASSERT_FALSE(decoded.ok());
    EXPECT_NE(decoded.status().message().find(dims ? "dims" : "digest"), std::string::npos) << decoded.status().to_string();
  }
}

}  // namespace
}  // namespace unisono
