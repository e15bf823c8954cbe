// The event queue of virtual time: earliest first, equal times in the order of insertion.
//
// A run depends only on the calls made, never on an address, a hash order or a clock. A large run holds a million events, and
// each level of a heap costs a cache miss. So events of one rank that come in time order, such as frames on the wire, wait in a
// line; the heap holds only its first event. Events of the current time bypass the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/clock.h"
#include "wire/peer_id.h"

namespace unisono::sim {

enum class EventKind : uint8_t {
  arrive,    // a frame (index) reached its receiver
  poll,      // the rank wakes up and polls
  timer,     // the rank's engine asked for this wake-up
  computed,  // a computation (index) is done
  credit,    // links of the rank may accept frames again
  lose,      // the rank notices that a link (index) is gone
  act,       // an event planned by the scenario (index)
};

struct Event {
  Nanos at = 0;
  uint64_t sequence = 0;
  uint64_t index = 0;
  PeerIndex rank = 0;
  EventKind kind = EventKind::act;
};

class EventQueue {
 public:
  explicit EventQueue(size_t ranks) : lines_(ranks), polls_(ranks, never) {}

  Nanos now() const { return now_; }
  bool empty() const {
    return heap_.empty() && due_.empty();
  }  // the heap holds the first event of every line that is not empty
  // Requires a non-empty queue.
  Nanos next_at() const { return due_.empty() ? heap_.front().at : now_; }
  // A time in the past means now.
  void add(Nanos at, EventKind kind, PeerIndex rank, uint64_t index);
  // The rank polls at this time or earlier. Several requests become one event.
  void request_poll(PeerIndex rank, Nanos at);
  // False: an earlier poll made this one obsolete.
  bool take_poll(const Event& event);
  // Removes the next event and advances the time to it. Requires a non-empty queue.
  Event pop();

 private:
  static constexpr uint64_t nobody = UINT64_MAX;
  struct Line {                // frames that arrive at one rank
    uint64_t first = nobody;   // sequence number of its first event, which is in the heap
    Nanos last = 0;            // time of its last event
    std::deque<Event> behind;  // all but the first
  };

  static bool before(const Event& a, const Event& b) { return a.at != b.at ? a.at < b.at : a.sequence < b.sequence; }
  void sift_in(const Event& event);
  void sift_down(const Event& event);
  Event pop_heap();

  Nanos now_ = 0;
  uint64_t next_sequence_ = 0;
  std::vector<Event> heap_;
  std::vector<Line> lines_;  // by rank
  std::deque<Event> due_;    // events of the current time
  std::vector<Nanos> polls_;
};

}  // namespace unisono::sim
