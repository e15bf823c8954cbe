// Re-forming under random faults, in virtual time: members die at any message, links report it or do not, members are
// stopped and wake late, starts are apart, frames overtake each other. First safety, then liveness on a healed core.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <queue>
#include <set>

#include "base/random.h"
#include "group/lifecycle/reform.h"
#include "testing/peer_ids.h"

namespace unisono {
namespace {

using test::reform_timeout;

constexpr Nanos delay_max = 5 * millisecond;
constexpr uint64_t first_seed = 1;

uint64_t seed_count() {
  const char* text = std::getenv("UNISONO_TEST_SEEDS");  // for long runs by hand
  return text == nullptr ? 1500 : std::strtoull(text, nullptr, 10);
}

struct Faults {
  bool stops = false;         // members are stopped and continued
  bool silent_deaths = true;  // some deaths are not reported by the links
  uint32_t deaths_max = 3;
  Nanos patience = 2 * reform_timeout;  // from the last fault until all have finished, but for message delays
};

class Simulation {
 public:
  Simulation(uint64_t seed, const Faults& faults)
      : random_(seed),
        faults_(faults),
        world_(static_cast<uint32_t>(1 + random_.below(8))),
        roster_(test::make_roster(world_)) {
    for (const auto& each : roster_.members) nodes_.emplace_back(Runtime{Reform(roster_, each.id)});
    lost_.assign(world_, std::vector<bool>(world_, false));
    for (Rank rank = 0; rank < world_; ++rank) {
      if (world_ > 1 && random_.chance(0.15)) kill(rank);  // the reason why the group is re-formed
    }
    for (Rank rank = 0; rank < world_; ++rank) {
      at(static_cast<Nanos>(random_.below(static_cast<uint64_t>(reform_timeout - 8 * delay_max))),
         [this, rank] { start(rank); });
    }
    for (uint64_t i = random_.below(faults.deaths_max + 1); i > 0; --i) {
      dies_at_message_.emplace(random_.below(4 * world_ * world_ + 1), static_cast<Rank>(random_.below(world_)));
    }
    if (faults.stops) plan_stops();
  }

  void run() {
    while (!events_.empty() && now_ < 100 * second) {
      const auto event = events_.top();
      events_.pop();
      now_ = std::max(now_, event.at);
      event.act();
    }
    EXPECT_TRUE(events_.empty()) << "still busy after 100 s";
  }

  // All that are alive and not removed re-form once more, without faults.
  void heal() {
    dies_at_message_.clear();
    for (Rank rank = 0; rank < world_; ++rank) {
      if (nodes_[rank].alive)
        after(static_cast<Nanos>(random_.below(static_cast<uint64_t>(10 * millisecond))), [this, rank] { start(rank); });
    }
    run();
  }

  void expect_safe() const {
    std::map<std::pair<uint32_t, uint32_t>, Roster> by_epoch;
    for (const auto& runtime : nodes_) {
      for (const auto& roster : runtime.taken) {
        const auto [it, fresh] = by_epoch.emplace(std::pair(roster.epoch, wire_epoch(roster)), roster);
        EXPECT_TRUE(fresh || it->second == roster) << "two rosters under one epoch";
      }
    }
  }
  void expect_all_finished() const {
    for (Rank rank = 0; rank < world_; ++rank) {
      const auto& runtime = nodes_[rank];
      if (!runtime.alive) continue;
      EXPECT_FALSE(runtime.machine.running()) << "rank " << rank << " never finished";
      EXPECT_LE(runtime.finished, last_fault_ + faults_.patience + 20 * delay_max) << "rank " << rank << " took too long";
    }
  }
  void expect_one_group() const {
    std::optional<uint64_t> group;
    std::set<PeerId> members;
    for (const auto& runtime : nodes_) {
      if (!runtime.alive || runtime.ended) continue;
      if (!group) group = digest(runtime.machine.roster());
      EXPECT_EQ(digest(runtime.machine.roster()), *group) << "two groups are left";
      for (const auto& member : runtime.machine.roster().members) members.insert(member.id);
    }
    for (Rank rank = 0; rank < world_; ++rank) {
      const auto& runtime = nodes_[rank];
      if (!runtime.alive || !group) continue;
      EXPECT_EQ(members.contains(roster_.members[rank].id), !runtime.ended)
          << "rank " << rank << " is in the roster but was removed, or the other way round";
    }
    bool any_alive = false;
    for (const auto& runtime : nodes_) any_alive = any_alive || runtime.alive;
    // A member that removed the others may have died since. Without deaths some member must be left.
    EXPECT_TRUE(group || !any_alive || faults_.deaths_max > 0) << "everybody who lives was removed";
  }

 private:
  struct Runtime {
    Reform machine;
    bool alive = true;
    bool ended = false;
    bool started = false;
    Nanos stopped_until = 0;
    bool timers_first = false;  // after a stop: before the messages that came meanwhile
    Nanos finished = 0;
    std::vector<Roster> taken = {};
  };
  struct Event {
    Nanos at;
    uint64_t number;
    std::function<void()> act;
    bool operator<(const Event& other) const { return std::pair(at, number) > std::pair(other.at, other.number); }
  };

  void at(Nanos when, std::function<void()> act) { events_.push({when, event_number_++, std::move(act)}); }
  void after(Nanos time, std::function<void()> act) { at(now_ + time, std::move(act)); }
  Nanos delay() { return 50 * microsecond + static_cast<Nanos>(random_.below(random_.chance(0.1) ? delay_max : millisecond)); }

  void kill(Rank rank) {
    if (!nodes_[rank].alive) return;
    nodes_[rank].alive = false;
    last_fault_ = std::max(last_fault_, now_);
    const bool reported = !faults_.silent_deaths || random_.chance(0.6);
    for (Rank other = 0; reported && other < world_; ++other) {
      if (other != rank) after(delay(), [this, other, rank] { lose(other, rank); });
    }
  }
  void lose(Rank here, Rank peer) {
    if (!nodes_[here].alive) return;
    if (postpone(here, [this, here, peer] { lose(here, peer); })) return;
    lost_[here][peer] = true;  // nothing of that peer comes any more
    nodes_[here].machine.peer_lost(roster_.members[peer].id, now_);
    settle(here);
  }

  void plan_stops() {
    for (uint64_t i = 1 + random_.below(2); i > 0; --i) {
      const auto rank = static_cast<Rank>(random_.below(world_));
      const auto length = static_cast<Nanos>(random_.below(static_cast<uint64_t>(3 * reform_timeout)));
      at(static_cast<Nanos>(random_.below(static_cast<uint64_t>(2 * reform_timeout))), [this, rank, length] {
        nodes_[rank].stopped_until = std::max(nodes_[rank].stopped_until, now_ + length);
        nodes_[rank].timers_first = random_.chance(0.5);
        last_fault_ = std::max(last_fault_, now_ + length);
        at(nodes_[rank].stopped_until, [this, rank] { wake(rank); });
      });
    }
  }
  // Events for a stopped member happen when it continues.
  bool postpone(Rank rank, std::function<void()> act) {
    const auto& runtime = nodes_[rank];
    if (now_ >= runtime.stopped_until) return false;
    at(runtime.stopped_until + (runtime.timers_first ? microsecond : 0), std::move(act));
    return true;
  }

  void start(Rank rank) {
    auto& runtime = nodes_[rank];
    if (!runtime.alive || runtime.ended) return;
    if (postpone(rank, [this, rank] { start(rank); })) return;
    ReformRequest request;
    request.timeout = reform_timeout;
    if (!runtime.machine.start(request, now_).ok()) return;  // removed meanwhile
    last_fault_ = std::max(last_fault_, now_);
    settle(rank);
  }
  void wake(Rank rank) {
    auto& runtime = nodes_[rank];
    if (!runtime.alive || now_ < runtime.stopped_until || runtime.machine.next_deadline() > now_) return;
    // Messages are to be fed first; a machine notices a driver that does not only if it is late by this much.
    if (now_ == runtime.stopped_until && runtime.timers_first && now_ - runtime.machine.next_deadline() < 5 * millisecond) {
      return after(2 * microsecond, [this, rank] { wake(rank); });
    }
    runtime.machine.woke(now_);
    settle(rank);
  }
  void receive(Rank to, Rank from, const Bytes& bytes) {
    if (!nodes_[to].alive || lost_[to][from]) return;
    if (postpone(to, [this, to, from, bytes] { receive(to, from, bytes); })) return;
    EXPECT_TRUE(nodes_[to].machine.message(roster_.members[from].id, bytes, now_).ok());
    settle(to);
  }

  // Carries out what a machine asked for.
  void settle(Rank rank) {
    auto& runtime = nodes_[rank];
    for (auto& send : runtime.machine.take_sends()) {
      const auto [first, last] = dies_at_message_.equal_range(message_number_++);
      for (auto it = first; it != last; ++it) kill(it->second);
      if (!runtime.alive) return;
      const auto to = *roster_.rank_of(send.to);
      after(delay(), [this, to, rank, bytes = std::move(send.bytes)] { receive(to, rank, bytes); });
    }
    if (auto result = runtime.machine.take_result()) {
      runtime.finished = now_;
      runtime.ended = runtime.ended || !result->ok();
      if (result->ok()) {
        EXPECT_EQ(digest(result->value().roster), result->value().digest);
        EXPECT_EQ(result->value().roster.rank_of(roster_.members[rank].id), result->value().self);
        runtime.taken.push_back(result->value().roster);
      }
    }
    const Nanos deadline = runtime.machine.next_deadline();
    if (deadline != never) at(std::max(deadline, now_), [this, rank] { wake(rank); });
  }

  Random random_;
  const Faults faults_;
  const uint32_t world_;
  const Roster roster_;
  std::vector<Runtime> nodes_;
  std::vector<std::vector<bool>> lost_;
  std::priority_queue<Event> events_;
  uint64_t event_number_ = 0;
  uint64_t message_number_ = 0;
  std::multimap<uint64_t, Rank> dies_at_message_;
  Nanos now_ = 0;
  Nanos last_fault_ = 0;
};

void simulate(const Faults& faults) {
  for (uint64_t seed = first_seed; seed < first_seed + seed_count(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(seed, faults);
    simulation.run();
    simulation.expect_safe();
    simulation.expect_all_finished();
    simulation.heal();
    simulation.expect_safe();
    simulation.expect_all_finished();
    simulation.expect_one_group();
    if (::testing::Test::HasFailure()) FAIL() << "first failing seed: " << seed;
  }
}

TEST(ReformSimulation, reported_deaths_at_any_message) { simulate({.stops = false, .silent_deaths = false}); }
TEST(ReformSimulation, silent_deaths_at_any_message) { simulate({}); }
TEST(ReformSimulation, members_that_are_stopped_and_wake_late) {
  simulate({.stops = true, .silent_deaths = false, .deaths_max = 0});
}
TEST(ReformSimulation, deaths_and_stops_together) { simulate({.stops = true, .patience = 3 * reform_timeout}); }

}  // namespace
}  // namespace unisono
