// The event queue of virtual time. Events are ordered by time. Events with the same time are ordered by their insertion, so a
// run depends only on the calls that were made.
//
// A large run holds a million events, and each level of a heap costs a cache miss. To keep the heap small, frames that arrive
// at one rank in time order wait in a queue of this rank, which is called its line. The heap holds only the first event of each
// line, and the events that are in no line. Events of the current time bypass the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/clock.h"
#include "wire/peer_id.h"

namespace unisono::sim {

enum class EventKind : uint8_t {
  arrive,    // a frame has reached its receiver; Event::index identifies the frame
  poll,      // the rank wakes up and polls
  timer,     // a deadline of the rank's engine has come
  computed,  // a computation is complete; Event::index identifies it
  credit,    // links of the rank may accept frames again
  lose,      // the rank notices that a link is gone; Event::index identifies the loss
  act,       // an action of the scenario is due; Event::index is its number
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
  // This need not check lines_, because heap_ holds the first event of every non-empty line.
  bool empty() const { return heap_.empty() && due_.empty(); }
  // Returns the time of the next event. Requires a non-empty queue.
  Nanos next_at() const { return due_.empty() ? heap_.front().at : now_; }
  // Adds an event. A time in the past is replaced by the current time.
  void add(Nanos at, EventKind kind, PeerIndex rank, uint64_t index);
  // Lets the rank poll at this time or earlier. Several requests become one event.
  void request_poll(PeerIndex rank, Nanos at);
  // Call this for each poll event. Returns false if the rank has already polled, so that this event is obsolete.
  bool take_poll(const Event& event);
  // Removes the next event and advances the time to it. Requires a non-empty queue.
  Event pop();

 private:
  static constexpr uint64_t no_event = UINT64_MAX;
  struct Line {  // frames that arrive at one rank, in time order
    // Sequence number of the line's first event, which is in the heap; no_event if the line is empty.
    uint64_t first = no_event;
    Nanos last = 0;            // time of the line's last event
    std::deque<Event> behind;  // all events except the first
  };

  static bool before(const Event& a, const Event& b) { return a.at != b.at ? a.at < b.at : a.sequence < b.sequence; }
  void sift_in(const Event& event);
  void sift_down(const Event& event);
  Event pop_heap();

  Nanos now_ = 0;
  uint64_t next_sequence_ = 0;
  std::vector<Event> heap_;
  std::vector<Line> lines_;  // indexed by rank
  std::deque<Event> due_;    // events of the current time
  std::vector<Nanos> polls_;
};

}  // namespace unisono::sim
