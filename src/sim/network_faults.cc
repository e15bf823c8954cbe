// Faults and their clean-up: cancelled operations, cut links, dead processes, partitions.
#include <utility>

#include "sim/network.h"

namespace unisono::sim {

template <typename F>
void Network::each_frame(F&& call) {
  for (uint32_t index = 0; index < pages_.size() * page_frames; ++index) {
    auto& frame = frame_at(index);
    if (frame.state != State::free) call(frame, key_of(index));
  }
}

void Network::cancel(PeerIndex self, uint64_t match, uint64_t mask, uint32_t group, uint64_t operation) {
  each_frame([&](Frame& frame, uint64_t key) {
    if (frame.from == self && frame.tell != NotifySender::nobody && (frame.send_id & mask) == match) {
      own_payload(frame);
      frame.tell = NotifySender::nobody;
    }
    if (frame.to == self && frame.state == State::landing && frame.header.group == group &&
        frame.header.operation == operation) {
      tell_sent(frame);
      drop_frame(key);
    }
  });
  for (auto& news : stations_[self].news) {
    if (news.kind == NetworkEventKind::sent && (news.value & mask) == match) news.kind = NetworkEventKind::nothing;
  }
}

void Network::report_lost(PeerIndex self, const NetworkEvent& news, Sink& sink) {
  each_frame([&](Frame& frame, uint64_t key) {
    if (frame.to == self && frame.from == news.peer && frame.state == State::landing) drop_frame(key);
  });
  trace_.event(event_queue_.now(), "lost", self, news.peer);
  sink.lost(news.peer, {Code::peer_lost, "process " + std::to_string(news.peer) + ": " + losses_[news.value].why});
}

void Network::cut(PeerIndex a, PeerIndex b, Nanos notice_a, Nanos notice_b, const std::string& why) {
  if (link(a, b).cut) return;
  trace_.event(event_queue_.now(), "cut", a, b);
  link(a, b).cut = link(b, a).cut = true;
  const auto tell = [&](PeerIndex self, PeerIndex peer, Nanos notice) {
    if (notice == never) return;
    losses_.push_back({self, peer, why});
    event_queue_.add(event_queue_.now() + notice, EventKind::lose, self, losses_.size() - 1);
  };
  tell(a, b, notice_a);
  tell(b, a, notice_b);
}

// The process notices that the link is gone: first its pending sends end, then the loss is reported.
void Network::lose(uint64_t index) {
  const auto self = losses_[index].self, peer = losses_[index].peer;
  auto& l = link(self, peer);
  if (l.lost || stations_[self].dead) return;
  l.lost = true;
  drop_sends(self, peer);
  add_event(self, {NetworkEventKind::lost, peer, index});
}

// A frame that never arrives keeps the sender's memory until the sender is notified.
void Network::strand(uint64_t key) {
  auto& frame = frame_at(key);
  if (frame.tell == NotifySender::nobody) return drop_frame(key);
  frame.state = State::stranded;
}

void Network::drop_sends(PeerIndex self, PeerIndex peer) {
  each_frame([&](Frame& frame, uint64_t key) {
    if (frame.from != self || frame.to != peer || frame.tell == NotifySender::nobody) return;
    own_payload(frame);
    tell_sent(frame);
    if (frame.state == State::stranded) drop_frame(key);
  });
}

void Network::close(PeerIndex self, PeerIndex peer) {
  if (link(self, peer).lost) return;
  cut(self, peer, never, settings_.latency, "the other side closed the link");
  link(self, peer).lost = true;
  drop_sends(self, peer);
}

void Network::kill(PeerIndex self) {
  trace_.event(event_queue_.now(), "kill", self, self);
  auto& station = stations_[self];
  station.dead = true;
  station.news.clear();
  each_frame([&](Frame& frame, uint64_t key) {
    // Frames in the dead process's own memory still go out, because the kernel has them.
    if (frame.from == self && frame.state != State::lent) own_payload(frame);
    if (frame.from == self) frame.tell = NotifySender::nobody;
    if (frame.to == self && frame.state != State::flying) strand(key);
  });
}

void Network::partition(std::vector<bool> side, Nanos until) {
  trace_.event(event_queue_.now(), "partition", no_one, no_one);
  side_ = std::move(side);
  heals_ = until;
}

void Network::calm() {
  trace_.event(event_queue_.now(), "calm", no_one, no_one);
  settings_.loss = settings_.refuse = 0;
  settings_.jitter = 0;
  settings_.fail_send = settings_.fail_receive = settings_.fail_credit = settings_.fail_acquire = 0;
  for (auto& station : stations_) station.slowness = 1;
}

std::vector<std::string> Network::held() const {
  struct Held {
    uint32_t lent = 0, landing = 0, sending = 0;
  };
  std::vector<Held> by_process(count_);
  for (uint32_t index = 0; index < pages_.size() * page_frames; ++index) {
    const auto& frame = frame_at(index);
    if (frame.state == State::free) continue;
    by_process[frame.to].lent += frame.state == State::lent;
    by_process[frame.to].landing += frame.state == State::landing;
    by_process[frame.from].sending += frame.tell != NotifySender::nobody && !stations_[frame.to].dead;
  }
  std::vector<std::string> texts(count_);
  for (PeerIndex self = 0; self < count_; ++self) {
    const auto& h = by_process[self];
    const auto slots = stations_[self].slots_out;
    if (h.lent + h.landing + h.sending + slots == 0) continue;
    texts[self] = std::to_string(h.lent) + " views, " + std::to_string(h.landing) + " writes to receive buffers, " +
                  std::to_string(h.sending) + " sends, " + std::to_string(slots) + " slots";
  }
  return texts;
}

}  // namespace unisono::sim
