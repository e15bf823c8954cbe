// How a TcpTransport handles inbound connections, and how it chooses between two connections of the same pair of processes.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "transports/tcp/tcp_transport.h"

namespace unisono {

TcpAddress TcpTransport::remote(PeerIndex peer) const {
  const auto* link = find(peer);
  return link == nullptr ? TcpAddress() : link->remote();
}

TcpAcceptor::Decision TcpTransport::decide(const TcpInbound& inbound, Nanos waited) {
  const auto& hello = inbound.hello;
  if (!job_) return {.wait = true};
  if (hello.key != *job_) return {.refusal = TcpRefusal::other_job};
  if (registry_ != nullptr && hello.to == PeerId{}) return {.refusal = TcpRefusal::introduction};
  if (hello.to != options_.self) return {.refusal = TcpRefusal::other_process};
  if (hello.attempt == 0) return {.refusal = TcpRefusal::stale};  // it only asks whether this process is here
  if (registry_ != nullptr && hello.stream_count != 1) return {.refusal = TcpRefusal::stream};
  if (auto* leaving = find_leaving(hello.from, hello.session)) {
    if (leaving->stream_count() != hello.stream_count) return {.refusal = TcpRefusal::stream};
    return leaving->decide(hello, waited, now_, *sink_);
  }
  if (const auto* departure = find_departure(hello.from, hello.session)) {
    const bool has = hello.stream_index < departure->positions.size();
    return {.refusal = TcpRefusal::left, .position = has ? departure->positions[hello.stream_index] : 0};
  }
  const auto known = by_id_.find(hello.from);
  if (known == by_id_.end()) {
    if (hello.resumes != 0) return {.refusal = TcpRefusal::no_session};
    if (registry_ == nullptr) return {.wait = true};
    if (const auto decision = admit(hello); decision.refusal != TcpRefusal::none) return decision;
    return decide(inbound, waited);
  }
  auto& link = *links_[known->second];
  // Wait until `lost` is reported, so that the peer can be added again.
  if (link.state() == LinkState::lost)
    return hello.resumes != 0 ? Decision{.refusal = TcpRefusal::no_session} : Decision{.wait = true};
  const bool another = link.state() == LinkState::up && hello.session != link.session_number();
  if (registry_ != nullptr && hello.resumes == 0 && (another || link.state() == LinkState::connecting)) {
    if (const auto decision = choose_connection(hello, link, waited)) return *decision;
  } else if (registry_ == nullptr && another && hello.resumes == 0 && link.reconnecting()) {
    return replace_link(link, waited);
  } else if (registry_ == nullptr && link.state() == LinkState::connecting && link.request().dial) {
    // A hello that resumes a link is for one that this process has given up before.
    return {.refusal = hello.resumes != 0 ? TcpRefusal::no_session : TcpRefusal::not_expected};
  }
  if (link.stream_count() != 0 && link.stream_count() != hello.stream_count) return {.refusal = TcpRefusal::stream};
  link.make_streams(hello.stream_count);
  return link.decide(hello, waited, now_, *sink_);
}

TcpLink* TcpTransport::find_leaving(const PeerId& id, uint64_t session) const {
  const auto found = std::find_if(leaving_.begin(), leaving_.end(), [&](const auto& leaving) {
    return leaving.link->request().id == id && leaving.link->session_number() == session;
  });
  return found == leaving_.end() ? nullptr : found->link.get();
}

const TcpDeparture* TcpTransport::find_departure(const PeerId& id, uint64_t session) const {
  const auto found = std::find_if(departures_.begin(), departures_.end(), [&](const auto& departure) {
    return departure.peer == id && departure.session == session && now_ < departure.until;
  });
  return found == departures_.end() ? nullptr : &*found;
}

TcpAcceptor::Decision TcpTransport::admit(const TcpSessionHello& hello) {
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

// Chooses between an inbound connection and a link or dial to the same peer. Both processes choose the same connection, without
// a message about it. The process with the larger id withdraws its own dial, and accepts the peer's dial. The process with the
// smaller id keeps the peer's dial waiting until the peer withdraws it. While a connection to the peer is up, a process does
// not accept a dial from this peer. Therefore no process withdraws a link that is up at its peer.
std::optional<TcpAcceptor::Decision> TcpTransport::choose_connection(const TcpSessionHello& hello, TcpLink& link,
                                                                     Nanos waited) {
  if (link.state() == LinkState::up) {
    return replace_link(link, waited);
  }
  if (!link.request().dial) return std::nullopt;
  if (options_.self < hello.from && waited < options_.accept_other_after)
    return Decision{.wait = true, .recheck_after = options_.accept_other_after};
  link.withdraw_dial();
  return std::nullopt;
}

// The peer asks for a new link, so it has given up the present one, or ends it. In a group, its last frames may be on the way,
// also over a connection that is still to come. A peer of an elastic run ends a link with a handshake.
TcpAcceptor::Decision TcpTransport::replace_link(TcpLink& link, Nanos waited) {
  if (waited < options_.replace_after && (registry_ == nullptr || !link.reconnecting()))
    return {.wait = true, .recheck_after = options_.replace_after};
  link.lose(Status(Code::peer_lost, link.request().label + ": the peer has connected again; " + link.describe()),
            PeerFate::unknown, sent_);
  count_streams();
  return {.wait = true};
}

void TcpTransport::take_connection(const TcpInbound& inbound, std::unique_ptr<StreamSocket> socket) {
  auto* leaving = find_leaving(inbound.hello.from, inbound.hello.session);
  const auto known = by_id_.find(inbound.hello.from);
  UNISONO_CHECK(leaving != nullptr || known != by_id_.end());
  auto& link = leaving != nullptr ? *leaving : *links_[known->second];
  const bool was_up = link.state() == LinkState::up;
  // If the connection cannot be watched, it is closed, and the dialler starts over.
  (void)link.accepted(inbound, std::move(socket), *watcher_, now_);
  if (!was_up && link.state() == LinkState::up) mark_up(link);
}

void TcpTransport::identify_peer(TcpLink& link, const PeerId& id) {
  const auto peer = link.request().peer;
  const bool goes_on = id != options_.self && !by_id_.contains(id);
  if (goes_on) {
    link.identify_peer(id);
    by_id_[id] = peer;
    link.dialer->accept_peer();
    check_control_ = true;
  } else {
    finished_dials_.push_back(peer);
  }
  registry_->answered(peer, id, goes_on);
}

}  // namespace unisono
