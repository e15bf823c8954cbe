// For tests of links: a whole run of LinkProcesses.
//
// A run has three parts. First everything happens at random: sends, receives, cancels, faults, new links in place of lost ones.
// Then the faults end: within a time limit, both sides of each pair agree whether its link is lost, and what was sent on the
// others has arrived. In the end all links are closed, and nothing may be left.
#pragma once

#include <algorithm>
#include <string>

#include "sim/tcp/link_processes_test_support.h"

namespace unisono::sim {

class LinksRun {
 public:
  // After the last fault, a link that cannot go on is lost within this time: 30 s without an answer, which are looked for every
  // 7.5 s, and what it takes until a retransmission or a probe is due.
  static constexpr Nanos loss_told_within = 60 * second;
  static constexpr int turns_max = 200'000;

  explicit LinksRun(const LinksPlan& plan) : plan_(plan), all_(plan) {}
  void keep_trace() { all_.world().keep_trace(60); }

  // Returns what went wrong, or an empty text.
  std::string run() {
    all_.for_each_link([&](uint32_t i, uint32_t j) { all_.add_link(i, j); });
    for (int step = 0; step < plan_.steps && all_.ok(); ++step) {
      all_.act();
      if (dials_back() && step % 50 == 49) dial_back();
    }
    if (all_.ok()) calm_down();
    if (all_.ok()) renew_links();
    if (all_.ok()) close_all();
    if (all_.ok()) leave_nothing();
    return all_.ok() ? "" : concat(all_.problem(), "\n", all_.world().trace());
  }
  uint64_t received() const { return received_count_; }
  uint64_t losses() const { return all_.losses; }
  uint64_t cancels() const { return all_.cancels; }

 private:
  LinkPeer& peer(uint32_t i) { return all_.peer(i); }
  LinkState state(uint32_t i, uint32_t j) { return all_.state(i, j); }
  Nanos now() { return all_.world().now(); }

  void turn() {
    for (uint32_t i = 0; i < plan_.processes; ++i) {
      if (!all_.alive(i)) continue;
      peer(i).release_views();
      all_.poll(i);
    }
  }
  // Runs all processes until `done`. Returns false if that takes longer than `limit`.
  template <typename Done>
  bool until(Nanos limit, Done done) {
    int turns = 0;
    for (const auto end = now() + limit; all_.ok() && !done();) {
      if (now() > end) return false;
      if (++turns > turns_max) all_.fail("some process always has something to do, and does not do it");
      turn();
      auto next = all_.world().next_event();
      for (uint32_t i = 0; i < plan_.processes; ++i) {
        if (all_.alive(i)) next = std::min(next, peer(i).transport->next_deadline());
      }
      all_.wait(std::clamp<Nanos>(next - now(), microsecond, 1 * second));
    }
    return all_.ok();
  }
  // Returns what link i -> j still waits for; empty if nothing.
  std::string unfinished(uint32_t i, uint32_t j) {
    const auto mine = state(i, j);
    if (mine == LinkState::connecting) return concat("link ", i, " to ", j, " is neither up nor lost");
    if (!all_.alive(j)) return mine == LinkState::up ? concat("process ", i, " does not know that ", j, " is dead") : "";
    if (mine != state(j, i)) return concat("link ", i, " to ", j, " is up on one side only");
    if (mine != LinkState::up) return "";
    for (const auto& [name, frame] : peer(i).outgoing) {
      if (name.to != j || frame.link != peer(i).links[j].count) continue;
      const auto there = peer(j).incoming.find(name);
      const bool came = there != peer(j).incoming.end() && (there->second.received || there->second.cancelled);
      if (!came && !frame.cancelled) return name.text() + " does not arrive";
      if (frame.lent) return name.text() + ": no sent()";
    }
    return "";
  }
  std::string any_unfinished() {
    std::string text;
    all_.for_each_link([&](uint32_t i, uint32_t j) {
      if (text.empty()) text = unfinished(i, j);
    });
    return text;
  }
  bool dials_back() const { return plan_.seed % 2 == 1; }
  void dial_back() {
    all_.for_each_link([&](uint32_t i, uint32_t) { peer(i).transport->members_linked(); });
  }
  // Without faults, each connection is dialled once. The relay dials again. A peer on another host that has dialled is dialled
  // back at one address; behind the relay, it seems to be the relay at first. Processes 1 and 2 have the same host.
  bool dials_are_expected() {
    const uint64_t pairs = plan_.processes * (plan_.processes - 1) / 2, relays = plan_.relayed ? 1 : 0;
    const auto links = plan_.transport.streams * (pairs + relays), more = all_.world().dials() - links;
    const auto back = dials_back() ? plan_.processes - 1 : 0;
    return more >= back && more <= back + 2 * relays;
  }
  // A last frame on each link shows whether it works.
  void send_last_frames() {
    all_.for_each_link([&](uint32_t i, uint32_t j) {
      if (state(i, j) == LinkState::up) peer(i).send_frame(j, 0);
    });
  }
  void calm_down() {
    all_.world().note("the faults end");
    all_.end_faults();
    send_last_frames();
    // A broken connection that carries nothing is noticed late.
    const auto noticed = all_.may_lose ? now() + loss_told_within - 2 * second : 0;
    if (!until(loss_told_within, [&] { return now() >= noticed && any_unfinished().empty(); }) && all_.ok())
      all_.fail(concat("after ", loss_told_within / second, " s: ", any_unfinished()));
    if (plan_.faults.empty() && !dials_are_expected()) all_.fail(concat(all_.world().dials(), " connections were dialled"));
  }
  // After faults, new links work.
  void renew_links() {
    all_.world().note("lost links are made again");
    const auto all_up = [&] {
      bool all = true;
      all_.for_each_link([&](uint32_t i, uint32_t j) {
        if (!all_.alive(j)) return;
        if (state(i, j) != LinkState::up) all = false, all_.add_link(i, j);
      });
      return all;
    };
    all_.may_lose = true;  // a side that was asked later may miss the time limit of the other one
    if (!until(2 * loss_told_within, all_up) && all_.ok()) all_.fail("lost links cannot be made again");
    all_.may_lose = false;
    send_last_frames();
    if (!until(loss_told_within, [&] { return any_unfinished().empty(); }) && all_.ok())
      all_.fail("on a new link: " + any_unfinished());
  }
  void close(uint32_t i, uint32_t j) {
    if (state(i, j) == LinkState::up) {
      for (auto n = all_.random().below(6); n > 0; --n)
        peer(i).send_frame(j, peer(i).transport->credit(j) > 0 ? all_.random_size() : 0);
    }
    peer(i).transport->close(j);
    peer(i).links[j].lost_told = true;
    const auto newest = peer(i).links[j].next_number / LinkPeer::frames_per_operation;
    if (all_.random().chance(0.5)) peer(i).cancel(j, newest);
  }
  void close_all() {
    all_.world().note("all links are closed");
    all_.may_lose = true;
    all_.for_each_link([&](uint32_t i, uint32_t j) {
      if (all_.random().chance(0.7)) close(i, j);
    });
    all_.for_each_link([&](uint32_t i, uint32_t) { peer(i).transport->stop_listening(); });
    const auto over = [&] {
      bool all = true;
      all_.for_each_link([&](uint32_t i, uint32_t j) {
        all &= state(i, j) != LinkState::up && !peer(i).transport->draining() && all_.world().held_connections(i) == 0;
      });
      return all;
    };
    all_.for_each_link([&](uint32_t i, uint32_t j) {  // one side at least closes
      if (i < j && state(i, j) == LinkState::up && (!all_.alive(j) || state(j, i) == LinkState::up)) close(i, j);
    });
    if (!until(3 * loss_told_within, over) && all_.ok()) all_.fail("connections are left");
  }
  void leave_nothing() {
    for (uint32_t i = 0; i < plan_.processes && all_.ok(); ++i) {
      peer(i).check_given_back_buffers();
      if (!peer(i).problem().empty()) all_.fail(peer(i).problem());
      if (!all_.alive(i)) continue;
      turn();
      if (peer(i).has_lent_payload()) all_.fail(concat("process ", i, ": a payload was not given back"));
      if (peer(i).transport->blocks_out() != 0) all_.fail(concat("process ", i, ": memory of the pool is left"));
      received_count_ += peer(i).transport->counters().received_frames;
    }
    all_.end();
    all_.world().advance(now() + 2000 * second);  // until the kernels have given up all retransmissions
    const auto left = all_.world().connection_count();
    if (all_.ok() && left != 0) all_.fail(concat(left, " connections are left"));
  }

  LinksPlan plan_;
  LinkProcesses all_;
  uint64_t received_count_ = 0;
};

}  // namespace unisono::sim
