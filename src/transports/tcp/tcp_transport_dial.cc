// Where a TcpTransport dials, and what it says there.
#include <algorithm>

#include "transports/tcp/tcp_transport.h"

namespace unisono {

TcpDialRequest TcpTransport::dial_request(const TcpLink& link) const {
  TcpDialRequest dial;
  dial.hello.session = link.session_number();
  dial.hello.key = *job_;
  dial.hello.from = options_.self;
  dial.hello.to = link.request().id;
  if (listener_->listens()) {
    dial.hello.port = listener_->port();
    for (const auto& entry : listening_) {
      auto address = entry.address;
      address.set_port(listener_->port());
      if (!address.is_loopback() && !address.is_link_local()) dial.addresses.push_back(to_wire(address));
    }
  }
  dial.network = &network_;
  dial.tls = options_.tls;
  dial.key_may_differ = registry_ != nullptr;  // the members of a group have shown their keys at the rendezvous
  dial.watcher = control_.get();
  if (!options_.interface.empty()) {
    for (const auto& entry : listening_) dial.sources.push_back(entry.address);
  }
  return dial;
}

Result<std::unique_ptr<TcpDialer>> TcpTransport::make_dialer(const TcpLink& link) const {
  const auto& request = link.request();
  if (!job_) return Status(Code::invalid, "tcp: " + request.label + ": the job's key is not set, so no peer can be dialled");
  auto dial = dial_request(link);
  dial.hello.stream_count = static_cast<uint16_t>(options_.streams);
  for (const auto& endpoint : request.endpoints) {
    if (!endpoint.starts_with("tcp://")) continue;  // this is an endpoint of another transport
    auto address = parse_tcp_endpoint(endpoint);
    if (!address.ok()) return Status(Code::invalid, "tcp: " + request.label + ": " + address.status().message());
    for (const auto& target : dial_addresses(*address, interfaces_)) dial.candidates.push_back(target);
  }
  if (dial.candidates.empty()) return Status(Code::invalid, "tcp: " + request.label + ": has no endpoint that can be dialled");
  return std::make_unique<TcpDialer>(std::move(dial));
}

// Dials the stream's connection anew: at the address that worked last, where the peer says that it is, and where it was at
// first.
std::unique_ptr<TcpDialer> TcpTransport::make_redialer(const TcpLink& link, uint16_t stream, bool only_asks) const {
  auto dial = dial_request(link);
  const auto& session = link.stream(stream).session();
  dial.hello.stream_count = link.stream_count();
  dial.hello.resumes = session.resumes() ? 1 : 0;
  dial.only_stream = stream;
  dial.attempts_before = session.attempt();
  dial.only_asks = only_asks;
  const auto add = [&](const TcpAddress& address) {
    const auto same = [&](const TcpAddress& known) { return known.to_string() == address.to_string(); };
    if (std::none_of(dial.candidates.begin(), dial.candidates.end(), same)) dial.candidates.push_back(address);
  };
  for (const auto& address : link.last_addresses()) add(address);
  for (const auto& endpoint : link.request().endpoints) {
    const auto address = endpoint.starts_with("tcp://") ? parse_tcp_endpoint(endpoint) : Status(Code::invalid, "");
    if (!address.ok()) continue;
    for (const auto& target : dial_addresses(*address, interfaces_)) add(target);
  }
  return std::make_unique<TcpDialer>(std::move(dial));
}

void TcpTransport::members_linked() {
  for (const auto* link : live_) dial_back(link->request().peer);
}

void TcpTransport::dial_back(PeerIndex peer) {
  auto* link = find(peer);
  if (link == nullptr) return;
  dial_back_.add(*link);
  check_control_ = true;
}

}  // namespace unisono
