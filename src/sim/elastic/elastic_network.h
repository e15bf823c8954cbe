// Virtual links between the peers of an elastic run. A link delivers messages in order. A message needs its transfer time on
// the line of the sender (the connection of a process to the network), and then the delay. Equal seeds give equal runs.
//
// Processes can be killed, stopped and resumed, and a set of processes can be cut off:
// - A killed process refuses connections. Peers with a link to it notice this one delay later.
// - A stopped process sends nothing. It gets all its messages when it resumes.
// - Messages across a cut wait, as in TCP. After `silence`, the messages and their link are lost.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/shared_buffer.h"

namespace unisono::sim {

// The interface of a process on the network.
class ElasticActor {
 public:
  virtual ~ElasticActor() = default;
  virtual void started(Nanos now) = 0;
  virtual void received(uint32_t from, SharedBuffer message, Nanos now) = 0;
  // If `refused` is true, no process listens at the peer's address any more.
  virtual void link_lost(uint32_t peer, bool refused, Nanos now) = 0;
  virtual void credit(uint32_t peer, Nanos now) = 0;
  virtual void woke(Nanos now) = 0;
  virtual Nanos next_deadline() const = 0;
  // Prefetches the actor's memory. This is called one event early: while the network processes an event, the actor of the next
  // event prefetches.
  virtual void prefetch() const {}
};

struct ElasticLinkModel {
  Nanos delay = 100 * microsecond;
  Nanos jitter = 0;               // a random time below this is added to `delay`
  double bytes_per_second = 0;    // rate of each process's line, in each direction; 0: unlimited
  Nanos silence = 30 * second;    // if a message has waited at a cut for this long, its link is lost
  size_t credit_bytes = 1 << 20;  // credit() returns true if fewer bytes than this wait for the sender's line
};

class ElasticNetwork {
 public:
  ElasticNetwork(const ElasticLinkModel& model, uint64_t seed) : model_(model), random_(seed) {}

  // Starts the actor at time `at` and returns its index. The caller owns the actor. The actor must live until it is killed or
  // the network is destroyed.
  uint32_t add(ElasticActor* actor, Nanos at);
  void send(uint32_t from, uint32_t to, SharedBuffer message);
  bool credit(uint32_t from, uint32_t to);
  // Kills the process. Messages that it has already sent still arrive.
  void kill(uint32_t index);
  void stop(uint32_t index);
  void go_on(uint32_t index);
  // Blocks messages between the processes in `cut_side` and the others, until heal().
  void cut(const std::set<uint32_t>& cut_side);
  void heal();
  // Calls `action` at time `when`, between events.
  void at(Nanos when, std::function<void()> action);

  Nanos now() const { return now_; }
  bool alive(uint32_t index) const { return processes_[index].actor != nullptr; }
  // Runs until done() is true (checked after each event), or until time `until`. Returns whether done() was true.
  bool run(Nanos until, const std::function<bool()>& done = {});
  // Call this after an actor was used outside its events, because its next deadline may be earlier now.
  void schedule_wake_up(uint32_t index);

  uint64_t messages() const { return messages_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t bytes_from(uint32_t index) const { return processes_[index].sent_bytes; }

 private:
  enum class Kind : uint8_t { start, arrive, wake, lost, credit, action, heal_check };
  struct Event {
    Nanos at = 0;
    uint32_t to = 0;  // index of the receiving process; Kind::action: number of the action
    uint32_t from = 0;
    Kind kind = Kind::wake;
    bool refused = false;
    SharedBuffer message{};
  };
  // The queue moves these small entries, and the events stay where they are. In large runs, an event has left the caches when
  // its time comes. So it is prefetched while the previous event is processed.
  struct QueueEntry {
    Nanos at = 0;
    uint64_t sequence = 0;
    uint32_t event = 0;
    bool operator<(const QueueEntry& other) const { return at != other.at ? at > other.at : sequence > other.sequence; }
  };
  struct Link {
    Nanos last_arrival = 0;  // arrival time of the last message that this process sent to the other process
    bool linked = false;     // messages were sent over this link or the opposite one
  };
  struct Process {
    ElasticActor* actor = nullptr;
    bool stopped = false;
    Nanos line_free = 0, down_free = 0;  // the uplink and the downlink are busy until these times
    Nanos wake_at = never;
    std::deque<Event> held;   // events that came while the process was stopped
    std::vector<Link> links;  // indexed by the other process; grows when needed
    std::set<uint32_t> waits_credit;
    uint64_t sent_bytes = 0;
  };

  void push(Event event);
  void deliver(Event& event);
  void prefetch_next() const;
  void arrive(Event& event);
  bool separated(uint32_t a, uint32_t b) const { return !cut_side_.empty() && cut_side_.contains(a) != cut_side_.contains(b); }
  void lose(uint32_t to, uint32_t from, bool refused, Nanos at);
  Link& link(uint32_t from, uint32_t to);

  ElasticLinkModel model_;
  Random random_;
  Nanos now_ = 0;
  uint64_t sequence_ = 0;
  std::priority_queue<QueueEntry> queue_;
  std::vector<Event> events_;  // queued events, and free entries between them
  std::vector<uint32_t> free_events_;
  std::map<uint32_t, std::function<void()>> actions_;
  uint32_t next_action_ = 0;
  std::vector<Process> processes_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<std::pair<Nanos, SharedBuffer>>>
      cut_messages_;  // messages that wait at the cut, each with the time since which it waits
  std::set<uint32_t> cut_side_;
  uint64_t messages_ = 0, bytes_ = 0;
};

}  // namespace unisono::sim
