// RosterKeepers on a virtual network with delays, losses, cuts, deaths and stopped processes. In the end all keepers know which
// peers there are. Check A28 of docs/design/methods/moshpit.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/concat.h"
#include "elastic/roster/elastic_test_support.h"
#include "elastic/roster/roster_keeper_test_support.h"

namespace unisono {
namespace {

using test::address_of;
using test::KeeperNetwork;
using test::peer_entry;
using test::peer_id;
using test::times;

KeeperOptions joins() {
  KeeperOptions options;
  options.run_id = "demo";
  return options;
}
KeeperOptions founds() {
  auto options = joins();
  options.found = true;
  return options;
}

// Makes all joined processes alive, as if they had loaded the state.
void set_all_alive(KeeperNetwork& net) {
  for (auto& [number, node] : net.nodes) {
    if (node.up && !node.stopped) net.with(number, [](RosterKeeper& keeper, Nanos now) { keeper.set_alive(now); });
  }
}

bool agree(const KeeperNetwork& net, size_t present) {
  std::optional<uint64_t> sum;
  for (const auto& [number, node] : net.nodes) {
    if (!node.up) continue;
    if (node.keeper->join_state() != JoinState::joined || node.keeper->roster().present().size() != present) return false;
    if (sum && *sum != node.keeper->roster().sum()) return false;
    sum = node.keeper->roster().sum();
  }
  return true;
}

bool all_alive(const KeeperNetwork& net) {
  for (const auto& [number, node] : net.nodes) {
    if (!node.up) continue;
    for (const auto& id : node.keeper->roster().present()) {
      if (node.keeper->roster().find(id)->status != PeerStatus::alive) return false;
    }
  }
  return true;
}

// Starts founder 1 and `count - 1` joiners, and waits until every process is alive and known to all.
void form(KeeperNetwork& net, uint64_t count, Nanos limit = 20 * second, Nanos step = 10 * millisecond) {
  net.start(1, founds(), {});
  for (uint64_t number = 2; number <= count; ++number) net.start(number, joins(), {1});
  const auto formed = [&] {
    set_all_alive(net);
    return agree(net, count) && all_alive(net);
  };
  ASSERT_NE(net.run_until(net.now + limit, formed, step), never);
}

// True if all processes hold the same layout, and it lists exactly the processes that are up.
bool one_layout(const KeeperNetwork& net) {
  const Layout* first = nullptr;
  size_t up = 0;
  for (const auto& [number, node] : net.nodes) {
    if (!node.up) continue;
    ++up;
    const auto* layout = node.keeper->newest_layout();
    if (layout == nullptr || (first != nullptr && !(*first == *layout))) return false;
    first = layout;
  }
  return first != nullptr && first->peers.size() == up;
}

TEST(RosterSimulation, all_peers_soon_know_each_joiner) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    KeeperNetwork net(seed);
    net.loss = 0.05;
    form(net, 16);
    EXPECT_LT(net.now, 12 * second);
  }
}

// If many peers join at once, some miss gossip about others. A peer with a layout must soon know all members of the layout.
// Otherwise it chooses other coordinators than its peers.
TEST(RosterSimulation, many_simultaneous_joiners_know_all_members_of_the_first_layout) {
  constexpr uint64_t count = 250;
  KeeperNetwork net(1);
  auto first = founds(), other = joins();
  first.min_peers = other.min_peers = count;
  net.start(1, first, {});
  net.run_until(10 * millisecond);
  for (uint64_t number = 2; number <= count; ++number) net.start(number, other, {1});
  net.run_until(net.now + 1 * second);
  set_all_alive(net);
  ASSERT_NE(net.run_until(net.now + 20 * second, [&] { return one_layout(net); }), never);
  const auto knows_all = [&](const auto& node) {
    return node.second.keeper->settled() && node.second.keeper->roster().present().size() == count;
  };
  EXPECT_NE(net.run_until(net.now + 2 * times.gossip_period, [&] { return std::ranges::all_of(net.nodes, knows_all); }), never);
}

TEST(RosterSimulation, two_founders_with_one_common_seed_unite_within_three_heal_periods) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    KeeperNetwork net(seed);
    net.start(1, founds(), {1});
    net.start(2, founds(), {1});
    for (uint64_t number = 3; number <= 8; ++number) net.start(number, joins(), {1 + number % 2});
    net.run_until(100 * millisecond);
    set_all_alive(net);
    EXPECT_NE(net.run_until(3 * times.heal_period, [&] { return agree(net, 8); }), never);
    // Each founder may have made a first layout. In the end all peers must hold one layout.
    EXPECT_NE(net.run_until(net.now + 60 * second, [&] { return one_layout(net); }), never);
  }
}

TEST(RosterSimulation, a_network_that_was_cut_for_a_minute_unites_within_three_heal_periods) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    KeeperNetwork net(seed);
    form(net, 16);
    net.cut = [](uint64_t a, uint64_t b) { return (a <= 8) != (b <= 8); };
    net.run_until(net.now + 60 * second);
    EXPECT_TRUE(agree(net, 8) || net.keeper(1).roster().present().size() == 8);
    for (uint64_t number = 1; number <= 16; ++number) EXPECT_EQ(net.keeper(number).roster().present().size(), 8u);
    net.cut = nullptr;
    const Nanos healed = net.now;
    net.roster_events.clear();
    const Nanos united = net.run_until(healed + 3 * times.heal_period, [&] { return agree(net, 16) && all_alive(net); });
    EXPECT_NE(united, never);
    // After the cut, no process may report a process of its own side dead.
    for (const auto& [number, event] : net.roster_events) {
      const bool same_side = (number <= 8) == (net.hosts.at(event.peer) <= 8);
      EXPECT_FALSE(same_side && event.now == PeerStatus::dead)
          << number << " about " << net.hosts.at(event.peer) << ": " << event.why;
    }
    EXPECT_NE(net.run_until(net.now + 60 * second, [&] { return one_layout(net); }), never);
  }
}

TEST(RosterSimulation, all_peers_detect_a_death_after_a_few_probe_periods_and_suspect_time) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    KeeperNetwork net(seed);
    form(net, 16);
    const Nanos died = net.now;
    net.crash(7);
    const auto known = [&] {
      for (const auto& [number, node] : net.nodes) {
        if (node.up && !node.keeper->gone(peer_id(7))) return false;
      }
      return true;
    };
    // In one probe period, all 15 others miss the dead peer with probability (14/15)^15, about one third. So six probe periods
    // nearly always suffice.
    EXPECT_NE(net.run_until(died + 6 * times.probe_period + 2 * times.probe_timeout + times.suspect_time, known), never);
    EXPECT_TRUE(agree(net, 15));
  }
}

TEST(RosterSimulation, a_proven_death_reaches_all_peers_within_a_gossip_period) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    KeeperNetwork net(seed);
    form(net, 16);
    const Nanos died = net.now;
    net.crash(7);
    net.with(3, [](RosterKeeper& keeper, Nanos now) { keeper.known_dead(peer_id(7), "refused", now); });
    EXPECT_NE(net.run_until(died + 2 * times.gossip_period, [&] { return agree(net, 15); }), never);
  }
}

TEST(RosterSimulation, a_peer_that_cannot_send_for_a_while_refutes_the_suspicion_and_stays) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    KeeperNetwork net(seed);
    form(net, 16);
    net.cut = [](uint64_t a, uint64_t b) { return a == 5 || b == 5; };
    const auto suspected = [&] {
      return std::any_of(net.roster_events.begin(), net.roster_events.end(), [](const auto& each) {
        return each.second.peer == peer_id(5) && each.second.now == PeerStatus::suspect;
      });
    };
    ASSERT_NE(net.run_until(net.now + 20 * second, suspected), never);
    net.cut = nullptr;
    EXPECT_NE(net.run_until(net.now + times.suspect_time, [&] { return agree(net, 16) && all_alive(net); }), never);
    for (const auto& [number, event] : net.roster_events)
      EXPECT_FALSE(event.peer == peer_id(5) && event.now == PeerStatus::dead) << event.why;
    EXPECT_GT(net.keeper(5).self_entry().incarnation, 1u);
  }
}

TEST(RosterSimulation, message_loss_and_delays_cause_no_false_death) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    KeeperNetwork net(seed);
    form(net, 16);
    net.loss = 0.10;
    net.delay_max = 200 * millisecond;
    net.run_until(net.now + 300 * second);
    for (const auto& [number, event] : net.roster_events) EXPECT_NE(event.now, PeerStatus::dead) << event.why;
  }
}

TEST(RosterSimulation, a_resumed_process_suspects_no_peer_and_rejoins) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    KeeperNetwork net(seed);
    form(net, 16);
    // Process 4 is stopped while it waits for an answer. When it continues, the answer is long overdue, but the process must
    // not suspect the peer.
    ASSERT_NE(
        net.run_until(net.now + 10 * second, [&] { return net.keeper(4).next_deadline() < net.now + times.probe_timeout; }),
        never);
    net.stop(4);
    net.run_until(net.now + 60 * second);
    EXPECT_TRUE(net.keeper(1).gone(peer_id(4)));
    net.roster_events.clear();
    net.resume(4);
    EXPECT_NE(net.run_until(net.now + 3 * times.heal_period, [&] { return agree(net, 16) && all_alive(net); }), never);
    for (const auto& [number, event] : net.roster_events) {
      EXPECT_FALSE(number == 4 && event.now >= PeerStatus::suspect) << event.why;
    }
  }
}

TEST(RosterSimulation, a_restarted_process_is_a_new_one_and_the_old_one_is_forgotten_in_time) {
  KeeperNetwork net(3);
  form(net, 6);
  net.crash(2);
  net.run_until(net.now + 20 * second);
  auto entry = peer_entry(2);
  entry.id = peer_id(2, 2);
  net.start(2, joins(), {1, 3}, entry);
  net.run_until(net.now + 1 * second);
  set_all_alive(net);
  EXPECT_NE(net.run_until(net.now + 10 * second, [&] { return agree(net, 6); }), never);
  EXPECT_TRUE(net.keeper(2).gone(peer_id(2, 1)));
  net.run_until(net.now + times.forget_dead + 30 * second);
  for (const auto& [number, node] : net.nodes) EXPECT_EQ(node.keeper->roster().find(peer_id(2, 1)), nullptr) << number;
  EXPECT_TRUE(agree(net, 6));
}

TEST(RosterSimulation, after_all_peers_restarted_the_two_sides_still_find_each_other) {
  // Process 4 is cut off while all its seeds crash. Later a new process runs on host 3, at the address of the crashed process.
  KeeperNetwork net(5);
  form(net, 4);
  net.cut = [](uint64_t a, uint64_t b) { return (a == 4) != (b == 4); };
  net.run_until(net.now + 20 * second);
  for (const uint64_t number : {1, 2, 3}) net.crash(number);
  auto entry = peer_entry(3);
  entry.id = peer_id(3, 2);
  net.start(3, founds(), {}, entry);
  net.run_until(net.now + 5 * second);
  net.cut = nullptr;
  // In each heal_period, process 4 tries one of four addresses at random. A process listens at only one of them.
  EXPECT_NE(net.run_until(net.now + 20 * times.heal_period, [&] { return agree(net, 2); }), never);
}

std::string trace_of(uint64_t seed, const std::function<Nanos(uint64_t)>& offset_of) {
  KeeperNetwork net(seed);
  std::ostringstream text;
  net.offset_of = offset_of;
  net.loss = 0.05;
  net.trace = [&](Nanos now, uint64_t from, uint64_t to, const RosterMessage& message) {
    text << now << ' ' << from << ' ' << to << ' ' << message.body.index() << ' ' << message.claims.size() << '\n';
  };
  net.start(1, founds(), {});
  for (uint64_t number = 2; number <= 6; ++number) net.start(number, joins(), {1});
  net.run_until(2 * second);
  set_all_alive(net);
  net.run_until(10 * second);
  net.crash(3);
  net.run_until(60 * second);
  for (const auto& [number, event] : net.roster_events)
    text << number << ' ' << event.peer.low << ' ' << name(event.now) << ' ' << event.why << '\n';
  return text.str();
}

TEST(RosterSimulation, clocks_that_are_an_hour_apart_change_nothing) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const auto plain = trace_of(seed, nullptr);
    const auto apart = trace_of(seed, [](uint64_t number) { return (number % 2 == 0 ? 1 : -1) * 3600 * second; });
    EXPECT_GT(plain.size(), 10000u);
    EXPECT_TRUE(plain == apart) << "seed " << seed;
    EXPECT_FALSE(plain == trace_of(seed + 100, nullptr));
  }
}

TEST(RosterSimulation, the_cost_of_probing_per_peer_does_not_depend_on_the_number_of_peers) {
  double per_second[2] = {};
  const uint64_t counts[2] = {8, 64};
  for (int i = 0; i < 2; ++i) {
    KeeperNetwork net(1);
    form(net, counts[i]);
    net.run_until(net.now + 40 * second);  // long enough that all pending gossip is sent
    const auto before = net.messages;
    net.run_until(net.now + 100 * second);
    per_second[i] = static_cast<double>(net.messages - before) / 100 / static_cast<double>(counts[i]);
  }
  EXPECT_LT(per_second[0], 3.0);
  EXPECT_LT(per_second[1], 3.0);
}

// Returns a random message of a process of the run.
RosterMessage random_message(Random& random) {
  const auto id = [&] { return peer_id(1 + random.below(12)); };
  const auto sequence = static_cast<uint32_t>(random.below(20));
  const std::vector<PeerId> some{id(), {random.next(), 1}};
  const RosterBody bodies[] = {
      RosterHello{random.chance(0.9) ? "demo" : "other", random.below(2),
                  std::vector<uint64_t>(random.chance(0.5) ? size_t{1} << random.below(9) : 0)},
      RosterWelcome{random.below(2), random.chance(0.5), std::vector<uint64_t>(random.chance(0.5) ? 8 : 0)},
      RosterRefused{static_cast<RefusalReason>(1 + random.below(3)), "no"},
      RosterProbe{id(), sequence},
      RosterAck{id(), id(), sequence},
      RosterProbeRequest{id(), sequence},
      RosterGossip{random.chance(0.5)},
      LayoutPull{random.below(4)},
      LayoutPush{std::make_shared<const Layout>(
          *make_layout({.run = "demo", .version = 1 + random.below(9), .first_step = random.below(99)}, some))}};
  RosterMessage message{.run = fnv1a64(random.chance(0.95) ? "demo" : "other"),
                        .steps_opened = random.below(9),
                        .body = bodies[random.below(std::size(bodies))],
                        .claims = {}};
  if (random.chance(0.05)) message.layout_version = random.below(step_number_max + 1);
  for (auto i = random.below(5); i > 0; --i) {
    auto claim = test::peer_claim(1 + random.below(12), static_cast<PeerStatus>(random.below(5)),
                                  static_cast<uint32_t>(random.below(4)));
    if (random.chance(0.02)) claim.entry.incarnation = incarnation_max;
    claim.entry.facts.counter = random.chance(0.1) ? ~uint64_t{0} : random.below(4);
    claim.entry.facts.role = static_cast<ElasticRole>(random.below(3));
    claim.proven = claim.entry.status == PeerStatus::dead && random.chance(0.3);
    claim.brief = random.chance(0.3);
    if (is_gone(claim.entry.status)) claim.gone_ms = static_cast<uint32_t>(random.next() >> random.below(33));
    message.claims.push_back(claim);
  }
  return message;
}

TEST(RosterSimulation, no_message_makes_the_keeper_fail_send_without_end_or_grow_without_bound) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Random random(seed);
    auto options = random.chance(0.8) ? founds() : joins();
    options.seeds = {address_of(2)};
    options.max_peers = 8;
    RosterKeeper keeper(options, peer_entry(1));
    ASSERT_TRUE(keeper.start(0).ok());
    Nanos now = 0;
    for (int step = 0; step < 2000; ++step) {
      (void)keeper.take_sends();
      keeper.message(peer_id(1 + random.below(12)), random_message(random), now);
      EXPECT_LE(keeper.take_sends().size(), 12u) << "for one message";
      if (random.chance(0.05)) keeper.link_lost(peer_id(1 + random.below(12)), now);
      if (random.chance(0.05)) keeper.known_dead(peer_id(1 + random.below(12)), "refused", now);
      now += static_cast<Nanos>(random.below(static_cast<uint64_t>(random.chance(0.1) ? 2 * second : 20 * millisecond)));
      for (int wakes = 0; keeper.next_deadline() <= now; ++wakes) {
        ASSERT_LT(wakes, 100) << "never done";
        keeper.woke(now);
      }
      ASSERT_LE(keeper.roster().size(), 16u);
      ASSERT_LE(keeper.roster().present().size(), 8u);
    }
    EXPECT_LT(keeper.self_entry().status, PeerStatus::suspect);
  }
}

TEST(RosterSimulationLong, a_thousand_peers_join_lose_one_and_stay_affordable) {
  KeeperNetwork net(1);
  form(net, 1024, 60 * second, 500 * millisecond);
  ASSERT_NE(net.run_until(
                net.now + 60 * second, [&] { return one_layout(net); }, 500 * millisecond),
            never);
  const Nanos died = net.now;
  net.crash(500);
  EXPECT_NE(net.run_until(
                died + 8 * times.probe_period + 2 * times.probe_timeout + times.suspect_time, [&] { return agree(net, 1023); },
                500 * millisecond),
            never);
}

}  // namespace
}  // namespace unisono
