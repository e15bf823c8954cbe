// Virtual links between the peers of an elastic run. Messages arrive in order per pair, after a delay and the transfer time of
// the sender's line. Processes can be killed, stopped and resumed, and sets of processes can be cut off. Equal seeds give equal
// runs.
//
// A killed process refuses connections; peers linked to it notice one delay later. A stopped process sends nothing, and gets
// all its messages when it resumes. Messages across a cut wait, as in TCP, and are lost with the link after `silence`.
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

// A process on the network.
class ElasticActor {
 public:
  virtual ~ElasticActor() = default;
  virtual void started(Nanos now) = 0;
  virtual void received(uint32_t from, SharedBuffer message, Nanos now) = 0;
  // refused: no process listens there any more.
  virtual void link_lost(uint32_t peer, bool refused, Nanos now) = 0;
  virtual void credit(uint32_t peer, Nanos now) = 0;
  virtual void woke(Nanos now) = 0;
  virtual Nanos next_deadline() const = 0;
  // Its event is next: prefetch the memory that it will need.
  virtual void fetch() const {}
};

struct ElasticLinkModel {
  Nanos delay = 100 * microsecond;
  Nanos jitter = 0;               // uniform in [0, jitter), added
  double bytes_per_second = 0;    // of each process's line, in each direction; 0: unlimited
  Nanos silence = 30 * second;    // a link without traffic for this long is lost
  size_t credit_bytes = 1 << 20;  // bulk data may be sent while less than this waits for the sender's line
};

class ElasticNetwork {
 public:
  ElasticNetwork(const ElasticLinkModel& model, uint64_t seed) : model_(model), random_(seed) {}

  // Starts the actor at `at`. The caller owns it, and keeps it until it was killed or the network is gone.
  uint32_t add(ElasticActor* actor, Nanos at);
  void send(uint32_t from, uint32_t to, SharedBuffer message);
  bool credit(uint32_t from, uint32_t to);
  // The process is gone, with everything that it had not sent yet.
  void kill(uint32_t index);
  void stop(uint32_t index);
  void go_on(uint32_t index);
  // Blocks messages between the processes in `cut_side` and the others, until heal().
  void cut(const std::set<uint32_t>& cut_side);
  void heal();
  // Calls the action in virtual time, between events.
  void at(Nanos when, std::function<void()> action);

  Nanos now() const { return now_; }
  bool alive(uint32_t index) const { return processes_[index].actor != nullptr; }
  // Runs until done() is true, checked after each event, or until `until`. Returns whether done() was true.
  bool run(Nanos until, const std::function<bool()>& done = {});
  // Call after using an actor from outside: its next deadline may be earlier now.
  void attend(uint32_t index);

  uint64_t messages() const { return messages_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t bytes_from(uint32_t index) const { return processes_[index].sent_bytes; }

 private:
  enum class Kind : uint8_t { start, arrive, wake, lost, credit, action, heal_check };
  struct Event {
    Nanos at = 0;
    uint32_t to = 0;  // of an action: its number
    uint32_t from = 0;
    Kind kind = Kind::wake;
    bool refused = false;
    SharedBuffer message{};
  };
  // An entry of the queue. The queue moves entries, while events stay in place. In large runs, an event has left the caches
  // when its turn comes, so it is prefetched while the previous one is processed.
  struct Place {
    Nanos at = 0;
    uint64_t sequence = 0;
    uint32_t event = 0;
    bool operator<(const Place& other) const { return at != other.at ? at > other.at : sequence > other.sequence; }
  };
  struct Link {
    Nanos last_arrival = 0;  // at the receiver, of the last message sent from here
    bool linked = false;     // messages were exchanged
  };
  struct Process {
    ElasticActor* actor = nullptr;
    bool stopped = false;
    Nanos line_free = 0, down_free = 0;  // its uplink and downlink are busy until then
    Nanos wake_at = never;
    std::deque<Event> held;   // messages for a stopped process
    std::vector<Link> links;  // by process, as needed
    std::set<uint32_t> waits_credit;
    uint64_t sent_bytes = 0;
  };

  void push(Event event);
  void deliver(Event& event);
  void fetch_next() const;
  void arrive(Event& event);
  bool separated(uint32_t a, uint32_t b) const { return !cut_side_.empty() && cut_side_.contains(a) != cut_side_.contains(b); }
  void lose(uint32_t to, uint32_t from, bool refused, Nanos at);
  Link& link(uint32_t from, uint32_t to);

  ElasticLinkModel model_;
  Random random_;
  Nanos now_ = 0;
  uint64_t sequence_ = 0;
  std::priority_queue<Place> queue_;
  std::vector<Event> events_;  // queued events, and unused entries between them
  std::vector<uint32_t> free_events_;
  std::map<uint32_t, std::function<void()>> actions_;
  uint32_t next_action_ = 0;
  std::vector<Process> processes_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<std::pair<Nanos, SharedBuffer>>>
      severed_;  // messages that wait at the cut, with their sending times
  std::set<uint32_t> cut_side_;
  uint64_t messages_ = 0, bytes_ = 0;
};

}  // namespace unisono::sim
