// Receiving: arrivals, polls, and payloads that are written to their destination or given as views.
#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/network.h"

namespace unisono::sim {

void Network::add_event(PeerIndex self, const NetworkEvent& news) {
  auto& station = stations_[self];
  if (station.dead) return;
  station.news.push_back(news);
  const auto wake = settings_.wake_max == 0 ? 0 : static_cast<Nanos>(random_.below(static_cast<uint64_t>(settings_.wake_max)));
  event_queue_.request_poll(self, std::max(event_queue_.now() + wake, station.next_poll));
}

void Network::arrive(uint64_t key) {
  auto& frame = frame_at(key);
  if (separated(frame.from, frame.to)) return event_queue_.add(heals_ + settings_.retransmit, EventKind::arrive, frame.to, key);
  if (++counters_.receives == settings_.fail_receive)
    cut(frame.from, frame.to, 10 * microsecond, 0, "injected: a receive failed");
  auto& l = link(frame.from, frame.to);
  if (l.cut || stations_[frame.to].dead) {
    // The sender's payload is released when the sender notices the loss.
    return strand(key);
  }
  frame.state = State::queued;
  if (frame.tell == NotifySender::on_arrival) {
    verify(frame);
    own_payload(frame);
    tell_sent(frame);
  }
  add_event(frame.to, {NetworkEventKind::frame, frame.from, key});
}

bool Network::poll(PeerIndex self, Sink& sink) {
  auto& station = stations_[self];
  auto left = station.news.size();
  if (left == 0) return false;
  station.next_poll = event_queue_.now() + settings_.poll_gap;
  const auto limit = settings_.events_per_poll_max > 0 ? 1 + random_.below(settings_.events_per_poll_max) : left;
  const bool limited = limit < left;
  left = std::min<size_t>(left, limit);
  for (; left > 0 && !station.news.empty(); --left) {
    const auto news = station.news.front();
    station.news.pop_front();
    switch (news.kind) {
      case NetworkEventKind::frame: deliver(self, news.value, sink); break;
      case NetworkEventKind::landed: land(self, news.value, sink); break;
      case NetworkEventKind::sent: sink.sent(news.value); break;
      case NetworkEventKind::credit:
        if (!link(self, news.peer).lost) sink.credit(news.peer);
        break;
      case NetworkEventKind::lost: report_lost(self, news, sink); break;
      case NetworkEventKind::nothing: break;
    }
  }
  // Later arrivals have requested a poll of their own.
  if (limited) event_queue_.request_poll(self, std::max(event_queue_.now() + 1, station.next_poll));
  return true;
}

// The receiver's transport has taken the frame.
void Network::taken(const Frame& frame) {
  auto& station = stations_[frame.to];
  ++station.counters.received_frames;
  station.counters.received_bytes += sizeof(FrameHeader) + frame.header.payload_bytes;
}

// The link can accept another frame.
void Network::leave_queue(Frame& frame) {
  if (!std::exchange(frame.takes_credit, false)) return;
  auto& l = link(frame.from, frame.to);
  if (l.under_way > 0) --l.under_way;
  give_credit(frame.from);
}

void Network::deliver(PeerIndex self, uint64_t key, Sink& sink) {
  auto* found = find(key);
  if (found == nullptr) return;
  auto& frame = *found;
  const auto from = frame.from;
  const auto header = frame.header;
  taken(frame);
  if (frame.data == nullptr) {
    trace_.frame(event_queue_.now(), "take", from, self, header, 0);
    drop_frame(key);
    return sink.received(from, header, {});
  }
  if (!settings_.views_take_credit) leave_queue(frame);
  if (settings_.single_copy || random_.chance(settings_.lend)) return lend(key, sink);
  auto* target = sink.place(from, header);
  if (target == nullptr) return lend(key, sink);
  leave_queue(frame);
  frame.state = State::landing;
  frame.target = target;
  if (!random_.chance(settings_.split)) return land(self, key, sink);
  // Writes the first part now and the rest at a later poll. Until then the destination must stay reserved.
  verify(frame);
  frame.landed = random_.below(header.payload_bytes + 1);
  std::memcpy(target, frame.data, frame.landed);
  add_event(self, {NetworkEventKind::landed, from, key});
}

void Network::land(PeerIndex self, uint64_t key, Sink& sink) {
  auto* found = find(key);
  if (found == nullptr || found->state != State::landing) return;  // cancelled, or its link is lost
  auto& frame = *found;
  const auto from = frame.from;
  const auto header = frame.header;
  auto* target = frame.target;
  verify(frame);
  std::memcpy(target + frame.landed, frame.data + frame.landed, header.payload_bytes - frame.landed);
  trace_.frame(event_queue_.now(), "take", from, self, header, frame.checksum);
  tell_sent(frame);
  drop_frame(key);
  sink.received(from, header, {target, header.payload_bytes, 0});
}

void Network::lend(uint64_t key, Sink& sink) {
  auto& frame = frame_at(key);
  if (!settings_.single_copy) {
    verify(frame);
    own_payload(frame);
    tell_sent(frame);
  }
  trace_.frame(event_queue_.now(), "lend", frame.from, frame.to, frame.header, frame.checksum);
  frame.state = State::lent;
  const auto from = frame.from;
  const auto header = frame.header;
  sink.received(from, header, {frame.data, header.payload_bytes, key + 1});
}

void Network::release(PeerIndex self, const View& view) {
  auto* frame = view.handle == 0 ? nullptr : find(view.handle - 1);
  if (frame == nullptr || frame->state != State::lent || frame->to != self) {
    return violation("rank " + std::to_string(self) + " gives back a view that it does not have");
  }
  tell_sent(*frame);
  leave_queue(*frame);
  drop_frame(view.handle - 1);
}

}  // namespace unisono::sim
