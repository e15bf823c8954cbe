// What happens next in virtual time: one queue of events, earliest first, equal times in the order in which they were added.
//
// So a run depends on nothing but the calls made: no address, hash order or clock decides anything. The heap is four-ary, because a
// large run holds a million events and each level of the heap is a cache miss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "wire/peer_id.h"

namespace unisono::sim {

enum class EventKind : uint8_t {
  arrive,    // a frame (index) reached its receiver
  poll,      // the rank wakes up and polls
  timer,     // the rank's engine had asked to be woken
  computed,  // a computation (index = its id) is done
  act,       // something that the scenario planned (index)
};

struct Event {
  Nanos at = 0;
  uint64_t sequence = 0;
  uint64_t index = 0;
  PeerIndex rank = 0;
  EventKind kind = EventKind::act;
};

class Agenda {
 public:
  explicit Agenda(size_t ranks) : polls_(ranks, never) {}

  Nanos now() const { return now_; }
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  // In the past: now.
  void add(Nanos at, EventKind kind, PeerIndex rank, uint64_t index);
  // The rank polls at this time or earlier. Many requests make one event.
  void request_poll(PeerIndex rank, Nanos at);
  // False if this poll was overtaken by an earlier one and is not wanted any more.
  bool take_poll(const Event& event);
  // When the rank polls next, as far as is known.
  Nanos next_poll(PeerIndex rank) const { return polls_[rank]; }
  // The next event; time moves on to it. Only if not empty.
  Event pop();

 private:
  static bool before(const Event& a, const Event& b) { return a.at != b.at ? a.at < b.at : a.sequence < b.sequence; }

  Nanos now_ = 0;
  uint64_t next_sequence_ = 0;
  std::vector<Event> heap_;
  std::vector<Nanos> polls_;
};

}  // namespace unisono::sim
