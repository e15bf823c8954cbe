// The functions of the UDP transport that send datagrams, and that decide when a path's rate is measured.
#include "transports/udp/udp_transport.h"

namespace unisono {

void UdpTransport::send_unpaced(Link& link, Nanos now) {
  auto& port = *ports_[link.at.port];
  (void)link.flow->send_unpaced(now, static_cast<uint32_t>(port.socket->own_drops()), port.outbox);
  update_pacer(link, now);
}

void UdpTransport::update_pacer(Link& link, Nanos now) {
  auto& flow = *link.flow;
  if (link.overflowed) return;
  if (pacer_.rate(flow.destination()) != flow.rate()) pacer_.set_rate(flow.destination(), flow.rate(), now);
  all_.keep_below(pacer_.largest_rate());
  pacer_.set_rank_rate(all_.rate(), now);
  pacer_.want(flow.destination(), ports_[link.at.port]->outbox.blocked() ? 0 : flow.next_datagram_bytes(now));
}

bool UdpTransport::send_paced(Nanos now) {
  // All datagrams of one call carry the same time, `now`, so the call must be short.
  constexpr size_t datagrams_max = 256, bytes_max = 512u << 10;
  size_t count = 0, total = 0;
  for (; count < datagrams_max && total < bytes_max; ++count) {
    const auto next = pacer_.next(now);
    if (!next) {
      hold_back(now);
      break;
    }
    auto* link = by_destination_[*next];
    auto& outbox = ports_[link->at.port]->outbox;
    const auto bytes = outbox.credit() > 0 || outbox.flush() ? link->flow->send_next(now, outbox) : 0;
    if (bytes == 0) {
      pacer_.want(*next, 0);
      continue;
    }
    total += bytes;
    pacer_.sent(*next, bytes, now);
    pacer_.want(*next, link->flow->next_datagram_bytes(now));
  }
  return count > 0;
}

// Data waits for the pacer. Therefore the rates matter now, and one more path is measured. Several trains at once would measure
// what they leave each other, and would delay the data that waits.
void UdpTransport::hold_back(Nanos now) {
  Link* unmeasured = nullptr;
  bool measures = false;
  for (auto* link : live_) {
    if (link->state != LinkState::up) continue;
    measures |= link->flow->measures_rate();
    if (!pacer_.wants(link->flow->destination())) continue;
    link->flow->held_back(now);
    all_.held_back(now);
    if (unmeasured == nullptr && !link->flow->rate_asked()) unmeasured = link;
  }
  if (unmeasured != nullptr && !measures) unmeasured->flow->measure_rate(now);
}

bool UdpTransport::flush() {
  bool all = true;
  for (const auto& port : ports_) all &= port->outbox.empty() || port->outbox.flush();
  return all;
}

}  // namespace unisono
