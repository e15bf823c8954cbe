#include "engine/control_messages.h"

#include <iterator>
#include <span>
#include <utility>

namespace unisono {

void ControlMessages::send_control(PeerIndex to, std::shared_ptr<Bytes> message) {
  FrameHeader header;
  header.kind = FrameKind::control;
  header.payload_bytes = static_cast<uint32_t>(message->size());
  send(to, header, std::move(message));
}

void ControlMessages::cancel(PeerIndex to, const std::shared_ptr<Bytes>& payload) {
  auto& p = peers_[to];
  std::erase_if(p.waiting, [&](const auto& message) { return message.second == payload; });
  // The numbers of group and operation are those of no frame, so no receive buffer is taken back.
  constexpr Cancellation none{.mask = UINT64_MAX, .group = UINT32_MAX, .operation = UINT64_MAX};
  for (auto at = in_flight_.begin(); at != in_flight_.end();) {
    const bool cancelled = at->second == payload && p.lost.ok();
    if (cancelled) {
      auto what = none;
      what.match = at->first;
      p.route->cancel(what);
    }
    at = cancelled ? in_flight_.erase(at) : std::next(at);
  }
}

void ControlMessages::send_goodbye(PeerIndex to, uint32_t epoch) {
  FrameHeader header;
  header.kind = FrameKind::goodbye;
  header.epoch = epoch;
  if (peers_[to].lost.ok()) peers_[to].route->send(to, header, {}, 0);
}

void ControlMessages::send(PeerIndex to, FrameHeader header, std::shared_ptr<Bytes> payload) {
  auto& p = peers_[to];
  if (!p.lost.ok()) return;
  if (p.route->credit(to) == 0) {
    if (header.kind != FrameKind::failed) return void(p.waiting.emplace_back(header, std::move(payload)));
    // First request that the peer copies out and returns its zero-copy views of this rank's slots. While the peer waits for the
    // operation that this failure ends, it may hold all these slots. The failure itself is sent without credit.
    if (p.route->slot_bytes() != 0) {
      auto request = header;
      request.kind = FrameKind::credit;
      request.amount = request.payload_bytes = 0;
      p.route->send(to, request, {}, 0);
    }
  }
  const auto id = event_id(control_slot, 0, 0) | (next_id_++ & 0xFFFFFFFFFFFFull);
  const std::span<const std::byte> bytes(*payload);
  in_flight_[id] = payload;
  if (p.route->send(to, header, bytes, id)) in_flight_.erase(id);
}

void ControlMessages::on_credit(PeerIndex peer) {
  auto& p = peers_[peer];
  while (!p.waiting.empty() && p.route->credit(peer) > 0) {
    auto [header, payload] = std::move(p.waiting.front());
    p.waiting.pop_front();
    send(peer, header, std::move(payload));
  }
}

}  // namespace unisono
