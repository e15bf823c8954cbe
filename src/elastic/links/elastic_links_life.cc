// How ElasticLinks makes links, sends and receives their frames, ends links in order, and handles losses.
#include <cstring>
#include <utility>

#include "elastic/links/elastic_links.h"

namespace unisono {
namespace {

// Returns true if all header fields that elastic frames do not use are 0. `confirmed` belongs to the transport.
bool is_plain(const FrameHeader& header) {
  return header.kind == FrameKind::elastic && header.codec == 0 && header.epoch == 0 && header.group == 0 &&
         header.sender == 0 && header.descriptor == 0 && header.operation == 0 && header.chunk == 0 && header.slice == 0 &&
         header.amount == 0;
}

bool is_known(uint16_t kind) {
  return kind == static_cast<uint16_t>(ElasticFrame::message) || kind == static_cast<uint16_t>(ElasticFrame::parting) ||
         kind == static_cast<uint16_t>(ElasticFrame::first_piece);
}

}  // namespace

// Making --------------------------------------------------------------------------------------------------------------

bool ElasticLinks::admit(LinkRequest& inbound) {
  auto* connection = find(inbound.id);
  if (connection == nullptr) {
    if (by_id_.size() >= options_.peers_max) return false;
    connection = &add_connection(inbound.id);
  }
  connection->wants_link = connection->dialled = false;
  connection->phase = LinkPhase::connecting;
  inbound.peer = connection->index;
  inbound.label = label(*connection);
  return true;
}

void ElasticLinks::answered(PeerIndex peer, const PeerId& id, bool goes_on) {
  auto* asked = at(peer);
  if (asked == nullptr) return;
  auto* known = find(id);
  if (id == options_.self) {
    fail_connection(*asked, Status(Code::unavailable, asked->address + ": this process itself listens there"), false);
    asked->over = true;
    return touch(*asked);
  }
  if (!goes_on) {
    // The peer already has a link. The messages that waited for the address are passed to that link.
    for (auto& message : std::exchange(asked->queue, {})) {
      asked->waiting_bytes -= message.size() + overhead_bytes;
      if (known == nullptr || !enqueue(*known, std::move(message), now_)) ++counters_.dropped_messages;
    }
    if (known != nullptr) pump(*known);
    asked->over = true;
    return touch(*asked);
  }
  // The connection that was dialled becomes the peer's connection. It takes over the settings and the queue of the peer's old
  // connection.
  --unidentified_;
  asked->id = id;
  if (known != nullptr) {
    asked->known = known->known;
    asked->dialable = known->dialable;
    asked->closing = known->closing;
    asked->credit_refused = known->credit_refused;
    asked->loss = std::move(known->loss);
    if (known->known) asked->addresses = known->addresses;
    for (const auto& message : known->queue)
      // Messages that are in the transport are not moved: they still count at the old connection.
      asked->waiting_bytes += message.size() + overhead_bytes;
    asked->queue.insert(asked->queue.begin(), std::make_move_iterator(known->queue.begin()),
                        std::make_move_iterator(known->queue.end()));
    known->queue.clear();
    known->id = PeerId{};
    known->known = false;
    ++unidentified_;
    known->over = true;
    touch(*known);
  }
  by_id_[id] = peer;
}

void ElasticLinks::on_connected(ElasticConnection& connection) {
  ++linked_;
  ++counters_.links_made;
  connection.address.clear();
  connection.sent_parting = connection.received_parting = false;
  connection.last_used = now_;
  if (linked_ > options_.links_kept_max && next_check_ == never) next_check_ = now_ + options_.idle_close;
  if (auto loss = std::exchange(connection.loss, std::nullopt)) {
    drop_queue(connection);
    connection.credit_refused = false;
    events_.push_back({.kind = Event::Kind::lost, .peer = connection.id, .address = {}, .why = std::move(*loss)});
  }
  connection.phase = LinkPhase::up;
  if (connection.dialable) transport_->dial_back(connection.index);
  pump(connection);
  if (connection.closing) touch(connection);
}

// Sending -------------------------------------------------------------------------------------------------------------

void ElasticLinks::pump(ElasticConnection& connection) {
  while (connection.phase == LinkPhase::up && !connection.queue.empty() && !connection.sent_parting && !connection.broken &&
         transport_->credit(connection.index) > 0) {
    auto message = std::move(connection.queue.front());
    connection.queue.pop_front();
    ++counters_.sent_messages;
    counters_.sent_bytes += message.size();
    const size_t bytes = message.size() + overhead_bytes;
    if (message.rest.size() == 0) {
      send_frame(connection, ElasticFrame::message, std::move(message.head), bytes);
    } else {
      send_frame(connection, ElasticFrame::first_piece, std::move(message.head), 0);
      send_frame(connection, ElasticFrame::message, std::move(message.rest), bytes);
    }
  }
}

void ElasticLinks::send_frame(ElasticConnection& connection, ElasticFrame kind, SharedBuffer payload, size_t bytes) {
  FrameHeader header;
  header.kind = FrameKind::elastic;
  header.round = static_cast<uint16_t>(kind);
  const auto id = next_flight_++;
  if (transport_->send(connection.index, header, payload.view(), id)) return settle(connection, bytes);
  flights_[id] = {connection.index, connection.serial, bytes, std::move(payload)};
}

void ElasticLinks::sent(uint64_t id) {
  const auto flight = flights_.extract(id);
  if (flight.empty()) return;
  auto* connection = at(flight.mapped().index);
  if (connection != nullptr && connection->serial == flight.mapped().serial) settle(*connection, flight.mapped().bytes);
}

void ElasticLinks::credit(PeerIndex peer) {
  auto* connection = at(peer);
  if (connection == nullptr) return;
  if (connection->phase == LinkPhase::connecting) on_connected(*connection);
  else pump(*connection);
}

// Receiving -----------------------------------------------------------------------------------------------------------

std::byte* ElasticLinks::receive_buffer(PeerIndex from, const FrameHeader& header) {
  auto* connection = at(from);
  if (connection == nullptr || connection->broken || header.kind != FrameKind::elastic) return nullptr;
  const auto& first_piece = connection->first_piece;
  connection->receive_buffer = SharedBuffer::make(first_piece.size() + header.payload_bytes);
  if (first_piece.size() > 0) std::memcpy(connection->receive_buffer.data(), first_piece.data(), first_piece.size());
  return connection->receive_buffer.data() + first_piece.size();
}

void ElasticLinks::received(PeerIndex from, const FrameHeader& header, const View& view) {
  if (view.handle != 0) {
    // The transport had the whole payload already, so it has not asked for a buffer. (Or it asked, and there was none: then the
    // connection is broken, and there is none now either.)
    if (auto* const buffer = receive_buffer(from, header)) std::memcpy(buffer, view.data, view.bytes);
    transport_->release(view);
  }
  auto* connection = at(from);
  if (connection == nullptr || connection->broken) return;
  auto payload = std::exchange(connection->receive_buffer, {});
  if (connection->phase == LinkPhase::connecting) on_connected(*connection);
  if (!is_plain(header) || !is_known(header.round)) return refuse(*connection, "a frame that no elastic run sends");
  on_frame(*connection, header, std::move(payload));
}

void ElasticLinks::on_frame(ElasticConnection& connection, const FrameHeader& header, SharedBuffer payload) {
  const auto kind = static_cast<ElasticFrame>(header.round);
  const size_t begun = std::exchange(connection.first_piece, {}).size();
  if (connection.received_parting) return refuse(connection, "a message after the parting");
  if (begun > 0 && (kind != ElasticFrame::message || payload.size() <= begun))
    return refuse(connection, "the first piece of a message without the second");
  if (kind == ElasticFrame::first_piece) {
    if (payload.size() == 0 || payload.size() > first_piece_bytes_max)
      return refuse(connection, "the first piece of a message is empty or has too many bytes");
    connection.first_piece = std::move(payload);
    return;
  }
  if (kind == ElasticFrame::parting) {
    if (payload.size() > 0) return refuse(connection, "a parting with a payload");
    connection.received_parting = true;
    // If this side has parted before, everything has arrived in both directions. The side that parted first closes the link.
    if (connection.sent_parting) {
      connection.parting_until = now_;
      touch(connection);
    } else {
      send_parting(connection, now_);
    }
    return;
  }
  connection.last_used = now_;
  ++counters_.received_messages;
  counters_.received_bytes += payload.size();
  const auto id = connection.id;
  sink_->received(id, std::move(payload));
}

void ElasticLinks::refuse(ElasticConnection& connection, const char* what) {
  ++counters_.refused_messages;
  connection.broken = Status(Code::corrupt, label(connection) + ": " + what + "; " + transport_->describe(connection.index));
  last_refused_message_ = connection.broken->message();
  touch(connection);
}

// Ending --------------------------------------------------------------------------------------------------------------

void ElasticLinks::send_parting(ElasticConnection& connection, Nanos now) {
  if (connection.sent_parting) return;
  send_frame(connection, ElasticFrame::parting, {}, 0);
  connection.sent_parting = true;
  connection.parting_until = now + parting_timeout;
  next_check_ = std::min(next_check_, connection.parting_until);
}

void ElasticLinks::lost(PeerIndex peer, const Status& why, PeerFate) {
  auto* connection = at(peer);
  if (connection == nullptr || connection->phase == LinkPhase::none) return;
  if (connection->phase == LinkPhase::connecting) {
    connection->phase = LinkPhase::none;
    return fail_connection(*connection, why, connection->dialled && why.code() == Code::peer_lost);
  }
  const bool parted = connection->sent_parting && connection->received_parting;
  end_link(*connection, parted ? Status() : connection->broken.value_or(why));
}

// Handles the end of a link that was up. If the link ended in order, `why` is ok.
void ElasticLinks::end_link(ElasticConnection& connection, const Status& why) {
  if (connection.phase != LinkPhase::none) --linked_;
  connection.phase = LinkPhase::none;
  connection.parting_until = never;
  connection.sent_parting = connection.received_parting = false;
  connection.receive_buffer = connection.first_piece = {};
  const bool suspicious = std::exchange(connection.broken, std::nullopt).has_value() || why.code() == Code::corrupt;
  const bool can_dial = connection.dialable && !connection.addresses.empty();
  if (why.ok()) {
    if (!connection.queue.empty() && can_dial) connection.wants_link = true;
    else if (!connection.queue.empty())
      fail_connection(connection, Status(Code::peer_lost, label(connection) + ": has ended the link, and cannot be dialled"),
                      false);
    else if (!connection.known) connection.over = true;
    return touch(connection);
  }
  ++counters_.links_lost;
  if (connection.closing || suspicious || !can_dial || now_ < connection.next_redial)
    return fail_connection(connection, why, false);
  connection.next_redial = now_ + redial_timeout;
  connection.loss = why;
  connection.wants_link = true;
  touch(connection);
}

// Called when there is no link and none is being made. Drops the queue. Reports to the sink that the peer is lost, or that the
// address has failed.
void ElasticLinks::fail_connection(ElasticConnection& connection, const Status& why, bool refused) {
  drop_queue(connection);
  connection.credit_refused = connection.wants_link = connection.dialled = false;
  if (!connection.address.empty()) {
    const bool no_use = why.code() == Code::invalid;
    events_.push_back({.kind = Event::Kind::address_failed,
                       .peer = {},
                       .address = std::exchange(connection.address, {}),
                       .why = Status(no_use ? Code::invalid : Code::unavailable, why.message())});
  }
  if (connection.id != PeerId{} && !connection.closing) {
    auto text = why.message();
    if (connection.loss) text = connection.loss->message() + "; then " + text;
    events_.push_back(
        {.kind = Event::Kind::lost, .peer = connection.id, .address = {}, .why = Status(why.code(), text), .refused = refused});
  }
  connection.loss.reset();
  connection.over = connection.over || !connection.known;
  touch(connection);
}

}  // namespace unisono
