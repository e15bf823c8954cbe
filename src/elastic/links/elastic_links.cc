// The connections, queues and event loop of ElasticLinks. elastic_links_life.cc makes and ends links, and sends and receives
// their frames.
#include "elastic/links/elastic_links.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace unisono {
namespace {

constexpr Nanos idle_check_period = 1 * second;  // how often idle links are searched
// A link whose host has acknowledged nothing for this long is out.
constexpr Nanos out_after = 250 * millisecond;

}  // namespace

JobKey job_key_of(const std::string& run_id, const TlsContext* tls) {
  JobKey job{};
  const auto run = std::as_bytes(std::span(run_id));
  if (tls != nullptr) {
    const auto derived = tls->key(0).derive("unisono elastic run", run);
    std::memcpy(job.data(), derived.data(), job.size());
    return job;
  }
  constexpr std::string_view context = "unisono job";
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, job.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(context.data()), context.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(run.data()), run.size());
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(job.data()), job.size());
  return job;
}

Result<std::unique_ptr<ElasticLinks>> ElasticLinks::make(const LinksOptions& options) {
  if (sodium_init() < 0) return Status(Code::unavailable, "elastic run: libsodium finds no random device");
  auto transport = TcpTransport::make(
      {.self = options.self, .interface = options.interface, .port = options.port, .tls = options.tls, .shares_port = false});
  if (!transport.ok()) return transport.status();
  std::unique_ptr<ElasticLinks> links(new ElasticLinks(options));
  links->transport_ = std::move(*transport);
  links->transport_->accept_inbound(*links);
  links->transport_->set_job(job_key_of(options.run_id, options.tls.get()));
  return links;
}

// Connections ---------------------------------------------------------------------------------------------------------

ElasticConnection* ElasticLinks::find(const PeerId& id) const {
  const auto known = by_id_.find(id);
  return known == by_id_.end() ? nullptr : at(known->second);
}

// Adds a connection to the peer. If only the address is known yet, `id` is PeerId{}.
ElasticConnection& ElasticLinks::add_connection(const PeerId& id) {
  PeerIndex index = static_cast<PeerIndex>(connections_.size());
  if (free_.empty()) {
    connections_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  connections_[index] = std::make_unique<ElasticConnection>();
  auto& connection = *connections_[index];
  connection.index = index;
  connection.serial = next_serial_++;
  connection.id = id;
  if (id == PeerId{}) ++unidentified_;
  else by_id_[id] = index;
  return connection;
}

// Deletes the connection. If it had a link, this must already be closed or reported as lost.
void ElasticLinks::forget(ElasticConnection& connection) {
  drop_queue(connection);
  if (connection.id == PeerId{}) {
    --unidentified_;
  } else if (const auto known = by_id_.find(connection.id); known != by_id_.end() && known->second == connection.index) {
    by_id_.erase(known);
  }
  free_.push_back(connection.index);
  connections_[connection.index].reset();
}

void ElasticLinks::touch(ElasticConnection& connection) {
  if (!std::exchange(connection.due, true)) due_.push_back(connection.index);
}

std::string ElasticLinks::label(const ElasticConnection& connection) {
  if (connection.id == PeerId{}) return connection.address;
  constexpr char digits[] = "0123456789abcdef";
  std::string text = "peer ";
  for (int shift = 60; shift >= 32; shift -= 4) text += digits[connection.id.low >> shift & 15];
  return text;
}

void ElasticLinks::know(const PeerId& peer, const std::vector<std::string>& addresses, bool dialable) {
  if (peer == options_.self || peer == PeerId{}) return;
  auto* connection = find(peer);
  if (connection == nullptr) {
    if (by_id_.size() >= options_.peers_max) return;
    connection = &add_connection(peer);
  }
  connection->known = true;
  connection->closing = connection->over = false;
  const bool may_dial_now = dialable && !std::exchange(connection->dialable, dialable);
  connection->addresses.clear();
  for (const auto& address : addresses) {
    if (parse_tcp_endpoint(address).ok()) connection->addresses.push_back(address);
  }
  if (may_dial_now && connection->phase == LinkPhase::up) transport_->dial_back(connection->index);
}

bool ElasticLinks::enqueue(ElasticConnection& connection, SharedMessage message, Nanos now) {
  UNISONO_CHECK(message.rest.size() == 0 || (message.head.size() > 0 && message.head.size() <= first_piece_bytes_max));
  const size_t cost = message.size() + overhead_bytes;
  if (message.size() > message_bytes_max || connection.waiting_bytes + cost > options_.queue_bytes_max) return false;
  connection.waiting_bytes += cost;
  connection.last_used = now;
  connection.queue.push_back(std::move(message));
  return true;
}

bool ElasticLinks::send(const PeerId& peer, SharedMessage message, Nanos now) {
  auto* connection = find(peer);
  if (connection == nullptr || connection->closing || connection->broken) return false;
  const bool can_dial = connection->dialable && !connection->addresses.empty();
  // There is no link, or it is ending and takes no new messages. Only if the peer can be dialled is a new link possible.
  if ((connection->phase == LinkPhase::none || connection->sent_parting || connection->received_parting) && !can_dial)
    return false;
  if (!enqueue(*connection, std::move(message), now)) return false;
  if (connection->phase == LinkPhase::none) {
    connection->wants_link = true;
    touch(*connection);
  } else {
    pump(*connection);
  }
  return true;
}

bool ElasticLinks::send_to_address(const std::string& address, SharedBuffer message, Nanos now) {
  if (!parse_tcp_endpoint(address).ok()) return false;
  const auto same = [&](const auto& connection) {
    return connection && connection->id == PeerId{} && connection->address == address && !connection->over;
  };
  if (unidentified_ > 0) {
    const auto asked = std::find_if(connections_.begin(), connections_.end(), same);
    if (asked != connections_.end()) return enqueue(**asked, std::move(message), now);
  }
  if (unidentified_ >= addresses_max || message.size() > message_bytes_max) return false;
  auto& connection = add_connection(PeerId{});
  connection.address = address;
  connection.addresses = {address};
  connection.dialable = connection.wants_link = true;
  touch(connection);
  return enqueue(connection, std::move(message), now);
}

bool ElasticLinks::credit(const PeerId& peer) {
  auto* connection = find(peer);
  if (connection == nullptr) return false;
  if (connection->waiting_bytes < options_.bulk_bytes) return true;
  connection->credit_refused = true;
  return false;
}

bool ElasticLinks::linked(const PeerId& peer) const {
  const auto* connection = find(peer);
  return connection != nullptr && connection->phase == LinkPhase::up && !connection->sent_parting &&
         !connection->received_parting;
}

bool ElasticLinks::is_out(const PeerId& peer) const {
  const auto* connection = find(peer);
  return connection != nullptr && connection->phase == LinkPhase::up &&
         (transport_->is_reconnecting(connection->index) || transport_->is_host_silent(connection->index, out_after));
}

void ElasticLinks::close(const PeerId& peer) {
  auto* connection = find(peer);
  if (connection == nullptr) return;
  connection->closing = true;
  connection->loss.reset();
  touch(*connection);
}

void ElasticLinks::close_all() {
  for (auto& connection : connections_) {
    if (!connection) continue;
    connection->closing = true;
    connection->loss.reset();
    touch(*connection);
    if (connection->id != PeerId{}) continue;
    // If the process is not identified yet, its connection is closed at once, without parting.
    if (connection->phase == LinkPhase::connecting) transport_->close(connection->index);
    connection->phase = LinkPhase::none;
    connection->wants_link = false;
  }
}

bool ElasticLinks::draining() const {
  if (transport_->draining() || !due_.empty()) return true;
  return std::any_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    return connection &&
           (connection->waiting_bytes > 0 || connection->closing || connection->sent_parting || connection->received_parting);
  });
}

void ElasticLinks::drop_queue(ElasticConnection& connection) {
  for (const auto& message : connection.queue) connection.waiting_bytes -= message.size() + overhead_bytes;
  counters_.dropped_messages += connection.queue.size();
  connection.queue.clear();
}

// Subtracts `bytes` from waiting_bytes, because the transport has written them. If credit() has returned false and would return
// true now, reports credit.
void ElasticLinks::settle(ElasticConnection& connection, size_t bytes) {
  connection.waiting_bytes -= bytes;
  if (connection.closing && connection.waiting_bytes == 0) touch(connection);
  if (!connection.credit_refused || connection.waiting_bytes >= options_.bulk_bytes || connection.phase != LinkPhase::up)
    return;
  connection.credit_refused = false;
  events_.push_back({.kind = Event::Kind::credit, .peer = connection.id, .address = {}, .why = {}});
}

// Event loop ----------------------------------------------------------------------------------------------------------

bool ElasticLinks::poll(Nanos now, ElasticSink& sink) {
  UNISONO_CHECK(sink_ == nullptr);
  sink_ = &sink;
  now_ = now;
  if (now >= next_check_) check_deadlines(now);
  bool any = act(now);
  any |= transport_->poll(now, *this);
  any |= act(now);
  any |= notify(sink);
  sink_ = nullptr;
  return any;
}

bool ElasticLinks::act(Nanos now) {
  bool any = false;
  // Connections that are added to due_ while the loop runs are handled, too. The loop ends, because no connection adds itself
  // again.
  for (size_t i = 0; i < due_.size(); ++i) {
    auto* connection = at(due_[i]);
    if (connection == nullptr || !connection->due) continue;
    connection->due = false;
    act_on(*connection, now);
    any = true;
  }
  due_.clear();
  return any;
}

void ElasticLinks::act_on(ElasticConnection& connection, Nanos now) {
  if (connection.over) return forget(connection);
  if (connection.broken) {
    transport_->abort(connection.index);
    const auto why = *std::exchange(connection.broken, std::nullopt);
    return end_link(connection, why);
  }
  if (connection.sent_parting && connection.received_parting && now >= connection.parting_until) {
    transport_->close(connection.index);
    return end_link(connection, {});
  }
  if (connection.wants_link && connection.phase == LinkPhase::none) return dial(connection, now);
  if (!connection.closing) return;
  if (connection.phase == LinkPhase::none) return forget(connection);
  if (connection.phase == LinkPhase::up && connection.waiting_bytes == 0) send_parting(connection, now);
}

void ElasticLinks::dial(ElasticConnection& connection, Nanos now) {
  connection.wants_link = false;
  LinkRequest request;
  request.peer = connection.index;
  request.id = connection.id;
  request.label = label(connection);
  request.endpoints = connection.addresses;
  request.dial = true;
  request.fail_if_refused = true;
  request.deadline = now + (connection.loss ? std::min(options_.dial_timeout, redial_timeout) : options_.dial_timeout);
  if (connection.loss) {
    // After a loss, dials only the host of the previous link. At the peer's other addresses, other processes may listen. They
    // would refuse the link, and the peer would wrongly count as dead.
    const auto there = transport_->remote(connection.index);
    const auto elsewhere = [&](const std::string& address) { return !parse_tcp_endpoint(address)->same_host(there); };
    std::erase_if(request.endpoints, elsewhere);
    if (request.endpoints.empty()) request.endpoints = connection.addresses;
  }
  ++counters_.dials;
  if (auto status = transport_->add_peer(request); !status.ok()) return fail_connection(connection, status, false);
  connection.phase = LinkPhase::connecting;
  connection.dialled = true;
}

void ElasticLinks::check_deadlines(Nanos now) {
  next_check_ = never;
  for (auto& connection : connections_) {
    if (!connection) continue;
    if (now >= connection->parting_until) {
      if (!(connection->sent_parting && connection->received_parting))
        connection->broken = Status(Code::peer_lost, label(*connection) + ": did not confirm the end of the link in time");
      touch(*connection);
    } else {
      next_check_ = std::min(next_check_, connection->parting_until);
    }
  }
  if (linked_ > options_.links_kept_max) {
    close_idle_links(now);
    next_check_ = std::min(next_check_, now + idle_check_period);
  }
}

void ElasticLinks::close_idle_links(Nanos now) {
  std::vector<ElasticConnection*> idle;
  size_t staying = linked_;
  for (auto& connection : connections_) {
    if (!connection || connection->phase != LinkPhase::up) continue;
    const bool parting = connection->sent_parting || connection->received_parting;
    if (parting) --staying;
    // If a peer cannot be dialled, its link is kept, because the peer would be unreachable without it.
    if (parting || !connection->dialable || connection->waiting_bytes > 0) continue;
    if (now - connection->last_used >= options_.idle_close) idle.push_back(connection.get());
  }
  std::sort(idle.begin(), idle.end(),
            [](const auto* a, const auto* b) { return std::pair(a->last_used, a->index) < std::pair(b->last_used, b->index); });
  for (size_t i = 0; i < idle.size() && staying > options_.links_kept_max + i; ++i) {
    ++counters_.links_idled;
    send_parting(*idle[i], now);
  }
}

bool ElasticLinks::notify(ElasticSink& sink) {
  const auto events = std::exchange(events_, {});
  for (const auto& event : events) {
    switch (event.kind) {
      case Event::Kind::lost: sink.lost(event.peer, event.why, event.refused); break;
      case Event::Kind::address_failed: sink.address_failed(event.address, event.why); break;
      case Event::Kind::credit: sink.credit(event.peer); break;
    }
  }
  return !events.empty();
}

Nanos ElasticLinks::next_deadline() const {
  if (!due_.empty() || !events_.empty()) return 0;
  return std::min(transport_->next_deadline(), next_check_);
}

bool ElasticLinks::arm() { return due_.empty() && events_.empty() && transport_->arm(); }

ElasticLinkCounters ElasticLinks::counters() const {
  auto counters = counters_;
  counters.refused_connections = transport_->counters().refused_connections;
  return counters;
}

std::string ElasticLinks::last_refusal() const {
  const auto connection = transport_->last_refusal();
  return last_refused_message_ + (last_refused_message_.empty() || connection.empty() ? "" : "; ") + connection;
}

std::string ElasticLinks::describe(const PeerId& peer) const {
  const auto* connection = find(peer);
  if (connection == nullptr) return "not known";
  switch (connection->phase) {
    case LinkPhase::none: return connection->known ? "tcp, no link" : "tcp, no link and no address";
    case LinkPhase::connecting: return "tcp, connecting";
    case LinkPhase::up: break;
  }
  return transport_->describe(connection->index);
}

}  // namespace unisono
