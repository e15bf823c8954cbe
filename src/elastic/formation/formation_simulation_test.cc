// Group formation in a virtual network. Without faults, formation ends at the predicted millisecond. With faults, formation
// still always ends. Checks A23, A31 and A34 of docs/design/methods/moshpit.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>
#include <string>

#include "base/concat.h"
#include "elastic/formation/formation_test_support.h"
#include "elastic/formation/line_slot.h"

namespace unisono {
namespace {

using test::FormationNet;
using test::NetOptions;

// Eight members of one line, and three peers outside the layout. The test chooses the run's name so that the first `keepers`
// holders of the slot are peers outside the layout.
struct Line {
  static constexpr uint32_t members = 8;
  static constexpr uint32_t others = 3;

  explicit Line(size_t keepers, Nanos delay = 40 * millisecond) {
    const auto ids = test::peer_ids(members + others);
    layout = test::layout_of({ids.begin(), ids.begin() + members}, 1, {members});
    for (int i = 0;; ++i) {
      options.run = concat("run", i);
      holders = record_holders(slot_key(options.run, slot_in(layout, ids[0], 0, 0)), ids);
      const auto is_other = [&](const PeerId& peer) { return layout.rank_of(peer) == layout.peers.size(); };
      if (std::all_of(holders.begin(), holders.begin() + static_cast<ptrdiff_t>(keepers), is_other)) break;
    }
    options.peers = members + others;
    options.delay = [delay](Random&) { return delay; };
    net = std::make_unique<FormationNet>(options, layout);
  }
  const GroupDescriptor* group(uint32_t i) {
    auto& outcome = net->node(i).outcome;
    return outcome ? std::get_if<GroupDescriptor>(&*outcome) : nullptr;
  }

  NetOptions options;
  Layout layout;
  std::vector<PeerId> holders;
  std::unique_ptr<FormationNet> net;
};

TEST(FormationA23, without_faults_formation_ends_one_round_trip_after_the_last_registration) {
  Line line(1);
  for (uint32_t i = 0; i < 8; ++i) line.net->seek(i, i * 5 * millisecond, 0, 0);
  line.net->run(60 * second);
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_NE(line.group(i), nullptr);
    EXPECT_EQ(line.net->node(i).ended, 115 * millisecond);
    EXPECT_EQ(*line.group(i), *line.group(0));
  }
  EXPECT_EQ(line.group(0)->members.size(), 8u);
  EXPECT_TRUE(line.group(0)->line_complete);
  EXPECT_TRUE(line.group(0)->missing.empty());
}

TEST(FormationA23, a_silent_member_costs_gather_timeout_once) {
  Line line(1);
  const auto silent = line.net->node(7u).id;
  for (uint32_t i = 0; i < 7; ++i) line.net->seek(i, i * 5 * millisecond, 0, 0);
  line.net->run(10 * second);
  for (uint32_t i = 0; i < 7; ++i) {
    ASSERT_NE(line.group(i), nullptr);
    EXPECT_EQ(line.net->node(i).ended, 2080 * millisecond);
  }
  EXPECT_EQ(line.group(0)->members.size(), 7u);
  EXPECT_EQ(line.group(0)->missing, std::vector{silent});
  EXPECT_FALSE(line.group(0)->line_complete);
  for (uint64_t step = 1; step < 4; ++step) {
    const auto start = line.net->now();
    for (uint32_t i = 0; i < 7; ++i) line.net->seek(i, start + i * 5 * millisecond, step, 0, line.group(0)->missing);
    line.net->run(start + 5 * second);
    for (uint32_t i = 0; i < 7; ++i) {
      ASSERT_NE(line.group(i), nullptr);
      EXPECT_LE(line.net->node(i).ended, start + 110 * millisecond)
          << "no peer waits for a lagging one; averaging step " << step;
    }
    EXPECT_EQ(line.group(0)->members.size(), 7u);
    EXPECT_EQ(line.group(0)->missing, std::vector{silent}) << "and the list is handed on";
  }
}

TEST(FormationA23, a_dead_first_holder_costs_coordinator_timeout) {
  Line line(2);
  line.net->kill(line.net->index(line.holders[0]));
  for (uint32_t i = 0; i < 8; ++i) line.net->seek(i, i * 5 * millisecond, 0, 0);
  line.net->run(60 * second);
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_NE(line.group(i), nullptr);
    EXPECT_EQ(line.net->node(i).ended, 1115 * millisecond);
  }
  EXPECT_EQ(line.group(0)->members.size(), 8u);
}

TEST(Formation, a_first_holder_that_is_known_to_be_gone_costs_no_time) {
  Line line(2);
  const auto dead = line.net->index(line.holders[0]);
  line.net->kill(dead);
  for (uint32_t i = 0; i < 8; ++i) line.net->seek(i, i * 5 * millisecond, 0, 0);
  line.net->announce_death(dead, 100 * millisecond);
  line.net->run(60 * second);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(line.net->node(i).ended, 180 * millisecond);
}

TEST(Formation, a_peer_that_comes_too_late_is_expected_again_in_the_next_step) {
  Line line(1);
  for (uint32_t i = 0; i < 7; ++i) line.net->seek(i, 0, 0, 0);
  line.net->seek(7, 3 * second, 0, 0);
  line.net->run(4 * second);
  ASSERT_NE(line.group(0), nullptr);
  const auto* closed = std::get_if<SeekClosed>(&*line.net->node(7u).outcome);
  ASSERT_NE(closed, nullptr);
  EXPECT_EQ(closed->since_ms, 1000u);
  EXPECT_EQ(closed->steps_opened, 1u);
  for (uint32_t i = 0; i < 7; ++i) line.net->seek(i, 5 * second, 1, 0, line.group(0)->missing);
  line.net->seek(7, 6 * second, 1, 0);
  line.net->run(20 * second);
  ASSERT_NE(line.group(7), nullptr);
  EXPECT_EQ(line.group(0)->members.size(), 8u);
}

TEST(Formation, a_member_without_the_descriptor_gets_it_from_other_members) {
  Line line(1);
  line.options.members_send_keep_alives = true;
  line.net = std::make_unique<FormationNet>(line.options, line.layout);
  const auto coordinator = line.net->index(line.holders[0]);
  for (uint32_t i = 0; i < 8; ++i) line.net->seek(i, 0, 0, 0);
  // The network first carries eight registrations and seven PENDING answers. Then the coordinator sends five of its eight
  // descriptors and dies.
  constexpr uint64_t dies_at = 8 + 7 + 5;
  line.net->before_send = [&](uint64_t number) {
    if (number == dies_at) line.net->kill(coordinator);
  };
  line.net->run(30 * second);
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_NE(line.group(i), nullptr) << i;
    EXPECT_EQ(*line.group(i), *line.group(0));
    EXPECT_LT(line.net->node(i).ended, second) << "before it gives the coordinator up";
  }
}

TEST(Formation, missing_lists_of_a_cut_off_minority_are_ignored) {
  Line line(1);
  std::vector<PeerId> most;
  for (uint32_t i = 3; i < 8; ++i) most.push_back(line.net->node(i).id);
  for (uint32_t i = 0; i < 3; ++i) line.net->seek(i, 0, 0, 0, most);
  for (uint32_t i = 3; i < 8; ++i) line.net->seek(i, 500 * millisecond, 0, 0);
  line.net->run(20 * second);
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_NE(line.group(i), nullptr);
    EXPECT_EQ(line.group(i)->members.size(), 8u);
  }
}

TEST(Formation, groups_of_two_lines_form_side_by_side_and_coordinators_may_be_members) {
  NetOptions options;
  options.peers = 12;
  const auto layout = test::layout_of(test::peer_ids(12), 1, {4, 3});
  FormationNet net(options, layout);
  for (uint32_t round = 0; round < 2; ++round) {
    const auto start = net.now();
    for (uint32_t i = 0; i < 12; ++i) net.seek(i, start, 0, round);
    net.run(start + 10 * second);
    for (uint32_t i = 0; i < 12; ++i) {
      const auto* group = std::get_if<GroupDescriptor>(&*net.node(i).outcome);
      ASSERT_NE(group, nullptr);
      EXPECT_EQ(group->members.size(), round == 0 ? 4u : 3u);
      EXPECT_LE(net.node(i).ended, start + 80 * millisecond);
    }
  }
}

TEST(FormationA34, a_client_is_never_a_coordinator_and_owns_no_chunks) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    const auto ids = test::peer_ids(5);
    NetOptions options;
    options.peers = 5;
    options.clients = {ids[1], ids[3]};
    options.run = concat("run", seed);
    FormationNet net(options, test::layout_of(ids));
    for (uint32_t i = 0; i < 5; ++i) {
      net.on(i, 0, [&](FormationNet::Node& node) {
        auto request = seek_request(*node.view.layout_for(0), node.id, 0, 0);
        if (node.id == ids[1] || node.id == ids[3]) request.role = ElasticRole::client;
        node.seeker->seek(request, net.now());
      });
    }
    net.run(10 * second);
    const auto* group = std::get_if<GroupDescriptor>(&*net.node(0u).outcome);
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->members.size(), 5u);
    for (const uint32_t client : {1u, 3u}) {
      EXPECT_EQ(group->chunk_counts[group->rank_of(ids[client])], 0u);
      EXPECT_EQ(net.node(client).coordinator->closed_slots(), 0u);
    }
  }
}

// A random scenario: two rounds of an averaging step, with deaths, lost messages, and layouts that only some peers know.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed), peers_(static_cast<uint32_t>(3 + random_.below(14))) {
    const auto ids = test::peer_ids(peers_);
    NetOptions options;
    options.peers = peers_;
    options.run = concat("run", seed);
    options.seed = seed;
    options.loss = random_.chance(0.8) ? 0.25 : 0;
    options.members_send_keep_alives = true;
    options.delay = [](Random& random) {
      return static_cast<Nanos>(1 + random.below(random.chance(0.1) ? 400 : 60)) * millisecond;
    };
    times_ = options.times;
    const auto in_layout = static_cast<uint32_t>(2 + random_.below(peers_ - 1));
    const bool two_axes = in_layout >= 6 && in_layout <= 8 && random_.chance(0.7);
    const auto dims = two_axes ? std::vector<uint32_t>{2, 3} : std::vector<uint32_t>{};
    const auto layout = test::layout_of({ids.begin(), ids.begin() + in_layout}, 1, dims);
    net_ = std::make_unique<FormationNet>(options, layout);
    if (random_.chance(0.3)) {
      const auto newer = test::layout_of(ids, 2);
      for (uint32_t i = 0; i < peers_; ++i) {
        if (random_.chance(0.5)) net_->node(i).view.hold(newer);
      }
    }
    started_.assign(peers_, 0);
    rounds_.assign(peers_, 0);
    const auto key = slot_key(options.run, slot_in(layout, ids[0], 0, 0));
    for (const auto& holder : record_holders(key, ids)) {
      if (random_.chance(0.5)) plan_death(net_->index(holder), random_.below(12 * peers_));
    }
    if (random_.chance(0.3)) plan_death(static_cast<uint32_t>(random_.below(peers_)), random_.below(40 * peers_));
    net_->before_send = [this](uint64_t number) {
      const auto [first, last] = deaths_.equal_range(number);
      for (auto it = first; it != last; ++it) die(it->second);
    };
    net_->on_outcome = [this](uint32_t i) { ended(i); };
    for (uint32_t i = 0; i < peers_; ++i) start(i, static_cast<Nanos>(random_.below(1500)) * millisecond, 0);
  }

  void run() {
    net_->run(400 * second);
    std::map<GroupId, GroupDescriptor> groups;
    for (uint32_t i = 0; i < peers_; ++i) {
      auto& node = net_->node(i);
      EXPECT_TRUE(!node.alive || !node.seeker->seeking()) << "peer " << i << " waits for ever";
      EXPECT_TRUE(!node.alive || rounds_[i] == 2) << "peer " << i << " took part in " << rounds_[i] << " rounds";
      std::set<std::pair<uint64_t, uint32_t>> rounds;
      for (const auto& [id, group] : node.groups) {
        EXPECT_LT(group.rank_of(node.id), group.members.size());
        EXPECT_EQ(groups.emplace(id, group).first->second, group) << "two descriptors under one id";
        EXPECT_TRUE(rounds.emplace(group.slot.step, group.slot.round).second) << "two groups in one round";
        const auto chunks = std::accumulate(group.chunk_counts.begin(), group.chunk_counts.end(), 0u);
        EXPECT_EQ(chunks, 64u);
        ++accepted;
      }
    }
    formed = groups.size();
    for (uint32_t i = 0; i < peers_; ++i) declined += net_->node(i).seeker->counters().declined;
  }

  uint64_t formed = 0;
  uint64_t accepted = 0;
  uint64_t declined = 0;
  std::map<size_t, uint64_t> outcomes;

 private:
  void plan_death(uint32_t i, uint64_t message) { deaths_.emplace(message, i); }
  void die(uint32_t i) {
    if (!net_->node(i).alive) return;
    net_->kill(i);
    if (random_.chance(0.7)) net_->announce_death(i, net_->now() + static_cast<Nanos>(random_.below(6000)) * millisecond);
  }
  void start(uint32_t i, Nanos when, uint32_t round) {
    started_[i] = when;
    rounds_[i] = round;
    net_->seek(i, when, 0, round);
  }
  void ended(uint32_t i) {
    auto& node = net_->node(i);
    const auto waited = net_->now() - started_[i];
    EXPECT_LE(waited, 3 * (times_.coordinator_timeout + times_.gather_timeout + times_.round_timeout)) << "peer " << i;
    const auto round = rounds_[i];
    ++outcomes[node.outcome->index()];
    if (const auto* stale = std::get_if<SeekStale>(&*node.outcome)) {
      node.view.hold(stale->newer);
      return start(i, net_->now(), round);
    }
    rounds_[i] = round + 1;
    if (round > 0) return;
    if (!std::holds_alternative<GroupDescriptor>(*node.outcome)) return start(i, net_->now(), 1);
    if (random_.chance(0.9)) {
      net_->on(i, net_->now(), [this](FormationNet::Node& one) {
        if (!one.seeker->seeking()) one.seeker->pre_register(seek_request(*one.view.layout_for(0), one.id, 0, 1), net_->now());
      });
    }
    start(i, net_->now() + static_cast<Nanos>(random_.below(random_.chance(0.1) ? 28000 : 3000)) * millisecond, 1);
  }

  Random random_;
  uint32_t peers_ = 0;
  ElasticTimes times_;
  std::unique_ptr<FormationNet> net_;
  std::vector<Nanos> started_;
  std::vector<uint32_t> rounds_;
  std::multimap<uint64_t, uint32_t> deaths_;
};

void form_often(uint64_t worlds) {
  uint64_t formed = 0;
  uint64_t accepted = 0;
  uint64_t declined = 0;
  std::map<size_t, uint64_t> outcomes;
  for (uint64_t seed = 1; seed <= worlds; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    World world(seed);
    world.run();
    formed += world.formed;
    accepted += world.accepted;
    declined += world.declined;
    for (const auto& [kind, count] : world.outcomes) outcomes[kind] += count;
    if (::testing::Test::HasFailure()) FAIL() << "first failing seed: " << seed;
  }
  EXPECT_GT(formed, worlds);
  EXPECT_GT(declined, 0u) << "no two descriptors overlapped: this tests nothing";
  for (const size_t kind : {0, 1, 2, 4, 5})
    EXPECT_GT(outcomes[kind], 0u) << "no seek() ended with this kind of outcome: " << kind;
  std::printf("%llu groups, %llu times accepted, %llu times declined; outcomes", static_cast<unsigned long long>(formed),
              static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(declined));
  for (const auto& [kind, count] : outcomes) std::printf(" %zu: %llu", kind, static_cast<unsigned long long>(count));
  std::printf("\n");
}

TEST(FormationA31, every_seek_ends_in_time_whichever_peers_die) { form_often(400); }
TEST(FormationLongA31, every_seek_ends_in_time_whichever_peers_die) { form_often(10000); }

}  // namespace
}  // namespace unisono
