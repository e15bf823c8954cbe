// How the network delivers frames: they arrive, processes poll for them, and payloads are written to their destination or given
// as views.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/concat.h"
#include "sim/network.h"

namespace unisono::sim {

void Network::add_event(PeerIndex self, const NetworkEvent& event) {
  auto& station = stations_[self];
  if (station.dead) return;
  station.events.push_back(event);
  const auto wake = settings_.wake_max == 0 ? 0 : static_cast<Nanos>(random_.below(static_cast<uint64_t>(settings_.wake_max)));
  event_queue_.request_poll(self, std::max(event_queue_.now() + wake, station.next_poll));
}

void Network::arrive(uint64_t key) {
  auto& frame = frame_at(key);
  if (separated(frame.from, frame.to)) return event_queue_.add(heals_ + settings_.retransmit, EventKind::arrive, frame.to, key);
  if (const auto until = link(frame.from, frame.to).down_until; event_queue_.now() < until)
    return event_queue_.add(until, EventKind::arrive, frame.to, key);
  if (++counters_.receives == settings_.fail_receive)
    cut(frame.from, frame.to, 10 * microsecond, 0, "injected: a receive failed");
  auto& l = link(frame.from, frame.to);
  if (l.cut || stations_[frame.to].dead) {
    // The frame keeps the sender's payload until the sender notices that the link is lost.
    return strand(key);
  }
  frame.state = State::queued;
  if (frame.notify == NotifySender::on_arrival) {
    verify(frame);
    own_payload(frame);
    report_sent(frame);
  }
  add_event(frame.to, {NetworkEventKind::frame, frame.from, key});
}

bool Network::poll(PeerIndex self, Sink& sink) {
  auto& station = stations_[self];
  auto left = station.events.size();
  if (left == 0) return false;
  station.next_poll = event_queue_.now() + settings_.poll_gap;
  const auto limit = settings_.events_per_poll_max > 0 ? 1 + random_.below(settings_.events_per_poll_max) : left;
  const bool limited = limit < left;
  left = std::min<size_t>(left, limit);
  for (; left > 0 && !station.events.empty(); --left) {
    const auto event = station.events.front();
    station.events.pop_front();
    switch (event.kind) {
      case NetworkEventKind::frame: deliver(self, event.value, sink); break;
      case NetworkEventKind::write_rest: finish_write(self, event.value, sink); break;
      case NetworkEventKind::sent: sink.sent(event.value); break;
      case NetworkEventKind::credit:
        if (!link(self, event.peer).lost) sink.credit(event.peer);
        break;
      case NetworkEventKind::lost: report_lost(self, event, sink); break;
      case NetworkEventKind::nothing: break;
    }
  }
  // Because of the limit, some events are left for another poll, which is requested here. Events that arrive later request a
  // poll themselves.
  if (limited) event_queue_.request_poll(self, std::max(event_queue_.now() + 1, station.next_poll));
  return true;
}

// Counts a frame that the receiver's transport has taken.
void Network::count_received(const Frame& frame) {
  auto& station = stations_[frame.to];
  ++station.counters.received_frames;
  station.counters.received_bytes += sizeof(FrameHeader) + frame.header.payload_bytes;
}

// Removes the frame from its link's queue, which can then accept another frame.
void Network::leave_queue(Frame& frame) {
  if (!std::exchange(frame.takes_credit, false)) return;
  auto& l = link(frame.from, frame.to);
  if (l.in_flight > 0) --l.in_flight;
  give_credit(frame.from);
}

void Network::deliver(PeerIndex self, uint64_t key, Sink& sink) {
  auto* found = find(key);
  if (found == nullptr) return;
  auto& frame = *found;
  const auto from = frame.from;
  const auto header = frame.header;
  count_received(frame);
  if (frame.data == nullptr) {
    trace_.frame(event_queue_.now(), "take", from, self, header, 0);
    drop_frame(key);
    return sink.received(from, header, {});
  }
  if (!settings_.views_take_credit) leave_queue(frame);
  if (settings_.single_copy || random_.chance(settings_.view_chance)) return give_view(key, sink);
  auto* target = sink.receive_buffer(from, header);
  if (target == nullptr) return give_view(key, sink);
  leave_queue(frame);
  frame.state = State::writing;
  frame.target = target;
  if (!random_.chance(settings_.split)) return finish_write(self, key, sink);
  // Writes the first part of the payload now and the rest at a later poll. In between, the receiver must keep the destination
  // reserved.
  verify(frame);
  frame.written = random_.below(header.payload_bytes + 1);
  std::memcpy(target, frame.data, frame.written);
  add_event(self, {NetworkEventKind::write_rest, from, key});
}

void Network::finish_write(PeerIndex self, uint64_t key, Sink& sink) {
  auto* found = find(key);
  // The operation was cancelled meanwhile, or the link was lost.
  if (found == nullptr || found->state != State::writing) return;
  auto& frame = *found;
  const auto from = frame.from;
  const auto header = frame.header;
  auto* target = frame.target;
  verify(frame);
  std::memcpy(target + frame.written, frame.data + frame.written, header.payload_bytes - frame.written);
  trace_.frame(event_queue_.now(), "take", from, self, header, frame.checksum);
  report_sent(frame);
  drop_frame(key);
  sink.received(from, header, {target, header.payload_bytes, 0});
}

void Network::give_view(uint64_t key, Sink& sink) {
  auto& frame = frame_at(key);
  if (!settings_.single_copy) {
    verify(frame);
    own_payload(frame);
    report_sent(frame);
  }
  trace_.frame(event_queue_.now(), "lend", frame.from, frame.to, frame.header, frame.checksum);
  frame.state = State::viewed;
  const auto from = frame.from;
  const auto header = frame.header;
  sink.received(from, header, {frame.data, header.payload_bytes, key + 1});
}

void Network::release(PeerIndex self, const View& view) {
  auto* frame = view.handle == 0 ? nullptr : find(view.handle - 1);
  if (frame == nullptr || frame->state != State::viewed || frame->to != self) {
    return violation(concat("rank ", self, " releases a view that it does not hold"));
  }
  report_sent(*frame);
  leave_queue(*frame);
  drop_frame(view.handle - 1);
}

}  // namespace unisono::sim
