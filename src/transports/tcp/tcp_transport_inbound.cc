// Inbound connections of a TcpTransport, and the choice between two connections of one pair.
#include <utility>

#include "base/check.h"
#include "transports/tcp/tcp_transport.h"

namespace unisono {

TcpAddress TcpTransport::remote(PeerIndex peer) const {
  const auto* link = find(peer);
  return link == nullptr ? TcpAddress() : link->remote();
}

TcpAcceptor::Verdict TcpTransport::judge(const TcpHello& hello, Nanos waited) {
  if (!job_) return {.wait = true};
  if (hello.key != *job_) return {.refusal = TcpRefusal::other_job};
  if (registry_ != nullptr && hello.to == PeerId{}) return {.refusal = TcpRefusal::introduction};
  if (hello.to != options_.self) return {.refusal = TcpRefusal::other_process};
  if (registry_ != nullptr && hello.stream_count != 1) return {.refusal = TcpRefusal::stream};
  const auto known = by_id_.find(hello.from);
  if (known == by_id_.end()) return registry_ == nullptr ? Verdict{.wait = true} : admit(hello);
  auto& link = *links_[known->second];
  if (link.state() == LinkState::lost) return {.wait = true};  // until `lost` is reported and the peer is added again
  if (registry_ != nullptr) {
    if (const auto verdict = judge_rival(hello, link, waited)) return *verdict;
  } else {
    if (link.state() == LinkState::up) return {.refusal = TcpRefusal::duplicate};
    if (link.request().dial) return {.refusal = TcpRefusal::not_expected};
  }
  if (link.broken_while_connecting()) link.start_again();
  if (link.attached(hello.stream_index)) return {.refusal = TcpRefusal::duplicate};
  if (link.stream_count() != 0 && link.stream_count() != hello.stream_count) return {.refusal = TcpRefusal::stream};
  return {};
}

TcpAcceptor::Verdict TcpTransport::admit(const TcpHello& hello) {
  if (hello.from == PeerId{} || hello.from == options_.self) return {.refusal = TcpRefusal::not_expected};
  LinkRequest inbound;
  inbound.id = hello.from;
  inbound.deadline = now_ + options_.inbound_timeout;
  if (!registry_->admit(inbound)) return {.refusal = TcpRefusal::busy};
  inbound.dial = false;
  const auto added = add_peer(inbound);
  UNISONO_CHECK(added.ok());
  return {};
}

// Both sides decide alike without exchanging messages. The process with the larger id takes the smaller id's dial and withdraws
// its own. The process with the smaller id lets the other dial wait until it is withdrawn. A process takes a dial only if it
// has no other connection of the pair, so neither side withdraws a link that is up on the other.
std::optional<TcpAcceptor::Verdict> TcpTransport::judge_rival(const TcpHello& hello, TcpLink& link, Nanos waited) {
  if (link.state() == LinkState::up) {
    if (waited >= options_.replace_after) {
      link.lose(Status(Code::peer_lost, link.request().label + ": it has connected again; " + link.describe()), sent_);
      count_streams();
      return Verdict{.wait = true};
    }
    return Verdict{.wait = true, .again = options_.replace_after};
  }
  if (!link.request().dial) return std::nullopt;
  if (options_.self < hello.from && waited < options_.yield_after) return Verdict{.wait = true, .again = options_.yield_after};
  link.yield();
  return std::nullopt;
}

void TcpTransport::enter(const TcpHello& hello, Descriptor socket) {
  const auto known = by_id_.find(hello.from);
  UNISONO_CHECK(known != by_id_.end());
  auto& link = *links_[known->second];
  // If epoll refuses the socket, it is closed again, and the dialler starts over.
  if (!link.attach(hello.stream_index, hello.stream_count, std::move(socket), epoll_.get())) link.start_again();
  if (link.state() == LinkState::up) mark_up(link);
}

void TcpTransport::identify_peer(TcpLink& link, const PeerId& id) {
  const auto peer = link.request().peer;
  const bool goes_on = id != options_.self && !by_id_.contains(id);
  if (goes_on) {
    link.identify_peer(id);
    by_id_[id] = peer;
    link.dialer->go_on();
    check_control_ = true;
  } else {
    over_.push_back(peer);
  }
  registry_->answered(peer, id, goes_on);
}

}  // namespace unisono
