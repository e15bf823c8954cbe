// Re-forming under random faults, in virtual time. Members die at any message; links may or may not report the death. Members
// are stopped and wake late. They start at different times, and their frames overtake each other. Each run first checks safety.
// After the faults have ended, it checks liveness.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <queue>
#include <set>

#include "base/concat.h"
#include "base/random.h"
#include "group/lifecycle/reform.h"
#include "testing/peer_ids.h"

namespace unisono {
namespace {

using test::reform_timeout;

constexpr Nanos delay_max = 5 * millisecond;
constexpr Nanos link_timeout = 3 * reform_timeout;
constexpr uint64_t first_seed = 1;

uint64_t seed_count() {
  const char* text = std::getenv("UNISONO_TEST_SEEDS");  // set by hand for long runs
  return text == nullptr ? 1500 : std::strtoull(text, nullptr, 10);
}

struct Faults {
  bool stops = false;         // members are stopped and continued later
  bool silent_deaths = true;  // links do not report some of the deaths
  bool splits = false;        // the network is cut into two parts for good, and a majority is required
  uint32_t deaths_max = 3;
  Nanos finish_time_max =
      2 * reform_timeout;  // after the last fault, all members finish within this time, apart from message delays
};

class Simulation {
 public:
  Simulation(uint64_t seed, const Faults& faults)
      : random_(seed),
        faults_(faults),
        world_(static_cast<uint32_t>(1 + random_.below(8))),
        roster_(test::make_roster(world_)) {
    for (const auto& each : roster_.members) members_.emplace_back(SimulatedMember{Reform(roster_, each.id)});
    lost_.assign(world_, std::vector<bool>(world_, false));
    for (Rank rank = 0; rank < world_; ++rank) {
      if (world_ > 1 && (faults.deaths_max > 0 || !faults.splits) && random_.chance(0.15))
        kill(rank);  // a death may be the reason why the group re-forms
    }
    for (Rank rank = 0; rank < world_; ++rank) {
      at(static_cast<Nanos>(random_.below(static_cast<uint64_t>(reform_timeout - 8 * delay_max))),
         [this, rank] { start(rank); });
    }
    for (uint64_t i = random_.below(faults.deaths_max + 1); i > 0; --i) {
      dies_at_message_.emplace(random_.below(4 * world_ * world_ + 1), static_cast<Rank>(random_.below(world_)));
    }
    if (faults.stops) plan_stops();
    if (faults.splits) at(static_cast<Nanos>(random_.below(static_cast<uint64_t>(reform_timeout))), [this] { split(); });
  }

  void run() {
    while (!events_.empty() && now_ < 100 * second) {
      const auto event = events_.top();
      events_.pop();
      now_ = std::max(now_, event.at);
      event.action();
    }
    EXPECT_TRUE(events_.empty()) << "still busy after 100 s";
  }

  // All living members that were not removed re-form once more, without faults.
  void heal() {
    dies_at_message_.clear();
    for (Rank rank = 0; rank < world_; ++rank) {
      if (members_[rank].alive)
        after(static_cast<Nanos>(random_.below(static_cast<uint64_t>(10 * millisecond))), [this, rank] { start(rank); });
    }
    run();
  }

  void expect_safe() const {
    std::map<std::pair<uint32_t, uint32_t>, Roster> by_epoch;
    for (const auto& member : members_) {
      for (const auto& roster : member.taken) {
        const auto [it, fresh] = by_epoch.emplace(std::pair(roster.epoch, wire_epoch(roster)), roster);
        EXPECT_TRUE(fresh || it->second == roster) << "two rosters under one epoch";
      }
    }
  }
  void expect_all_finished() const {
    for (Rank rank = 0; rank < world_; ++rank) {
      const auto& member = members_[rank];
      if (!member.alive) continue;
      EXPECT_FALSE(member.state_machine.running()) << "rank " << rank << " never finished";
      EXPECT_LE(member.finished, last_fault_ + faults_.finish_time_max + 20 * delay_max) << "rank " << rank << " took too long";
    }
  }
  bool has_group() const { return groups_ > 0; }
  void expect_one_group() {
    std::optional<uint64_t> group;
    std::set<PeerId> members;
    for (const auto& member : members_) {
      if (!member.alive || member.ended) continue;
      if (!group) group = digest(member.state_machine.roster());
      EXPECT_EQ(digest(member.state_machine.roster()), *group) << "two groups are left";
      for (const auto& record : member.state_machine.roster().members) members.insert(record.id);
    }
    for (Rank rank = 0; rank < world_; ++rank) {
      const auto& member = members_[rank];
      if (!member.alive || !group) continue;
      EXPECT_EQ(members.contains(roster_.members[rank].id), !member.ended)
          << "rank " << rank << " is in the roster but was removed, or the other way round";
    }
    bool any_alive = false;
    for (const auto& member : members_) any_alive = any_alive || member.alive;
    // If no member dies, a group must remain. If members die, perhaps none remains: a member may remove the others and then
    // die.
    EXPECT_TRUE(group || !any_alive || faults_.deaths_max > 0) << "all living members were removed";
    groups_ += group.has_value();
  }

 private:
  struct SimulatedMember {
    Reform state_machine;
    bool alive = true;
    bool ended = false;
    bool started = false;
    Nanos stopped_until = 0;
    bool timers_first = false;  // after a stop, timers fire before the messages that came meanwhile
    Nanos finished = 0;
    std::vector<Roster> taken = {};
  };
  struct Event {
    Nanos at;
    uint64_t number;
    std::function<void()> action;
    bool operator<(const Event& other) const { return std::pair(at, number) > std::pair(other.at, other.number); }
  };

  void at(Nanos when, std::function<void()> action) { events_.push({when, event_number_++, std::move(action)}); }
  void after(Nanos time, std::function<void()> action) { at(now_ + time, std::move(action)); }
  Nanos delay() { return 50 * microsecond + static_cast<Nanos>(random_.below(random_.chance(0.1) ? delay_max : millisecond)); }

  void kill(Rank rank) {
    if (!members_[rank].alive) return;
    members_[rank].alive = false;
    last_fault_ = std::max(last_fault_, now_);
    const bool reported = !faults_.silent_deaths || random_.chance(0.6);
    for (Rank other = 0; reported && other < world_; ++other) {
      if (other != rank) after(delay(), [this, other, rank] { on_link_lost(other, rank); });
    }
  }
  void on_link_lost(Rank self, Rank peer) {
    if (!members_[self].alive) return;
    if (postpone(self, [this, self, peer] { on_link_lost(self, peer); })) return;
    lost_[self][peer] = true;  // drop all later messages from this peer
    auto& machine = members_[self].state_machine;
    // No proof of a death passes from one part to the other.
    if (members_[peer].alive || is_cut(self, peer)) machine.peer_lost(roster_.members[peer].id, now_);
    else machine.peer_dead(roster_.members[peer].id, now_);
    process_output(self);
  }

  // From now on, no message passes from one part to the other. Some links report that they are lost.
  void split() {
    for (Rank rank = 0; rank < world_; ++rank) sides_.push_back(random_.chance(0.5));
    last_fault_ = std::max(last_fault_, now_);
    for (Rank self = 0; self < world_; ++self) {
      for (Rank other = 0; other < world_; ++other) {
        if (is_cut(self, other) && random_.chance(0.5)) after(delay(), [this, self, other] { on_link_lost(self, other); });
      }
    }
  }
  bool is_cut(Rank a, Rank b) const { return !sides_.empty() && sides_[a] != sides_[b]; }

  void plan_stops() {
    for (uint64_t i = 1 + random_.below(2); i > 0; --i) {
      const auto rank = static_cast<Rank>(random_.below(world_));
      const auto length = static_cast<Nanos>(random_.below(static_cast<uint64_t>(3 * reform_timeout)));
      at(static_cast<Nanos>(random_.below(static_cast<uint64_t>(2 * reform_timeout))), [this, rank, length] {
        members_[rank].stopped_until = std::max(members_[rank].stopped_until, now_ + length);
        members_[rank].timers_first = random_.chance(0.5);
        last_fault_ = std::max(last_fault_, now_ + length);
        at(members_[rank].stopped_until, [this, rank] { wake(rank); });
      });
    }
  }
  // Delays an event of a stopped member until the member continues.
  bool postpone(Rank rank, std::function<void()> action) {
    const auto& member = members_[rank];
    if (now_ >= member.stopped_until) return false;
    at(member.stopped_until + (member.timers_first ? microsecond : 0), std::move(action));
    return true;
  }

  void start(Rank rank) {
    auto& member = members_[rank];
    if (!member.alive || member.ended) return;
    if (postpone(rank, [this, rank] { start(rank); })) return;
    ReformRequest request;
    request.timeout = reform_timeout;
    request.link_timeout = link_timeout;
    request.require_majority = faults_.splits;
    if (!member.state_machine.start(request, now_).ok()) return;  // the member has been removed meanwhile
    last_fault_ = std::max(last_fault_, now_);
    process_output(rank);
  }
  void wake(Rank rank) {
    auto& member = members_[rank];
    if (!member.alive || now_ < member.stopped_until || member.state_machine.next_deadline() > now_) return;
    // Drivers must feed messages before they call woke(). The state machine detects the wrong order only if it wakes at least 5
    // ms late. So for shorter delays, this test keeps the right order.
    if (now_ == member.stopped_until && member.timers_first && now_ - member.state_machine.next_deadline() < 5 * millisecond) {
      return after(2 * microsecond, [this, rank] { wake(rank); });
    }
    member.state_machine.woke(now_);
    process_output(rank);
  }
  void receive(Rank to, Rank from, const Bytes& bytes) {
    if (!members_[to].alive || lost_[to][from] || is_cut(to, from)) return;
    if (postpone(to, [this, to, from, bytes] { receive(to, from, bytes); })) return;
    EXPECT_TRUE(members_[to].state_machine.message(roster_.members[from].id, bytes, now_).ok());
    process_output(to);
  }

  // Sends the machine's messages, and takes its result if there is one.
  void process_output(Rank rank) {
    auto& member = members_[rank];
    for (auto& send : member.state_machine.take_sends()) {
      const auto [first, last] = dies_at_message_.equal_range(message_number_++);
      for (auto it = first; it != last; ++it) kill(it->second);
      if (!member.alive) return;
      const auto to = *roster_.rank_of(send.to);
      after(delay(), [this, to, rank, bytes = std::move(send.bytes)] { receive(to, rank, bytes); });
    }
    if (auto result = member.state_machine.take_result()) {
      member.finished = now_;
      member.ended = member.ended || !result->ok();
      if (result->ok()) {
        EXPECT_EQ(digest(result->value().roster), result->value().digest);
        EXPECT_EQ(result->value().roster.rank_of(roster_.members[rank].id), result->value().self);
        member.taken.push_back(result->value().roster);
      }
    }
    const Nanos deadline = member.state_machine.next_deadline();
    if (deadline != never) at(std::max(deadline, now_), [this, rank] { wake(rank); });
  }

  Random random_;
  const Faults faults_;
  const uint32_t world_;
  const Roster roster_;
  std::vector<SimulatedMember> members_;
  std::vector<std::vector<bool>> lost_;
  std::priority_queue<Event> events_;
  uint64_t event_number_ = 0;
  uint64_t message_number_ = 0;
  uint64_t groups_ = 0;
  std::multimap<uint64_t, Rank> dies_at_message_;
  std::vector<bool> sides_;  // empty: the network is whole
  Nanos now_ = 0;
  Nanos last_fault_ = 0;
};

// Returns how many runs have left a group.
uint64_t simulate(const Faults& faults) {
  uint64_t groups = 0;
  for (uint64_t seed = first_seed; seed < first_seed + seed_count(); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Simulation simulation(seed, faults);
    simulation.run();
    simulation.expect_safe();
    simulation.expect_all_finished();
    simulation.heal();
    simulation.expect_safe();
    simulation.expect_all_finished();
    simulation.expect_one_group();
    groups += simulation.has_group();
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "first failing seed: " << seed;
      return groups;
    }
  }
  return groups;
}

TEST(ReformSimulation, reported_deaths_at_any_message) { simulate({.stops = false, .silent_deaths = false}); }
TEST(ReformSimulation, silent_deaths_at_any_message) { simulate({}); }
TEST(ReformSimulation, stopped_members_that_wake_late) { simulate({.stops = true, .silent_deaths = false, .deaths_max = 0}); }
TEST(ReformSimulation, of_a_split_one_part_goes_on) {
  const auto groups = simulate({.splits = true, .deaths_max = 0, .finish_time_max = 2 * reform_timeout + link_timeout});
  EXPECT_EQ(groups, seed_count()) << "without deaths, one part always goes on";
}
TEST(ReformSimulation, of_a_split_with_deaths_at_most_one_part_goes_on) {
  EXPECT_GT(simulate({.splits = true, .finish_time_max = 2 * reform_timeout + link_timeout}), seed_count() / 2);
}
TEST(ReformSimulation, deaths_and_stops_together) { simulate({.stops = true, .finish_time_max = 3 * reform_timeout}); }

}  // namespace
}  // namespace unisono
