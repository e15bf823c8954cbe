// Virtual links between the peers of an elastic run: messages in order per pair, late by a delay and by what the sender's line
// carries; processes that are killed, stopped and started again, and islands that are cut off. The same seed gives the same
// run.
//
// A process that is killed refuses connections: who has a link to it learns that one delay later. One that is stopped says
// nothing, and finds all that was said to it when it goes on. What crosses a cut waits, as TCP would have it, and is lost with
// the link after `silence`.
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
  // refused: nobody listens there any more.
  virtual void link_lost(uint32_t peer, bool refused, Nanos now) = 0;
  virtual void credit(uint32_t peer, Nanos now) = 0;
  virtual void woke(Nanos now) = 0;
  virtual Nanos next_deadline() const = 0;
  // Its turn is next: what it will need may be fetched from memory.
  virtual void fetch() const {}
};

struct ElasticLinkModel {
  Nanos delay = 100 * microsecond;
  Nanos jitter = 0;               // uniform in [0, jitter), added
  double bytes_per_second = 0;    // of each process's line, each way; 0: no limit
  Nanos silence = 30 * second;    // a link that carries nothing for so long is lost
  size_t credit_bytes = 1 << 20;  // bulk may be sent while less waits for the sender's line
};

class ElasticNetwork {
 public:
  ElasticNetwork(const ElasticLinkModel& model, uint64_t seed) : model_(model), random_(seed) {}

  // The actor begins at `at` and belongs to the caller, who keeps it until it was killed or the network is gone.
  uint32_t add(ElasticActor* actor, Nanos at);
  void send(uint32_t from, uint32_t to, SharedBuffer message);
  bool credit(uint32_t from, uint32_t to);
  // The process is gone, with all that it had not sent yet.
  void kill(uint32_t index);
  void stop(uint32_t index);
  void go_on(uint32_t index);
  // No message between those in `island` and the others until heal().
  void cut(const std::set<uint32_t>& island);
  void heal();
  // Called in virtual time, between events.
  void at(Nanos when, std::function<void()> action);

  Nanos now() const { return now_; }
  bool alive(uint32_t index) const { return processes_[index].actor != nullptr; }
  // Runs until done() holds, checked after each event, or `until`. True if it held.
  bool run(Nanos until, const std::function<bool()>& done = {});
  // After a call into an actor from outside: its next deadline may be earlier now.
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
  // In the queue, which moves what it holds about; the event lies still. Of a large run everything has left the caches when its
  // turn comes, so it is fetched while the one before it is dealt with.
  struct Place {
    Nanos at = 0;
    uint64_t sequence = 0;
    uint32_t event = 0;
    bool operator<(const Place& other) const { return at != other.at ? at > other.at : sequence > other.sequence; }
  };
  struct Link {
    Nanos last_arrival = 0;  // there, of what was sent from here
    bool linked = false;     // messages were exchanged
  };
  struct Process {
    ElasticActor* actor = nullptr;
    bool stopped = false;
    Nanos line_free = 0, down_free = 0;  // its uplink and downlink are busy until then
    Nanos wake_at = never;
    std::deque<Event> held;   // for a stopped process
    std::vector<Link> links;  // by process, as far as one was needed
    std::set<uint32_t> waits_credit;
    uint64_t sent_bytes = 0;
  };

  void push(Event event);
  void deliver(Event& event);
  void fetch_next() const;
  void arrive(Event& event);
  bool separated(uint32_t a, uint32_t b) const { return !island_.empty() && island_.contains(a) != island_.contains(b); }
  void lose(uint32_t to, uint32_t from, bool refused, Nanos at);
  Link& link(uint32_t from, uint32_t to);

  ElasticLinkModel model_;
  Random random_;
  Nanos now_ = 0;
  uint64_t sequence_ = 0;
  std::priority_queue<Place> queue_;
  std::vector<Event> events_;  // those in the queue, and unused ones between them
  std::vector<uint32_t> free_events_;
  std::map<uint32_t, std::function<void()>> actions_;
  uint32_t next_action_ = 0;
  std::vector<Process> processes_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<std::pair<Nanos, SharedBuffer>>>
      severed_;  // waits at the cut, with when it was sent
  std::set<uint32_t> island_;
  uint64_t messages_ = 0, bytes_ = 0;
};

}  // namespace unisono::sim
