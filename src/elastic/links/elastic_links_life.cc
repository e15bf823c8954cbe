// One link from its making to its end: greetings, frames with their tags, the parting, and what a loss leads to.
#include <cstring>
#include <utility>

#include "elastic/links/elastic_links.h"

namespace unisono {
namespace {

// A frame of an elastic link has nothing in the fields that only groups know.
bool is_plain(const FrameHeader& header) {
  return header.kind == FrameKind::elastic && header.codec == 0 && header.epoch == 0 && header.group == 0 && header.sender == 0 && header.contributors == 0 &&
         header.descriptor == 0;
}

bool has_tag(const FrameHeader& header) { return header.operation != 0 || header.chunk != 0 || header.slice != 0 || header.amount != 0; }

void write_tag(const MessageTag& tag, FrameHeader& header) {
  header.chunk = static_cast<uint32_t>(tag.low);
  header.slice = static_cast<uint32_t>(tag.low >> 32);
  header.amount = tag.high;
}

MessageTag read_tag(const FrameHeader& header) { return {header.chunk | uint64_t{header.slice} << 32, header.amount}; }

}  // namespace

// Making ------------------------------------------------------------------------------------------------------------

bool ElasticLinks::admit(LinkRequest& guest) {
  auto* contact = find(guest.id);
  if (contact == nullptr) {
    if (by_id_.size() >= options_.peers_max) return false;
    contact = &add_contact(guest.id);
  }
  contact->wants_link = contact->dialled = false;
  contact->phase = LinkPhase::connecting;
  guest.peer = contact->index;
  guest.label = label(*contact);
  return true;
}

void ElasticLinks::answered(PeerIndex peer, const PeerId& id, bool goes_on) {
  auto* asked = at(peer);
  if (asked == nullptr) return;
  auto* known = find(id);
  if (id == options_.self) {
    failed(*asked, Status(Code::unavailable, asked->address + ": this process itself listens there"), false);
    asked->over = true;
    return touch(*asked);
  }
  if (!goes_on) {
    // There is a link: it takes what waits.
    for (auto& message : std::exchange(asked->queue, {})) {
      asked->waiting_bytes -= message.size() + overhead_bytes;
      if (known == nullptr || !enqueue(*known, std::move(message), now_)) ++counters_.dropped_messages;
    }
    if (known != nullptr) pump(*known);
    asked->over = true;
    return touch(*asked);
  }
  // The dial goes on as that peer's, and takes over what is known of it.
  --asked_;
  asked->id = id;
  if (known != nullptr) {
    asked->known = known->known;
    asked->dialable = known->dialable;
    asked->closing = known->closing;
    asked->room_refused = known->room_refused;
    asked->loss = std::move(known->loss);
    if (known->known) asked->addresses = known->addresses;
    for (const auto& message : known->queue) asked->waiting_bytes += message.size() + overhead_bytes;  // what is in flight stays the other's
    asked->queue.insert(asked->queue.begin(), std::make_move_iterator(known->queue.begin()), std::make_move_iterator(known->queue.end()));
    known->queue.clear();
    known->id = PeerId{};
    known->known = false;
    ++asked_;
    known->over = true;
    touch(*known);
  }
  by_id_[id] = peer;
}

void ElasticLinks::made(ElasticContact& contact) {
  ++linked_;
  ++counters_.links_made;
  contact.address.clear();
  contact.said_parting = contact.heard_parting = false;
  contact.last_used = now_;
  if (linked_ > options_.links_kept_max && next_clock_ == never) next_clock_ = now_ + options_.idle_close;
  if (auto loss = std::exchange(contact.loss, std::nullopt)) {
    drop_queue(contact);
    contact.room_refused = false;
    events_.push_back({.kind = Event::Kind::lost, .peer = contact.id, .address = {}, .why = std::move(*loss)});
  }
  if (!key_.authenticates()) return came_up(contact);
  contact.phase = LinkPhase::greeting;
  contact.greeting_until = now_ + options_.dial_timeout;
  next_clock_ = std::min(next_clock_, contact.greeting_until);
  contact.nonce = RunKey::draw_nonce();
  send_frame(contact, ElasticFrame::greeting, SharedBuffer::copy(contact.nonce), 0);
}

void ElasticLinks::came_up(ElasticContact& contact) {
  contact.phase = LinkPhase::up;
  contact.greeting_until = never;
  pump(contact);
  if (contact.closing) touch(contact);
}

// Sending -----------------------------------------------------------------------------------------------------------

void ElasticLinks::pump(ElasticContact& contact) {
  while (contact.phase == LinkPhase::up && !contact.queue.empty() && !contact.said_parting && !contact.broken && transport_->room(contact.index) > 0) {
    auto message = std::move(contact.queue.front());
    contact.queue.pop_front();
    ++counters_.sent_messages;
    counters_.sent_bytes += message.size();
    const size_t bytes = message.size() + overhead_bytes;
    if (message.rest.size() == 0) {
      send_frame(contact, ElasticFrame::message, std::move(message.head), bytes);
    } else {
      send_frame(contact, ElasticFrame::beginning, std::move(message.head), 0);
      send_frame(contact, ElasticFrame::message, std::move(message.rest), bytes);
    }
  }
}

void ElasticLinks::send_frame(ElasticContact& contact, ElasticFrame kind, SharedBuffer payload, size_t bytes) {
  FrameHeader header;
  header.kind = FrameKind::elastic;
  header.round = static_cast<uint16_t>(kind);
  if (key_.authenticates() && kind != ElasticFrame::greeting) {
    header.operation = contact.out.next();
    write_tag(contact.out.seal(header.round, payload.view()), header);
  }
  const auto id = next_flight_++;
  if (transport_->send(contact.index, header, payload.view(), id)) return settle(contact, bytes);
  flights_[id] = {contact.index, contact.serial, bytes, std::move(payload)};
}

void ElasticLinks::sent(uint64_t id) {
  const auto flight = flights_.extract(id);
  if (flight.empty()) return;
  auto* contact = at(flight.mapped().index);
  if (contact != nullptr && contact->serial == flight.mapped().serial) settle(*contact, flight.mapped().bytes);
}

void ElasticLinks::room(PeerIndex peer) {
  auto* contact = at(peer);
  if (contact == nullptr) return;
  if (contact->phase == LinkPhase::connecting) made(*contact);
  else pump(*contact);
}

// Receiving ---------------------------------------------------------------------------------------------------------

std::byte* ElasticLinks::place(PeerIndex from, const FrameHeader& header) {
  auto* contact = at(from);
  if (contact == nullptr || contact->broken || header.kind != FrameKind::elastic) return nullptr;
  if (key_.authenticates() && contact->phase != LinkPhase::up && header.payload_bytes > sizeof(LinkNonce)) {
    refuse(*contact, "a message before the greeting");  // no memory is given to who may be anybody
    return nullptr;
  }
  const auto& beginning = contact->beginning;
  contact->landing = SharedBuffer::make(beginning.size() + header.payload_bytes);
  if (beginning.size() > 0) std::memcpy(contact->landing.data(), beginning.data(), beginning.size());
  return contact->landing.data() + beginning.size();
}

void ElasticLinks::received(PeerIndex from, const FrameHeader& header, const View& view) {
  // Lent is only what place() wanted nowhere.
  if (view.handle != 0) transport_->release(view);
  auto* contact = at(from);
  if (contact == nullptr || contact->broken) return;
  auto payload = std::exchange(contact->landing, {});
  if (contact->phase == LinkPhase::connecting) made(*contact);
  if (!is_plain(header) || header.round > static_cast<uint16_t>(ElasticFrame::beginning)) return refuse(*contact, "no frame of an elastic run");
  landed(*contact, header, std::move(payload));
}

void ElasticLinks::landed(ElasticContact& contact, const FrameHeader& header, SharedBuffer payload) {
  const auto kind = static_cast<ElasticFrame>(header.round);
  const size_t begun = std::exchange(contact.beginning, {}).size();
  if (kind == ElasticFrame::greeting) {
    LinkEnd self{options_.self, contact.nonce}, other{contact.id, {}};
    if (contact.phase != LinkPhase::greeting || payload.size() != other.nonce.size()) return refuse(contact, "a greeting that is none");
    std::memcpy(other.nonce.data(), payload.data(), payload.size());
    contact.out = key_.seal(self, other);
    contact.in = key_.seal(other, self);
    return came_up(contact);
  }
  if (contact.phase != LinkPhase::up) return refuse(contact, "a message before the greeting");
  if (contact.heard_parting) return refuse(contact, "a message after the parting");
  if (begun > 0 && (kind != ElasticFrame::message || payload.size() <= begun)) return refuse(contact, "a beginning without its end");
  if (key_.authenticates()) {
    if (!contact.in.open(header.round, header.operation, read_tag(header), payload.view().subspan(begun))) return refuse(contact, "a message that is not the next one of who knows the run key");
  } else if (has_tag(header)) {
    return refuse(contact, "a message with a tag, in a run without a key");
  }
  if (kind == ElasticFrame::beginning) {
    if (payload.size() == 0 || payload.size() > beginning_bytes_max) return refuse(contact, "a beginning of no or too many bytes");
    contact.beginning = std::move(payload);
    return;
  }
  if (kind == ElasticFrame::parting) {
    if (payload.size() > 0) return refuse(contact, "a parting with more to say");
    contact.heard_parting = true;
    // Who spoke first closes: all that the other side said has arrived.
    if (contact.said_parting) {
      contact.parting_until = now_;
      touch(contact);
    } else {
      say_parting(contact, now_);
    }
    return;
  }
  contact.last_used = now_;
  ++counters_.received_messages;
  counters_.received_bytes += payload.size();
  const auto id = contact.id;
  sink_->received(id, std::move(payload));
}

void ElasticLinks::refuse(ElasticContact& contact, const char* what) {
  ++counters_.refused_messages;
  contact.broken = Status(Code::corrupt, label(contact) + ": " + what + "; " + transport_->describe(contact.index));
  last_refused_message_ = contact.broken->message();
  touch(contact);
}

// Ending ------------------------------------------------------------------------------------------------------------

void ElasticLinks::say_parting(ElasticContact& contact, Nanos now) {
  if (contact.said_parting) return;
  send_frame(contact, ElasticFrame::parting, {}, 0);
  contact.said_parting = true;
  contact.parting_until = now + parting_patience;
  next_clock_ = std::min(next_clock_, contact.parting_until);
}

void ElasticLinks::lost(PeerIndex peer, const Status& why) {
  auto* contact = at(peer);
  if (contact == nullptr || contact->phase == LinkPhase::none) return;
  if (contact->phase == LinkPhase::connecting) {
    contact->phase = LinkPhase::none;
    return failed(*contact, why, contact->dialled && why.code() == Code::peer_lost);
  }
  const bool parted = contact->said_parting && contact->heard_parting;
  ended(*contact, parted ? Status() : contact->broken.value_or(why));
}

// The link that was up is gone. ok: in order.
void ElasticLinks::ended(ElasticContact& contact, const Status& why) {
  if (contact.phase != LinkPhase::none) --linked_;
  contact.phase = LinkPhase::none;
  contact.parting_until = contact.greeting_until = never;
  contact.said_parting = contact.heard_parting = false;
  contact.landing = contact.beginning = {};
  contact.out = contact.in = {};
  const bool suspicious = std::exchange(contact.broken, std::nullopt).has_value() || why.code() == Code::corrupt;
  const bool can_dial = contact.dialable && !contact.addresses.empty();
  if (why.ok()) {
    if (!contact.queue.empty() && can_dial) contact.wants_link = true;
    else if (!contact.queue.empty()) failed(contact, Status(Code::peer_lost, label(contact) + ": has ended the link, and cannot be dialled"), false);
    else if (!contact.known) contact.over = true;
    return touch(contact);
  }
  ++counters_.links_lost;
  if (contact.closing || suspicious || !can_dial || now_ < contact.next_redial) return failed(contact, why, false);
  contact.next_redial = now_ + redial_patience;
  contact.loss = why;
  contact.wants_link = true;
  touch(contact);
}

// There is no link, and none in the making: who waits for one hears of it.
void ElasticLinks::failed(ElasticContact& contact, const Status& why, bool refused) {
  drop_queue(contact);
  contact.room_refused = contact.wants_link = contact.dialled = false;
  if (!contact.address.empty()) {
    const bool no_use = why.code() == Code::invalid;
    events_.push_back({.kind = Event::Kind::address_failed, .peer = {}, .address = std::exchange(contact.address, {}),
                       .why = Status(no_use ? Code::invalid : Code::unavailable, why.message())});
  }
  if (contact.id != PeerId{} && !contact.closing) {
    auto text = why.message();
    if (contact.loss) text = contact.loss->message() + "; then " + text;
    events_.push_back({.kind = Event::Kind::lost, .peer = contact.id, .address = {}, .why = Status(why.code(), text), .refused = refused});
  }
  contact.loss.reset();
  contact.over = contact.over || !contact.known;
  touch(contact);
}

}  // namespace unisono
