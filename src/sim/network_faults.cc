// Faults, and the clean-up after them: cancelled operations, cut links, dead processes and partitions.
#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "sim/network.h"

namespace unisono::sim {

template <typename F>
void Network::each_frame(F&& call) {
  for (uint32_t index = 0; index < pages_.size() * page_frames; ++index) {
    auto& frame = frame_at(index);
    if (frame.state != State::free) call(frame, key_of(index));
  }
}

void Network::cancel(PeerIndex self, const Cancellation& what) {
  each_frame([&](Frame& frame, uint64_t key) {
    if (frame.from == self && frame.notify != NotifySender::never && what.concerns_send(frame.send_id)) {
      own_payload(frame);
      frame.notify = NotifySender::never;
    }
    const bool writing = frame.to == self && frame.state == State::writing && what.concerns_frames_from(frame.from);
    if (writing && frame.header.group == what.group && frame.header.operation == what.operation) {
      report_sent(frame);
      drop_frame(key);
    }
  });
  for (auto& event : stations_[self].events) {
    if (event.kind == NetworkEventKind::sent && what.concerns_send(event.value)) event.kind = NetworkEventKind::nothing;
  }
}

// Gives back the memory of the matching sends for which `gives(frame)` is true. Returns true if there are any.
template <typename F>
bool Network::give_back(PeerIndex self, uint64_t match, uint64_t mask, F&& gives) {
  bool any = false;
  if (settings_.single_copy) return false;
  each_frame([&](Frame& frame, uint64_t) {
    if (frame.from != self || frame.notify == NotifySender::never || (frame.send_id & mask) != match || !gives(frame)) return;
    own_payload(frame);
    report_sent(frame);
    any = true;
  });
  return any;
}

// The network knows of some of the frames that have arrived.
bool Network::release_acknowledged(PeerIndex self, uint64_t match, uint64_t mask) {
  return give_back(self, match, mask, [&](const Frame& frame) {
    const bool arrived = frame.state == State::queued || frame.state == State::writing;
    return arrived && random_.chance(0.5);
  });
}

void Network::release_early(PeerIndex self, uint64_t match, uint64_t mask) {
  give_back(self, match, mask, [](const Frame&) { return true; });
}

void Network::report_lost(PeerIndex self, const NetworkEvent& event, Sink& sink) {
  each_frame([&](Frame& frame, uint64_t key) {
    if (frame.to == self && frame.from == event.peer && frame.state == State::writing) drop_frame(key);
  });
  trace_.event(event_queue_.now(), "lost", self, event.peer);
  const auto fate = stations_[event.peer].dead ? PeerFate::ended : PeerFate::unknown;
  sink.lost(event.peer, {Code::peer_lost, concat("process ", event.peer, ": ", losses_[event.value].why)}, fate);
}

void Network::cut(PeerIndex a, PeerIndex b, Nanos notice_a, Nanos notice_b, const std::string& why) {
  if (link(a, b).cut) return;
  trace_.event(event_queue_.now(), "cut", a, b);
  link(a, b).cut = link(b, a).cut = true;
  const auto notify = [&](PeerIndex self, PeerIndex peer, Nanos notice) {
    if (notice == never) return;
    losses_.push_back({self, peer, why});
    event_queue_.add(event_queue_.now() + notice, EventKind::lose, self, losses_.size() - 1);
  };
  notify(a, b, notice_a);
  notify(b, a, notice_b);
}

// Lets a process notice that its link is gone. First its pending sends end, then the loss is reported.
void Network::lose(uint64_t index) {
  const auto self = losses_[index].self, peer = losses_[index].peer;
  auto& l = link(self, peer);
  if (l.lost || stations_[self].dead) return;
  l.lost = true;
  drop_sends(self, peer);
  add_event(self, {NetworkEventKind::lost, peer, index});
}

// Call this for a frame that will never arrive. If the sender waits for a notification, the frame is kept until the sender gets
// it, because the payload may be in the sender's memory. Otherwise the frame is dropped.
void Network::strand(uint64_t key) {
  auto& frame = frame_at(key);
  if (frame.notify == NotifySender::never) return drop_frame(key);
  frame.state = State::stranded;
}

void Network::drop_sends(PeerIndex self, PeerIndex peer) {
  each_frame([&](Frame& frame, uint64_t key) {
    if (frame.from != self || frame.to != peer || frame.notify == NotifySender::never) return;
    own_payload(frame);
    report_sent(frame);
    if (frame.state == State::stranded) drop_frame(key);
  });
}

void Network::close(PeerIndex self, PeerIndex peer) {
  if (link(self, peer).lost) return;
  cut(self, peer, never, settings_.latency, "the other side closed the link");
  link(self, peer).lost = true;
  drop_sends(self, peer);
}

void Network::reset(PeerIndex a, PeerIndex b, Nanos until) {
  trace_.event(event_queue_.now(), "reset", a, b);
  for (auto* l : {&link(a, b), &link(b, a)}) {
    l->down_until = std::max(l->down_until, until);
    // Frames on their way arrive when the link is back. Later frames do not overtake them.
    if (settings_.ordered) l->last_arrival = std::max(l->last_arrival, l->down_until);
  }
}

void Network::kill(PeerIndex self) {
  trace_.event(event_queue_.now(), "kill", self, self);
  auto& station = stations_[self];
  station.dead = true;
  station.events.clear();
  each_frame([&](Frame& frame, uint64_t key) {
    // Frames with a payload in the dead process's memory still arrive: a real kernel would have copied the payload.
    if (frame.from == self && frame.state != State::viewed) own_payload(frame);
    if (frame.from == self) frame.notify = NotifySender::never;
    if (frame.to == self && frame.state != State::flying) strand(key);
  });
}

void Network::partition(std::vector<bool> side, Nanos until) {
  trace_.event(event_queue_.now(), "partition", no_process, no_process);
  side_ = std::move(side);
  heals_ = until;
}

void Network::end_faults() {
  trace_.event(event_queue_.now(), "calm", no_process, no_process);
  settings_.loss = settings_.refuse = 0;
  settings_.jitter = 0;
  settings_.fail_send = settings_.fail_receive = settings_.fail_credit = settings_.fail_acquire = 0;
  for (auto& station : stations_) station.slowness = 1;
}

std::vector<std::string> Network::held() const {
  struct Held {
    uint32_t views = 0, writing = 0, sending = 0;
  };
  std::vector<Held> by_process(count_);
  for (uint32_t index = 0; index < pages_.size() * page_frames; ++index) {
    const auto& frame = frame_at(index);
    if (frame.state == State::free) continue;
    by_process[frame.to].views += frame.state == State::viewed;
    by_process[frame.to].writing += frame.state == State::writing;
    by_process[frame.from].sending += frame.notify != NotifySender::never && !stations_[frame.to].dead;
  }
  std::vector<std::string> texts(count_);
  for (PeerIndex self = 0; self < count_; ++self) {
    const auto& h = by_process[self];
    const auto slots = stations_[self].slots_out;
    if (h.views + h.writing + h.sending + slots == 0) continue;
    texts[self] =
        concat(h.views, " views, ", h.writing, " writes to receive buffers, ", h.sending, " sends, ", slots, " slots");
  }
  return texts;
}

}  // namespace unisono::sim
