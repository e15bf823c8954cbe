// Processes that leave while their connections are reset, on random schedules. Each side sends its last frames, and closes the
// link as soon as it has everything of the other one. UNISONO_TEST_SEEDS raises the number of seeds, and UNISONO_TEST_SEED runs
// one.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "sim/tcp/link_processes_test_support.h"
#include "sim/tcp/links_plan_test_support.h"

namespace unisono::sim {
namespace {

class LeavingRun {
 public:
  // After the last fault, both sides have finished within this time.
  static constexpr Nanos finished_within = 15 * second;
  static constexpr int turns_max = 100'000;

  explicit LeavingRun(const LinksPlan& plan) : all_(plan), random_(mix64(plan.seed) ^ 0x1EA) {
    ends_at_once_ = random_.chance(0.5);
    all_.world().keep_trace(0);
  }
  void keep_trace() { all_.world().keep_trace(200); }

  // Returns what went wrong, or an empty text.
  std::string run() {
    for (const uint32_t i : {0, 1}) {
      all_.add_link(i, 1 - i);
      all_.peer(i).on_lost = [this, i](PeerIndex, const Status& why) { lost(i, why); };
    }
    if (!until(20 * second, [&] { return is_up(0) && is_up(1); })) all_.fail("the link is not made");
    for (int step = 0; step < 60 && all_.ok(); ++step) all_.act();
    all_.end_faults();
    for (const uint32_t i : {0, 1}) all_.poll(i), send_last_frames(i);
    auto calm_at = all_.world().now() + static_cast<Nanos>(random_.below(100 * millisecond));
    const auto finished = [&] {
      if (all_.world().now() < calm_at && random_.chance(0.1)) reset_one();
      return has_finished(0) && has_finished(1);
    };
    if (all_.ok() && !until(finished_within, finished) && all_.ok()) all_.fail("a side does not finish: " + state_text());
    for (const uint32_t i : {0, 1}) {
      if (all_.ok() && !has_all(1 - i)) all_.fail(concat("process ", 1 - i, " did not get all last frames"));
      if (auto& transport = all_.peer(i).transport; all_.ok() && transport && transport->blocks_out() != 0 && !has_views(i))
        all_.fail(concat("process ", i, ": memory of the pool is left"));
    }
    return all_.ok() ? "" : concat(all_.problem(), "\n", all_.world().trace());
  }
  bool left_early() const { return ended_[0] || ended_[1]; }
  uint64_t resets() const { return resets_; }

 private:
  LinkPeer& peer(uint32_t i) { return all_.peer(i); }
  bool is_up(uint32_t i) { return peer(i).transport && all_.state(i, 1 - i) == LinkState::up; }
  bool has_views(uint32_t i) { return peer(i).held_views() > 0; }

  void send_last_frames(uint32_t i) {
    if (!is_up(i)) return;
    for (auto n = 1 + random_.below(10); n > 0; --n)
      peer(i).send_frame(1 - i, peer(i).transport->credit(1 - i) > 0 ? random_.below(4000) : 0);
  }
  // All frames of the other side that were not cancelled have arrived.
  bool has_all(uint32_t i) {
    return std::ranges::all_of(peer(1 - i).outgoing, [&](const auto& entry) {
      const auto there = peer(i).incoming.find(entry.first);
      return entry.second.cancelled || dropped_.contains(entry.first) ||
             (there != peer(i).incoming.end() && (there->second.received || there->second.cancelled));
    });
  }
  void lost(uint32_t i, const Status& why) {
    if (!has_all(i)) all_.fail(concat("process ", i, " loses the link before it has all frames: ", why.message()));
  }
  void close(uint32_t i) {
    all_.world().note(concat("process ", i, " closes the link"));
    peer(i).transport->close(1 - i);
    peer(i).links[1 - i].lost_told = true;
    // The transport does not use these payloads any more. Those that were not begun do not arrive.
    for (auto& [name, frame] : peer(i).outgoing) {
      if (frame.lent) std::fill(frame.payload.begin(), frame.payload.end(), LinkPeer::poison), dropped_.insert(name);
    }
    closed_[i] = true;
  }
  // One connection is reset. Sometimes a side is not told.
  void reset_one() {
    const auto ids = all_.world().open_connections();
    if (ids.empty()) return;
    ++resets_;
    all_.world().reset(ids[random_.below(ids.size())], random_.chance(0.7), random_.chance(0.7));
  }
  void turn(uint32_t i) {
    if (!peer(i).transport) return;
    all_.poll(i);
    peer(i).release_views();
    if (!closing_) return;
    if (!closed_[i] && has_all(i)) close(i);
    else if (closed_[i] && ends_at_once_ && !peer(i).transport->has_pending()) peer(i).transport.reset(), ended_[i] = true;
  }
  bool has_finished(uint32_t i) {
    closing_ = true;
    return ended_[i] || (closed_[i] && !peer(i).transport->draining() && all_.world().held_connections(i) == 0);
  }
  std::string state_text() {
    std::string text;
    for (const uint32_t i : {0, 1})
      text += concat(i, closed_[i] ? " has closed" : " has not closed", has_all(i) ? ". " : " and lacks frames. ");
    return text;
  }
  template <typename Done>
  bool until(Nanos limit, Done done) {
    int turns = 0;
    for (const auto end = all_.world().now() + limit; all_.ok() && !done();) {
      if (all_.world().now() > end) return false;
      if (++turns > turns_max) all_.fail("some process always has something to do, and does not do it");
      for (const uint32_t i : {0, 1}) turn(i);
      auto next = all_.world().next_event();
      for (const uint32_t i : {0, 1}) {
        if (peer(i).transport) next = std::min(next, peer(i).transport->next_deadline());
      }
      all_.wait(std::clamp<Nanos>(next - all_.world().now(), microsecond, 500 * millisecond));
    }
    return all_.ok();
  }

  LinkProcesses all_;
  Random random_;
  bool ends_at_once_ = false;  // a process ends as soon as nothing is pending
  bool closing_ = false;
  std::set<FrameName> dropped_;
  std::array<bool, 2> closed_{}, ended_{};
  uint64_t resets_ = 0;
};

LinksPlan leaving_plan(uint64_t seed) {
  auto plan = plan_of(seed);
  plan.processes = 2;
  plan.fault_chance = 0.02;
  plan.faults = {LinkFault::reset, LinkFault::slow};
  if (plan.relayed) plan.faults.push_back(LinkFault::relay_drop);
  return plan;
}

TEST(TcpLeaving, last_frames_survive_resets_and_both_sides_finish) {
  uint64_t resets = 0;
  int failures = 0;
  const auto range = seeds(200);
  for (auto seed = range.first; seed < range.end && failures < 3; ++seed) {
    LeavingRun run(leaving_plan(seed));
    if (!run.run().empty()) {
      LeavingRun again(leaving_plan(seed));
      again.keep_trace();
      ADD_FAILURE() << "UNISONO_TEST_SEED=" << seed << ": " << again.run();
      ++failures;
    }
    resets += run.resets();
  }
  if (range.end - range.first > 1) {
    EXPECT_GT(resets, range.end / 4);
  }
}

}  // namespace
}  // namespace unisono::sim
