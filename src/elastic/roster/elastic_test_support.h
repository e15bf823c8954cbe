// Roster entries for tests, and a virtual network of RosterKeepers with delays, losses, cuts, crashes, and stopped processes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "elastic/roster/roster_keeper.h"
#include "testing/peer_ids.h"

namespace unisono::test {

inline std::string address_of(uint64_t number) { return concat("tcp://h", number, ":1"); }

inline PeerEntry peer_entry(uint64_t number, PeerStatus status = PeerStatus::alive, uint32_t incarnation = 1) {
  PeerEntry entry{.id = peer_id(number), .incarnation = incarnation, .status = status, .facts = {}};
  entry.facts.name = concat("p", number);
  entry.facts.addresses = {address_of(number)};
  return entry;
}
inline PeerClaim peer_claim(uint64_t number, PeerStatus status = PeerStatus::alive, uint32_t incarnation = 1) {
  return {.entry = peer_entry(number, status, incarnation)};
}

// The process on host i listens at address_of(i). Another process may run on the host later. A message reaches the process that
// runs there when the message arrives.
class KeeperNetwork {
 public:
  struct Node {
    std::unique_ptr<RosterKeeper> keeper;
    PeerId id;
    Nanos offset = 0;  // difference between the process's clock and `now`
    bool up = false;
    bool stopped = false;
    std::vector<std::pair<PeerId, RosterMessage>> inbox;  // messages that arrive while the process is stopped
    uint64_t sent = 0;
    Nanos woken_at = never;  // time of the scheduled wake-up; `never`: none
  };

  explicit KeeperNetwork(uint64_t seed) : random(seed) {}

  // Starts a process on host `number`. The process founds the run, or joins through the hosts `seeds`.
  void start(uint64_t number, KeeperOptions options, std::vector<uint64_t> seeds, PeerEntry entry) {
    auto& node = nodes[number];
    options.seeds.clear();
    for (const auto seed : seeds) options.seeds.push_back(address_of(seed));
    options.seed = random.next();
    node = {};
    node.id = entry.id;
    node.up = true;
    node.offset = offset_of ? offset_of(number) : 0;
    node.keeper = std::make_unique<RosterKeeper>(options, std::move(entry));
    hosts[node.id] = number;
    start_status = node.keeper->start(now + node.offset);
    flush(number);
  }
  void start(uint64_t number, const KeeperOptions& options, std::vector<uint64_t> seeds) {
    start(number, options, std::move(seeds), peer_entry(number));
  }
  void crash(uint64_t number) { nodes.at(number).up = false; }
  void stop(uint64_t number) { nodes.at(number).stopped = true; }
  void resume(uint64_t number) {
    auto& node = nodes.at(number);
    node.stopped = false;
    for (auto& [from, message] : std::exchange(node.inbox, {})) node.keeper->message(from, message, now + node.offset);
    node.keeper->woke(now + node.offset);
    flush(number);
  }
  RosterKeeper& keeper(uint64_t number) { return *nodes.at(number).keeper; }
  // Calls `act` with the keeper, then sends the messages that the keeper has queued.
  void with(uint64_t number, const std::function<void(RosterKeeper&, Nanos)>& act) {
    act(keeper(number), now + nodes.at(number).offset);
    flush(number);
  }

  void run_until(Nanos end) {
    while (!events.empty() && events.begin()->first.first <= end) {
      auto event = std::move(events.begin()->second);
      now = std::max(now, events.begin()->first.first);
      events.erase(events.begin());
      event();
    }
    now = end;
  }
  // Checks the condition once per `step`, and returns the time at which it first holds. Returns `never` if it does not hold
  // until `end`.
  Nanos run_until(Nanos end, const std::function<bool()>& condition, Nanos step = 10 * millisecond) {
    while (!condition()) {
      if (now >= end) return never;
      run_until(std::min(end, now + step));
    }
    return now;
  }

  Random random;
  Nanos now = 0;
  double loss = 0;
  Nanos delay_min = 1 * millisecond;
  Nanos delay_max = 20 * millisecond;
  bool reports_refusals = true;                 // true: senders learn that no process runs at an address
  std::function<bool(uint64_t, uint64_t)> cut;  // true if no message passes between the two hosts
  std::function<Nanos(uint64_t)> offset_of;
  std::function<void(Nanos, uint64_t, uint64_t, const RosterMessage&)> trace;
  std::map<uint64_t, Node> nodes;
  std::map<PeerId, uint64_t> hosts;
  std::vector<std::pair<uint64_t, RosterEvent>> roster_events;
  Status start_status;
  uint64_t messages = 0;

 private:
  void at(Nanos when, std::function<void()> act) { events.emplace(std::pair(when, order++), std::move(act)); }

  void flush(uint64_t number) {
    auto& node = nodes.at(number);
    for (auto& one : node.keeper->take_sends()) {
      ++messages;
      ++node.sent;
      deliver(number, std::move(one));
    }
    for (auto& one : node.keeper->take_events()) roster_events.emplace_back(number, std::move(one));
    const Nanos next = node.keeper->next_deadline();
    if (next == never) return;
    const Nanos when = std::max(next - node.offset, now);
    if (when >= node.woken_at && node.woken_at > now) return;
    node.woken_at = when;
    at(when, [this, number, when, id = node.id] {
      auto& woken = nodes.at(number);
      if (!woken.up || woken.stopped || woken.id != id || woken.woken_at != when) return;
      woken.woken_at = never;
      woken.keeper->woke(now + woken.offset);
      flush(number);
    });
  }

  void deliver(uint64_t from, RosterSend one) {
    uint64_t to = 0;
    if (!one.address.empty()) {
      for (const auto& [number, node] : nodes) {
        if (address_of(number) == one.address) to = number;
      }
    } else {
      const auto host = hosts.find(one.to);
      if (host != hosts.end() && nodes.at(host->second).id == one.to) to = host->second;
    }
    // Arrival time of the last message from `from` to `to`. Later messages must not overtake it.
    auto& last = arrivals[{from, to}];
    const Nanos when = last =
        std::max(last, now + delay_min + static_cast<Nanos>(random.below(static_cast<uint64_t>(delay_max - delay_min + 1))));
    const bool lost = random.chance(loss);
    if (trace) trace(now, from, to, one.message);
    if (to == 0 || !nodes.at(to).up) {
      if (one.address.empty() || !reports_refusals) return;
      at(when, [this, from, id = nodes.at(from).id, address = one.address] {
        auto& node = nodes.at(from);
        if (!node.up || node.id != id) return;
        node.keeper->address_unreachable(address, "refused", false, now + node.offset);
        flush(from);
      });
      return;
    }
    if (lost || (cut && cut(from, to))) return;
    at(when, [this, from = nodes.at(from).id, to, id = nodes.at(to).id, message = std::move(one.message)] {
      auto& node = nodes.at(to);
      if (!node.up || node.id != id) return;
      if (node.stopped) {
        node.inbox.emplace_back(from, message);
        return;
      }
      node.keeper->message(from, message, now + node.offset);
      flush(to);
    });
  }

  std::map<std::pair<Nanos, uint64_t>, std::function<void()>> events;
  std::map<std::pair<uint64_t, uint64_t>, Nanos> arrivals;
  uint64_t order = 0;
};

}  // namespace unisono::test
