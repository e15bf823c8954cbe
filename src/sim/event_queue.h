// What happens next in virtual time: one queue of events, earliest first, equal times in the order in which they were added.
//
// So a run depends on nothing but the calls made: no address, hash order or clock decides anything. A large run holds a
// million events, and each level of a heap of them is a cache miss. So events of one rank that come in the order of their
// times, as frames on the wire do, wait in a line of which the heap holds only the first; and events of the current time do
// not enter it at all.
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
  timer,     // the rank's engine had asked to be woken
  computed,  // a computation (index = its id) is done
  credit,    // links of the rank may take frames again
  lose,      // the rank learns that a link is gone (index)
  act,       // something that the scenario planned (index)
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
  bool empty() const { return heap_.empty() && due_.empty(); }  // a line that is not empty has its first event in the heap
  // Only if not empty.
  Nanos next_at() const { return due_.empty() ? heap_.front().at : now_; }
  // In the past: now.
  void add(Nanos at, EventKind kind, PeerIndex rank, uint64_t index);
  // The rank polls at this time or earlier. Many requests make one event.
  void request_poll(PeerIndex rank, Nanos at);
  // False if this poll was overtaken by an earlier one and is not wanted any more.
  bool take_poll(const Event& event);
  // The next event; time moves on to it. Only if not empty.
  Event pop();

 private:
  static constexpr uint64_t nobody = UINT64_MAX;
  struct Line {                // of frames that arrive at one rank
    uint64_t first = nobody;   // sequence of its first event, which is in the heap
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
  std::deque<Event> due_;    // now
  std::vector<Nanos> polls_;
};

}  // namespace unisono::sim
