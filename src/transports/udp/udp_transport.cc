#include "transports/udp/udp_transport.h"

#include <algorithm>
#include <cerrno>

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/concat.h"
#include "transports/udp/udp_endpoint.h"
#include "transports/udp/udp_socket.h"
#include "wire/checksum.h"

namespace unisono {
namespace {

constexpr PeerIndex peers_max = 1u << 16;
// Each address has a socket of its own, and a host with many bridges has hundreds of addresses.
constexpr size_t sockets_max = 8;
constexpr size_t scratch_bytes_min = 9'216, scratch_bytes_max = 65'536;
constexpr uint32_t window_assumed = 256u << 10;
// Makes a socket lose datagrams on purpose. Each socket gets its own seed, so that the sockets lose datagrams independently.
std::unique_ptr<DatagramSocket> with_injected_loss(std::unique_ptr<DatagramSocket> socket, InjectedLoss loss, size_t index) {
  if (loss.per_mille == 0) return socket;
  loss.seed = mix64(loss.seed + index);
  return std::make_unique<LosingSocket>(std::move(socket), loss);
}

// A peer may have 1/8 of the receive buffer in flight: the kernel counts a datagram about twice, and peers may send together.
constexpr uint32_t buffer_share = 8;

Result<std::vector<InterfaceAddress>> chosen_interfaces(const UdpOptions& options) {
  auto all = list_interfaces();
  if (!all.ok()) return all.status();
  auto chosen = select_interface(std::move(*all), options.interface);
  if (!chosen.ok()) return Status(chosen.status().code(), "udp: " + chosen.status().message());
  return best_addresses(std::move(*chosen), sockets_max);
}

Result<std::vector<std::unique_ptr<UdpSocket>>> open_sockets(const UdpOptions& options) {
  auto chosen = chosen_interfaces(options);
  if (!chosen.ok()) return chosen.status();
  std::vector<std::unique_ptr<UdpSocket>> made;
  Status failure(Code::unavailable, "udp: this host has no address");
  for (const auto& entry : *chosen) {
    if (made.size() == sockets_max) break;
    auto address = entry.address;
    address.set_port(options.port);
    auto socket = UdpSocket::make({.address = address});
    if (socket.ok()) made.push_back(std::move(*socket));
    else failure = socket.status();
  }
  if (made.empty()) return failure;
  return made;
}

}  // namespace

UdpTransport::Port::Port(UdpTransport& transport, std::unique_ptr<DatagramSocket> with, size_t number)
    : owner(transport),
      socket(std::move(with)),
      outbox(*socket, std::clamp<size_t>(transport.options_.datagram_bytes_max, scratch_bytes_min, scratch_bytes_max)),
      index(number) {}

UdpTransport::UdpTransport(const UdpOptions& options)
    : options_(options),
      window_bytes_(options.window_bytes != 0 ? options.window_bytes : window_assumed),
      pool_(options.pool),
      pacer_({.rate_limit = options.rate_limit}, 0),
      all_({.limit = options.rate_limit}) {}

Result<DatagramSockets> UdpTransport::sockets(const UdpOptions& options) {
  auto made = open_sockets(options);
  if (!made.ok()) return made.status();
  DatagramSockets result;
  for (auto& socket : *made) result.push_back(with_injected_loss(std::move(socket), options.loss, result.size()));
  return result;
}

Result<std::unique_ptr<UdpTransport>> UdpTransport::make(const UdpOptions& options) {
  if (options.tls && options.auth == DatagramAuth::checksum) {
    return Status(Code::invalid,
                  "udp: datagram_checksum (UNISONO_DATAGRAM_CHECKSUM) was asked for, but there is a key, which protects "
                  "datagrams better; set one of the two");
  }
  auto made = open_sockets(options);
  if (!made.ok()) return made.status();
  auto with = options;
  DatagramSockets sockets;
  auto buffer = static_cast<uint32_t>(INT32_MAX);
  for (auto& socket : *made) {
    buffer = std::min(buffer, static_cast<uint32_t>(std::max(1, socket->receive_buffer_bytes())));
    sockets.push_back(with_injected_loss(std::move(socket), options.loss, sockets.size()));
  }
  if (with.window_bytes == 0) with.window_bytes = buffer / buffer_share;
  std::unique_ptr<UdpTransport> transport(new UdpTransport(with));
  if (auto all = list_interfaces(); all.ok()) transport->interfaces_ = std::move(*all);
  for (auto& socket : sockets)
    transport->ports_.push_back(std::make_unique<Port>(*transport, std::move(socket), transport->ports_.size()));
  if (auto status = transport->watch_ports(); !status.ok()) return status;
  return transport;
}

std::unique_ptr<UdpTransport> UdpTransport::from_sockets(const UdpOptions& options, DatagramSockets sockets) {
  std::unique_ptr<UdpTransport> transport(new UdpTransport(options));
  for (auto& socket : sockets)
    transport->ports_.push_back(std::make_unique<Port>(*transport, std::move(socket), transport->ports_.size()));
  (void)transport->watch_ports();
  return transport;
}

Status UdpTransport::watch_ports() {
  for (const auto& port : ports_) {
    if (port->socket->wait_handle() < 0) return {};  // this is a virtual socket, on which nobody sleeps
  }
  epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  timer_ = Descriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  bool watched = epoll_.open() && timer_.open() && watch(epoll_.get(), timer_.get(), EPOLLIN, UINT64_MAX);
  for (const auto& port : ports_) watched = watched && watch(epoll_.get(), port->socket->wait_handle(), EPOLLIN, port->index);
  if (watched) return {};
  epoll_.reset();
  return Status(Code::unavailable, "udp: cannot make an epoll descriptor: " + error_text(errno));
}

UdpTransport::~UdpTransport() {
  // Sends one goodbye to each peer, without waiting for an answer. If a peer misses the goodbye, it will find the port closed.
  const auto send_goodbye = [&](const Link& link) {
    auto& outbox = ports_[link.at.port]->outbox;
    if (outbox.credit() == 0) outbox.flush();
    link.flow->send_last_goodbye(now_, outbox);
  };
  for (const auto* link : live_) {
    if (link->state == LinkState::up) send_goodbye(*link);
  }
  for (const auto& link : drains_) send_goodbye(*link);
  flush();
}

// Connector ---------------------------------------------------------------------------------------------------------

std::vector<std::string> UdpTransport::endpoints() const {
  std::vector<std::string> result;
  for (const auto& port : ports_) result.push_back(udp_endpoint(port->socket->address()));
  return result;
}

Status UdpTransport::add_peer(const LinkRequest& request) {
  const auto invalid = [&](const std::string& why) { return Status(Code::invalid, "udp: " + request.label + ": " + why); };
  if (request.peer >= peers_max) return invalid(concat("peer index ", request.peer, " is too large"));
  if (request.id == options_.self) return invalid("is this process itself");
  if (by_id_.contains(request.id)) return invalid("a link to this peer exists already");
  const auto* old = find(request.peer);
  if (old != nullptr && (old->state != LinkState::lost || old->lost))
    return invalid("its index is in use for " + old->request.label);
  auto link = std::make_unique<Link>();
  link->request = request;
  if (old != nullptr && old->request.id == request.id)
    link->answered_at = old->flow != nullptr ? old->at.address : old->answered_at;
  if (request.dial) {
    if (hello_keys_.empty()) return invalid("the job's key is not set, so no peer can be dialled");
    for (const auto& endpoint : request.endpoints) {
      if (!endpoint.starts_with("udp://")) continue;  // this is an endpoint of another transport
      auto address = parse_udp_endpoint(endpoint);
      if (!address.ok()) return invalid(address.status().message());
      for (const auto& target : dial_addresses(*address, interfaces_)) {
        for (const auto& port : ports_) {
          const auto& own = port->socket->address();
          if (own.family() == target.family() && own.is_loopback() == target.is_loopback())
            link->candidates.push_back({target, port->index});
        }
      }
    }
    if (link->candidates.empty()) return invalid("has no endpoint that can be dialled");
  }
  close(request.peer);
  if (request.peer >= links_.size()) links_.resize(request.peer + size_t{1});
  live_.push_back(link.get());
  by_id_[request.id] = request.peer;
  links_[request.peer] = std::move(link);
  return {};
}

LinkState UdpTransport::state(PeerIndex peer) const {
  const auto* link = find(peer);
  return link == nullptr ? LinkState::unknown : link->state;
}

const UdpFlow* UdpTransport::flow(PeerIndex peer) const {
  const auto* link = find(peer);
  return link == nullptr ? nullptr : link->flow.get();
}

// Transport: sending ------------------------------------------------------------------------------------------------

size_t UdpTransport::credit(PeerIndex peer) {
  auto* link = find(peer);
  if (link == nullptr || link->state == LinkState::lost) return 0;
  if (link->state == LinkState::up && link->flow->frames().count() < options_.queue_frames_max) {
    return options_.queue_frames_max - link->flow->frames().count();
  }
  link->credit_refused = true;
  return 0;
}

Slot UdpTransport::acquire(std::span<const PeerIndex>, size_t, bool) { return {}; }

void UdpTransport::commit(const Slot& slot, const FrameHeader&) { UNISONO_CHECK(!slot); }

void UdpTransport::abandon(const Slot& slot) { UNISONO_CHECK(!slot); }

bool UdpTransport::send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  UNISONO_CHECK(payload.size() <= payload_bytes_max);
  auto* link = find(peer);
  if (link == nullptr || link->state != LinkState::up || link->overflowed) return true;
  auto& frames = link->flow->frames();
  if (frames.count() + 1 >= options_.queue_frames_max) link->credit_refused = true;
  if (frames.count() >= options_.queue_frames_max + options_.extra_frames_max) {
    link->overflowed = true;
    return true;
  }
  auto sealed = header;
  sealed.payload_bytes = static_cast<uint32_t>(payload.size());
  if (options_.payload_checksum) {
    sealed.flags |= frame_flag_payload_checksum;
    sealed.payload_checksum = crc32c(payload.data(), payload.size());
  }
  seal_frame(sealed);
  const bool over = frames.push(sealed, payload, id);
  if (!polling_ && options_.clock) {
    refresh();
    update_pacer(*link, now_);
    send_paced(now_);
    flush();
  }
  return over;
}

void UdpTransport::cancel(const Cancellation& what) {
  const auto matches = [&](uint64_t id) { return what.concerns_send(id); };
  for (auto* link : live_) {
    if (!link->flow) continue;
    // The cancelled frame must be sent to its end, but there was no memory to copy it. Therefore the link must end.
    if (!link->flow->frames().cancel(what.match, what.mask)) {
      link->overflowed = true;
      pacer_.want(link->flow->destination(), 0);
    }
    if (what.concerns_frames_from(link->request.peer)) link->flow->reassembler().cancel(what.group, what.operation);
    std::erase_if(link->flow->sent(), matches);
  }
  std::erase_if(sent_, matches);
}

void UdpTransport::close(PeerIndex peer) {
  auto* link = find(peer);
  if (link == nullptr) return;
  ++changes_;
  const auto at = std::find(live_.begin(), live_.end(), link);
  if (at != live_.end()) {
    live_.erase(at);
    by_id_.erase(link->request.id);
  }
  const bool was_up = link->state == LinkState::up;
  link->state = LinkState::lost;
  link->lost.reset();
  if (was_up && link->flow->frames().detach_senders(sent_)) {
    sent_.insert(sent_.end(), link->flow->sent().begin(), link->flow->sent().end());
    link->flow->sent().clear();
    link->flow->reassembler().reset();
    link->drain = true;
    drains_.push_back(std::move(links_[peer]));
  } else {
    retire(*link);
    if (polling_) closed_links_.push_back(std::move(links_[peer]));
  }
  links_[peer].reset();
}

void UdpTransport::retire(Link& link) {
  for (const auto& port : ports_) {
    port->outbox.forget(link.sending);
    if (link.flow) port->outbox.forget(link.flow->sending());
  }
  if (!link.flow) return;
  auto& flow = *link.flow;
  retired_.sent_frames += flow.frames().sent_frames();
  retired_.sent_bytes += flow.frames().sent_bytes();
  retired_.received_frames += flow.received_frames();
  retired_.received_bytes += flow.received_bytes();
  flow.frames().clear(sent_);
  contexts_.erase(context_key(flow.group().run_id, flow.group().epoch));
  pacer_.want(flow.destination(), 0);
  by_destination_[flow.destination()] = nullptr;
}

// Transport: driving ------------------------------------------------------------------------------------------------

bool UdpTransport::poll(Nanos now, Sink& sink) {
  UNISONO_CHECK(!polling_);
  polling_ = true;
  sink_ = &sink;
  now_ = std::max(now_, now);
  bool any = receive(sink);
  refresh();
  any |= step_links(now_);
  any |= send_paced(now_);
  flush();
  any |= report(sink);
  any |= report_streams();
  // Send now what the upcalls have queued, because the caller may not call poll() again for a while.
  any |= send_paced(now_);
  flush();
  sink_ = nullptr;
  polling_ = false;
  closed_links_.clear();
  closed_groups_.clear();
  return any;
}

void UdpTransport::refresh() {
  if (options_.clock) now_ = std::max(now_, options_.clock());
}

// With several sockets, it is cheaper to ask the kernel once which of them have datagrams than to try to read each of them.
void UdpTransport::find_ready_ports() {
  const bool asks = ports_.size() > 1 && epoll_.open();
  for (const auto& port : ports_) port->ready = !asks || !port->drained;
  if (!asks) return;
  std::array<epoll_event, sockets_max + 1> events;  // one more for the timer
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (const auto& event : std::span(events).first(static_cast<size_t>(std::max(count, 0)))) {
    if (event.data.u64 < ports_.size()) ports_[event.data.u64]->ready = true;
  }
}

bool UdpTransport::receive(Sink& sink) {
  constexpr size_t datagrams_max = 256;
  bool any = false;
  find_ready_ports();
  for (const auto& port : ports_) {
    if (!port->ready) continue;
    now_is_stale_ = true;
    const auto outcome = port->socket->receive(*port, datagrams_max);
    port->drained = outcome.drained;
    any |= outcome.datagrams > 0;
    if (sink.has_enough()) break;
  }
  return any;
}

bool UdpTransport::step_links(Nanos now) {
  bool any = false;
  for (auto* link : live_) {
    if (link->state == LinkState::connecting || (link->handshake && link->state == LinkState::up)) step_handshake(*link, now);
    if (link->state != LinkState::up) continue;
    any |= link->flow->step(now);
    notice_size(*link);
    if (link->overflowed) {
      lose(*link,
           Status(Code::peer_lost,
                  concat("the peer confirms nothing, and ", link->flow->frames().count(), " frames are queued for it")),
           PeerFate::unknown);
    } else if (!link->flow->end().ok()) {
      lose(*link, link->flow->end(), link->flow->fate());
    } else {
      send_unpaced(*link, now);
    }
  }
  step_drains(now);
  return any;
}

void UdpTransport::step_drains(Nanos now) {
  std::erase_if(drains_, [&](auto& link) {
    auto& flow = *link->flow;
    if (link->drain_deadline == 0) link->drain_deadline = now + options_.drain;
    (void)flow.step(now);
    if (flow.frames().empty()) flow.start_goodbye(now);
    send_unpaced(*link, now);
    flow.sent().clear();
    if (now < link->drain_deadline && !flow.goodbye_answered() && !flow.goodbye_abandoned(now) && flow.end().ok()) return false;
    if (flow.frames().count() > 0) flow.send_last_goodbye(now, ports_[link->at.port]->outbox);
    retire(*link);
    return true;
  });
}

bool UdpTransport::report(Sink& sink) {
  bool any = false;
  for (auto* link : live_) {
    if (!link->flow) continue;
    auto& link_sent = link->flow->sent();
    sent_.insert(sent_.end(), link_sent.begin(), link_sent.end());
    link_sent.clear();
  }
  if (!sent_.empty()) {
    any = true;
    reporting_.swap(sent_);
    for (size_t i = 0; i < reporting_.size(); ++i) sink.sent(reporting_[i]);
    reporting_.clear();
  }
  for (size_t i = 0; i < live_.size();) {
    auto* link = live_[i];
    const auto peer = link->request.peer;
    if (link->lost) {
      const auto why = *link->lost;
      const auto fate = link->fate;
      link->lost.reset();
      live_.erase(live_.begin() + static_cast<ptrdiff_t>(i));
      by_id_.erase(link->request.id);
      sink.lost(peer, why, fate);
      any = true;
      continue;
    }
    ++i;
    if (!link->credit_refused || link->state != LinkState::up || link->flow->frames().count() >= options_.queue_frames_max)
      continue;
    link->credit_refused = false;
    sink.credit(peer);
    any = true;
  }
  for (auto* link : live_) {
    if (link->state == LinkState::up) update_pacer(*link, now_);
  }
  return any;
}

Nanos UdpTransport::next_deadline() const {
  Nanos next = never;
  const auto consider = [&](Nanos at) { next = std::min(next, at); };
  bool blocked = false;
  for (const auto& port : ports_) blocked |= port->outbox.blocked();
  for (const auto* link : live_) {
    if (link->state == LinkState::connecting) consider(link->request.deadline);
    if (link->handshake) consider(link->handshake->next_deadline());
    else if (link->state == LinkState::connecting && link->request.dial) consider(now_);
    if (link->state == LinkState::up) consider(link->flow->next_deadline(now_));
  }
  for (const auto& link : drains_) {
    consider(link->flow->next_deadline(now_));
    consider(link->drain_deadline);
  }
  consider(const_cast<Pacer&>(pacer_).ready_at(now_));
  // A queue of this host is full, so nothing can be sent before it drains. Wait at least 50 us and at most 1 ms.
  return blocked ? std::max(std::min(next, now_ + millisecond), now_ + 50 * microsecond) : next;
}

bool UdpTransport::arm() {
  if (!sent_.empty() || epoll_.get() < 0) return false;
  for (const auto& port : ports_) {
    if (!port->drained) return false;
  }
  for (const auto* link : live_) {
    if (link->lost || link->overflowed || (link->flow && !link->flow->sent().empty())) return false;
    if (link->credit_refused && link->state == LinkState::up && link->flow->frames().count() < options_.queue_frames_max)
      return false;
  }
  const auto next = next_deadline();
  if (next <= now_) return false;
  // The timer wakes a caller that sleeps only on wait_handle(). No clock is read here, so the timer is late by the time that
  // has passed since the last poll().
  const auto wait = next == never ? 0 : std::min(next - now_, 60 * second);
  const itimerspec spec{.it_interval = {}, .it_value = {.tv_sec = wait / second, .tv_nsec = wait % second}};
  (void)::timerfd_settime(timer_.get(), 0, &spec, nullptr);
  epoll_event event;
  return ::epoll_wait(epoll_.get(), &event, 1, 0) <= 0;
}

}  // namespace unisono
