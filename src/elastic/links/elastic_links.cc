// Contacts, queues, and what poll() does besides moving bytes. A link's life is in elastic_links_life.cc.
#include "elastic/links/elastic_links.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace unisono {
namespace {

constexpr Nanos clock_period = 1 * second;  // how often idle links are looked for

}  // namespace

Result<std::unique_ptr<ElasticLinks>> ElasticLinks::make(const LinksOptions& options) {
  auto key = RunKey::make(options.run_id, options.run_key);
  if (!key.ok()) return key.status();
  auto transport = TcpTransport::make({.self = options.self, .interface = options.interface, .port = options.port});
  if (!transport.ok()) return transport.status();
  std::unique_ptr<ElasticLinks> links(new ElasticLinks(options, std::move(*key)));
  links->transport_ = std::move(*transport);
  links->transport_->welcome(*links);
  links->transport_->set_job(links->key_.job());
  return links;
}

// Contacts ----------------------------------------------------------------------------------------------------------

ElasticContact* ElasticLinks::find(const PeerId& id) const {
  const auto known = by_id_.find(id);
  return known == by_id_.end() ? nullptr : at(known->second);
}

// Of PeerId{}: who listens at an address is asked.
ElasticContact& ElasticLinks::add_contact(const PeerId& id) {
  PeerIndex index = static_cast<PeerIndex>(contacts_.size());
  if (free_.empty()) {
    contacts_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  contacts_[index] = std::make_unique<ElasticContact>();
  auto& contact = *contacts_[index];
  contact.index = index;
  contact.serial = next_serial_++;
  contact.id = id;
  if (id == PeerId{}) ++asked_;
  else by_id_[id] = index;
  return contact;
}

// Its link, if there was one, is closed or has been reported.
void ElasticLinks::forget(ElasticContact& contact) {
  drop_queue(contact);
  if (contact.id == PeerId{}) {
    --asked_;
  } else if (const auto known = by_id_.find(contact.id); known != by_id_.end() && known->second == contact.index) {
    by_id_.erase(known);
  }
  free_.push_back(contact.index);
  contacts_[contact.index].reset();
}

void ElasticLinks::touch(ElasticContact& contact) {
  if (!std::exchange(contact.due, true)) due_.push_back(contact.index);
}

std::string ElasticLinks::label(const ElasticContact& contact) {
  if (contact.id == PeerId{}) return contact.address;
  constexpr char digits[] = "0123456789abcdef";
  std::string text = "peer ";
  for (int shift = 60; shift >= 32; shift -= 4) text += digits[contact.id.low >> shift & 15];
  return text;
}

void ElasticLinks::know(const PeerId& peer, const std::vector<std::string>& addresses, bool dialable) {
  if (peer == options_.self || peer == PeerId{}) return;
  auto* contact = find(peer);
  if (contact == nullptr) {
    if (by_id_.size() >= options_.peers_max) return;
    contact = &add_contact(peer);
  }
  contact->known = true;
  contact->closing = contact->over = false;
  contact->dialable = dialable;
  contact->addresses.clear();
  for (const auto& address : addresses) {
    if (parse_tcp_endpoint(address).ok()) contact->addresses.push_back(address);
  }
}

bool ElasticLinks::enqueue(ElasticContact& contact, SharedMessage message, Nanos now) {
  UNISONO_CHECK(message.rest.size() == 0 || (message.head.size() > 0 && message.head.size() <= beginning_bytes_max));
  const size_t cost = message.size() + overhead_bytes;
  if (message.size() > message_bytes_max || contact.waiting_bytes + cost > options_.queue_bytes_max) return false;
  contact.waiting_bytes += cost;
  contact.last_used = now;
  contact.queue.push_back(std::move(message));
  return true;
}

bool ElasticLinks::send(const PeerId& peer, SharedMessage message, Nanos now) {
  auto* contact = find(peer);
  if (contact == nullptr || contact->closing || contact->broken) return false;
  const bool can_dial = contact->dialable && !contact->addresses.empty();
  // A link that is being closed in order takes nothing more, and only a dial brings another.
  if ((contact->phase == LinkPhase::none || contact->said_parting || contact->heard_parting) && !can_dial) return false;
  if (!enqueue(*contact, std::move(message), now)) return false;
  if (contact->phase == LinkPhase::none) {
    contact->wants_link = true;
    touch(*contact);
  } else {
    pump(*contact);
  }
  return true;
}

bool ElasticLinks::send_to_address(const std::string& address, SharedBuffer message, Nanos now) {
  if (!parse_tcp_endpoint(address).ok()) return false;
  const auto same = [&](const auto& contact) { return contact && contact->id == PeerId{} && contact->address == address && !contact->over; };
  if (asked_ > 0) {
    const auto asked = std::find_if(contacts_.begin(), contacts_.end(), same);
    if (asked != contacts_.end()) return enqueue(**asked, std::move(message), now);
  }
  if (asked_ >= addresses_max || message.size() > message_bytes_max) return false;
  auto& contact = add_contact(PeerId{});
  contact.address = address;
  contact.addresses = {address};
  contact.dialable = contact.wants_link = true;
  touch(contact);
  return enqueue(contact, std::move(message), now);
}

bool ElasticLinks::room(const PeerId& peer) {
  auto* contact = find(peer);
  if (contact == nullptr) return false;
  if (contact->waiting_bytes < options_.bulk_bytes) return true;
  contact->room_refused = true;
  return false;
}

bool ElasticLinks::linked(const PeerId& peer) const {
  const auto* contact = find(peer);
  return contact != nullptr && contact->phase == LinkPhase::up && !contact->said_parting && !contact->heard_parting;
}

void ElasticLinks::close(const PeerId& peer) {
  auto* contact = find(peer);
  if (contact == nullptr) return;
  contact->closing = true;
  contact->loss.reset();
  touch(*contact);
}

void ElasticLinks::close_all() {
  for (auto& contact : contacts_) {
    if (!contact) continue;
    contact->closing = true;
    contact->loss.reset();
    touch(*contact);
    if (contact->id != PeerId{}) continue;
    // Nothing is owed to whoever may answer at an address.
    if (contact->phase == LinkPhase::connecting) transport_->close(contact->index);
    contact->phase = LinkPhase::none;
    contact->wants_link = false;
  }
}

bool ElasticLinks::lingers() const {
  if (transport_->lingers() || !due_.empty()) return true;
  return std::any_of(contacts_.begin(), contacts_.end(), [](const auto& contact) {
    return contact && (contact->waiting_bytes > 0 || contact->closing || contact->said_parting || contact->heard_parting);
  });
}

void ElasticLinks::drop_queue(ElasticContact& contact) {
  for (const auto& message : contact.queue) contact.waiting_bytes -= message.size() + overhead_bytes;
  counters_.dropped_messages += contact.queue.size();
  contact.queue.clear();
}

// So much waits no more.
void ElasticLinks::settle(ElasticContact& contact, size_t bytes) {
  contact.waiting_bytes -= bytes;
  if (contact.closing && contact.waiting_bytes == 0) touch(contact);
  if (!contact.room_refused || contact.waiting_bytes >= options_.bulk_bytes || contact.phase != LinkPhase::up) return;
  contact.room_refused = false;
  events_.push_back({.kind = Event::Kind::room, .peer = contact.id, .address = {}, .why = {}});
}

// Driving -----------------------------------------------------------------------------------------------------------

bool ElasticLinks::poll(Nanos now, ElasticSink& sink) {
  UNISONO_CHECK(sink_ == nullptr);
  sink_ = &sink;
  now_ = now;
  if (now >= next_clock_) look_at_clocks(now);
  bool any = act(now);
  any |= transport_->poll(now, *this);
  any |= act(now);
  any |= tell(sink);
  sink_ = nullptr;
  return any;
}

bool ElasticLinks::act(Nanos now) {
  bool any = false;
  // What is added meanwhile is looked at, too; nothing adds itself again.
  for (size_t i = 0; i < due_.size(); ++i) {
    auto* contact = at(due_[i]);
    if (contact == nullptr || !contact->due) continue;
    contact->due = false;
    act_on(*contact, now);
    any = true;
  }
  due_.clear();
  return any;
}

void ElasticLinks::act_on(ElasticContact& contact, Nanos now) {
  if (contact.over) return forget(contact);
  if (contact.broken) {
    transport_->close(contact.index);
    const auto why = *std::exchange(contact.broken, std::nullopt);
    return ended(contact, why);
  }
  if (contact.said_parting && contact.heard_parting && now >= contact.parting_until) {
    transport_->close(contact.index);
    return ended(contact, {});
  }
  if (contact.wants_link && contact.phase == LinkPhase::none) return dial(contact, now);
  if (!contact.closing) return;
  if (contact.phase == LinkPhase::none) return forget(contact);
  if (contact.phase == LinkPhase::up && contact.waiting_bytes == 0) say_parting(contact, now);
}

void ElasticLinks::dial(ElasticContact& contact, Nanos now) {
  contact.wants_link = false;
  LinkRequest request;
  request.peer = contact.index;
  request.id = contact.id;
  request.label = label(contact);
  request.endpoints = contact.addresses;
  request.dial = true;
  request.give_up_if_refused = true;
  request.deadline = now + (contact.loss ? std::min(options_.dial_timeout, redial_patience) : options_.dial_timeout);
  if (contact.loss) {
    // Only there it was for certain: at other addresses of its own somebody else may be found, seen from here, and say nothing of it.
    const auto there = transport_->remote(contact.index);
    const auto elsewhere = [&](const std::string& address) { return !parse_tcp_endpoint(address)->same_host(there); };
    std::erase_if(request.endpoints, elsewhere);
    if (request.endpoints.empty()) request.endpoints = contact.addresses;
  }
  ++counters_.dials;
  if (auto status = transport_->add_peer(request); !status.ok()) return failed(contact, status, false);
  contact.phase = LinkPhase::connecting;
  contact.dialled = true;
}

void ElasticLinks::look_at_clocks(Nanos now) {
  next_clock_ = never;
  for (auto& contact : contacts_) {
    if (!contact) continue;
    if (now >= contact->greeting_until) {
      contact->broken = Status(Code::peer_lost, label(*contact) + ": has not said in time that it knows the run key");
      touch(*contact);
    } else {
      next_clock_ = std::min(next_clock_, contact->greeting_until);
    }
    if (now >= contact->parting_until) {
      if (!(contact->said_parting && contact->heard_parting)) contact->broken = Status(Code::peer_lost, label(*contact) + ": does not agree to end the link");
      touch(*contact);
    } else {
      next_clock_ = std::min(next_clock_, contact->parting_until);
    }
  }
  if (linked_ > options_.links_kept_max) {
    close_idle_links(now);
    next_clock_ = std::min(next_clock_, now + clock_period);
  }
}

void ElasticLinks::close_idle_links(Nanos now) {
  std::vector<ElasticContact*> idle;
  size_t staying = linked_;
  for (auto& contact : contacts_) {
    if (!contact || contact->phase != LinkPhase::up) continue;
    const bool parting = contact->said_parting || contact->heard_parting;
    if (parting) --staying;
    // Who cannot be dialled would be out of reach.
    if (parting || !contact->dialable || contact->waiting_bytes > 0) continue;
    if (now - contact->last_used >= options_.idle_close) idle.push_back(contact.get());
  }
  std::sort(idle.begin(), idle.end(), [](const auto* a, const auto* b) { return std::pair(a->last_used, a->index) < std::pair(b->last_used, b->index); });
  for (size_t i = 0; i < idle.size() && staying > options_.links_kept_max + i; ++i) {
    ++counters_.links_idled;
    say_parting(*idle[i], now);
  }
}

bool ElasticLinks::tell(ElasticSink& sink) {
  const auto events = std::exchange(events_, {});
  for (const auto& event : events) {
    switch (event.kind) {
      case Event::Kind::lost: sink.lost(event.peer, event.why, event.refused); break;
      case Event::Kind::address_failed: sink.address_failed(event.address, event.why); break;
      case Event::Kind::room: sink.room(event.peer); break;
    }
  }
  return !events.empty();
}

Nanos ElasticLinks::next_deadline() const {
  if (!due_.empty() || !events_.empty()) return 0;
  return std::min(transport_->next_deadline(), next_clock_);
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
  const auto* contact = find(peer);
  if (contact == nullptr) return "not known";
  switch (contact->phase) {
    case LinkPhase::none: return contact->known ? "tcp, no link" : "tcp, no link and no address";
    case LinkPhase::connecting: return "tcp, being connected";
    case LinkPhase::greeting:
    case LinkPhase::up: break;
  }
  return transport_->describe(contact->index);
}

}  // namespace unisono
