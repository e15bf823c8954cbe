// The functions of the UDP transport that begin and end links, and that find the link or group of a received datagram.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/concat.h"
#include "transports/udp/udp_endpoint.h"
#include "transports/udp/udp_transport.h"

namespace unisono {
namespace {

// This limit is used on loopback, too, although 64 KiB would fit there. With datagrams of 64 KiB, the sending rate would rise
// only slowly at first. Segmentation offload makes up for the smaller size.
constexpr uint32_t path_packet_bytes = 9'000;
constexpr uint32_t longest_datagram_bytes = 65'507;
// So many hellos must be refused where the peer has answered before, until it counts as gone.
constexpr uint64_t refusals_min = 3;

}  // namespace

// Links --------------------------------------------------------------------------------------------------------------

void UdpTransport::send_hello(Link& link, const Candidate& to) {
  const auto message = link.handshake->message();
  auto& outbox = ports_[to.port]->outbox;
  if (!message || (outbox.credit() == 0 && !outbox.flush())) return;
  auto* const payload = outbox.scratch();
  std::memcpy(payload, &message->hello, sizeof message->hello);
  std::copy(message->rest.begin(), message->rest.end(), payload + sizeof message->hello);
  outbox.add_sealed(to.address, message->header, {payload, sizeof message->hello + message->rest.size()}, link.sending);
}

void UdpTransport::step_handshake(Link& link, Nanos now) {
  if (link.state == LinkState::connecting && now >= link.request.deadline) {
    lose(link, unreachable(link, "cannot be reached in time"), PeerFate::unknown);
    return;
  }
  if (link.state == LinkState::connecting && link.request.fail_if_refused && link.refused_where_it_answered >= refusals_min) {
    lose(link, unreachable(link, "is gone"), PeerFate::ended);
    return;
  }
  if (!link.handshake) {
    if (hello_keys_.empty()) return;
    link.handshake.emplace(hello_keys_.front(), UdpHandshakeOptions{.self = options_.self,
                                                                    .peer = link.request.id,
                                                                    .dial = link.request.dial,
                                                                    .attempt = attempts_++,
                                                                    .window_bytes = window_bytes_,
                                                                    .auth = options_.auth,
                                                                    .tls = options_.tls,
                                                                    .cipher = options_.cipher,
                                                                    .deadline = link.request.deadline});
  }
  if (!link.handshake->due(now)) return;
  if (link.handshake->answered()) {
    send_hello(link, link.at);
  } else {
    const auto count = std::min(link.candidates.size(), link.handshake->addresses_to_ask());
    for (const auto& candidate : std::span(link.candidates).first(count)) send_hello(link, candidate);
  }
}

void UdpTransport::bring_up(Link& link, Nanos now) {
  const auto& group = link.handshake->group();
  const auto key = context_key(group.run_id, group.epoch);
  // The key is already taken (the chance is 1 in 2^64). The handshake then fails at its deadline.
  if (contexts_.contains(key)) return;
  const auto free = std::find(by_destination_.begin(), by_destination_.end(), nullptr);
  const auto destination = static_cast<size_t>(free - by_destination_.begin());
  if (free == by_destination_.end()) {
    by_destination_.push_back(nullptr);
    pacer_.grow(by_destination_.size());
  }
  by_destination_[destination] = &link;
  UdpFlowOptions options{.peer = link.request.peer,
                         .group = group,
                         .address = link.at.address,
                         .window_bytes = link.handshake->peer_window_bytes(),
                         .datagram_bytes_max = path_packet_bytes - ipv4_headers_bytes,
                         .rate_limit = options_.rate_limit,
                         .keep_alive = options_.keep_alive,
                         .silence = options_.silence,
                         .started = now,
                         .secret = link.handshake->secret(),
                         .numbers_per_key = options_.numbers_per_key};
  if (options_.datagram_bytes_max != 0)
    options.datagram_bytes_max = std::min(options_.datagram_bytes_max, longest_datagram_bytes);
  link.flow = std::make_unique<UdpFlow>(options, pool_, all_, destination);
  link.state = LinkState::up;
  contexts_[key] = {.run_id = group.run_id, .epoch = group.epoch, .link = &link, .group = nullptr};
  ++changes_;
  if (!link.request.dial) link.handshake.reset();
  send_unpaced(link, now);
}

void UdpTransport::lose(Link& link, const Status& why, PeerFate fate) {
  ++changes_;
  link.fate = fate;
  if (link.state == LinkState::up) {
    auto& flow = *link.flow;
    if (const auto fault = flow.fault(); fault != FrameFault::none) ++refused_frames_[static_cast<size_t>(fault)];
    link.lost = ended(link, why, now_);
    // The peer may be alive, and not know that this process has ended the link. If nobody told it, it would keep the link for
    // ever.
    if (!flow.goodbye_received()) flow.send_given_up(now_, ports_[link.at.port]->outbox);
    send_unpaced(link, now_);  // If the peer has sent a goodbye, this sends the answer.
    pacer_.want(flow.destination(), 0);
    flow.frames().clear(sent_);
    flow.reassembler().reset();
  } else {
    link.lost = why;
  }
  link.handshake.reset();
  link.state = LinkState::lost;
  link.credit_refused = link.overflowed = false;
}

bool UdpTransport::has_pending() const {
  const auto unconfirmed = [](const Link* link) { return link->state == LinkState::up && !link->flow->frames().empty(); };
  return !drains_.empty() || std::any_of(live_.begin(), live_.end(), unconfirmed);
}

Status UdpTransport::unreachable(const Link& link, const char* what) const {
  std::string text = link.request.label + ": ";
  if (link.request.dial) {
    text += concat(what, "; tried");
    for (const auto& candidate : link.candidates) text += " " + udp_endpoint(candidate.address);
    if (link.refused > 0) text += concat("; ", link.refused, " datagrams were refused there");
  } else {
    text += "did not connect in time; waited for it at";
    for (const auto& endpoint : endpoints()) text += " " + endpoint;
  }
  if (link.is_key_foreign) text += "; authentication failed: its key differs from ours, or it has none";
  if (refused_connections_ > 0) text += concat("; ", refused_connections_, " hellos of other jobs arrived");
  return Status(Code::unavailable, text);
}

Status UdpTransport::ended(const Link& link, const Status& why, Nanos now) const {
  return Status(why.code(), link.request.label + ": " + why.message() + "; " + describe(link.request.peer) + "; " +
                                link.flow->numbers(now));
}

// Datagrams in -------------------------------------------------------------------------------------------------------

uint64_t UdpTransport::context_key(uint64_t run_id, uint32_t epoch) {
  return run_id ^ (uint64_t{epoch} * 0x9E3779B97F4A7C15ull);
}

const UdpTransport::Context* UdpTransport::find_context(uint64_t run_id, uint32_t epoch) const {
  const auto found = contexts_.find(context_key(run_id, epoch));
  return found != contexts_.end() && found->second.run_id == run_id && found->second.epoch == epoch ? &found->second : nullptr;
}

bool UdpTransport::knows_run(uint64_t run_id) const {
  return std::any_of(contexts_.begin(), contexts_.end(), [&](const auto& entry) { return entry.second.run_id == run_id; });
}

// Checks all datagrams of a batch before it handles the first, because many tags are computed faster together. If a datagram
// changes links or groups when it is handled, the datagrams after it are checked again.
void UdpTransport::arrived(Port& port, std::span<const InDatagram> batch) {
  UNISONO_CHECK(batch.size() <= classified_.size());
  if (std::exchange(now_is_stale_, false)) refresh();
  const auto classified_batch = std::span(classified_).first(batch.size());
  check(batch, classified_batch);
  const auto seen = changes_;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (changes_ != seen) check(batch.subspan(i, 1), classified_batch.subspan(i, 1));
    handle(port, batch[i], classified_batch[i]);
  }
}

void UdpTransport::check(std::span<const InDatagram> datagrams, std::span<Classified> classified_batch) {
  std::array<Classified*, datagrams_per_batch> checked;
  std::array<uint64_t, datagrams_per_batch> tags;
  size_t count = 0;
  for (size_t i = 0; i < datagrams.size(); ++i) {
    auto& classified = classified_batch[i];
    classify(datagrams[i], classified);
    if (classified.fault != DatagramFault::none || classified.seal == nullptr) continue;
    tagged_[count] = tagged(datagrams[i].bytes, datagrams[i].bytes.subspan(datagram_header_bytes), *classified.seal);
    checked[count++] = &classified;
  }
  make_tags(std::span(tagged_).first(count), std::span(tags).first(count));
  for (size_t i = 0; i < count; ++i) {
    if (!same_tag(tags[i], checked[i]->header.tag)) checked[i]->fault = DatagramFault::tag;
  }
}

// Makes all checks except the check of the tag.
void UdpTransport::classify(const InDatagram& datagram, Classified& classified) const {
  classified.link = nullptr, classified.group = nullptr, classified.peer = nullptr, classified.flow = nullptr,
  classified.seal = nullptr;
  auto& [header, fault, link, group, peer, flow, seal] = classified;
  fault = check_shape(datagram.bytes, longest_datagram_bytes, header);
  if (fault != DatagramFault::none || header.kind == DatagramKind::hello) return;
  const auto* context = find_context(header.run_id, header.epoch);
  if (context == nullptr) {
    fault = knows_run(header.run_id) ? DatagramFault::epoch : DatagramFault::run;
    return;
  }
  if (context->link != nullptr) {
    link = context->link;
    flow = link->flow.get();
    fault = check_group(header, flow->group());
    if (flow->encryption() == nullptr) seal = &flow->in_seal();
  } else {
    group = context->group;
    fault = check_group(header, group->what);
    if (fault != DatagramFault::none) return;
    peer = group->ranks[header.sender].get();  // check_group has made sure that the sender is another rank of the group.
    flow = flow_of(*group, header.sender);
    if (flow != nullptr && flow->encryption() == nullptr) seal = &peer->in_seal;
  }
  if (fault == DatagramFault::none && (flow == nullptr || !same_endpoint(*datagram.from, flow->address())))
    fault = DatagramFault::address;
  if (fault == DatagramFault::none) fault = check_length(header, datagram.bytes, flow->header_bytes());
}

void UdpTransport::handle(Port& port, const InDatagram& datagram, const Classified& classified) {
  const Nanos came = datagram.came != 0 && options_.clock ? datagram.came : now_;
  const Nanos now = std::max(now_, came);
  now_ = now;
  auto fault = classified.fault;
  auto* const flow = classified.flow;
  if (fault == DatagramFault::none && flow == nullptr) return on_hello(port, classified.header, datagram.bytes, *datagram.from);
  // Encrypted datagrams are opened one by one, because that takes no less time for several.
  if (fault == DatagramFault::none && flow->encryption() != nullptr &&
      !flow->encryption()->open(classified.header, datagram.bytes))
    fault = DatagramFault::tag;
  if (fault == DatagramFault::none) {
    const auto payload = datagram.bytes.subspan(flow->header_bytes());
    fault = classified.link != nullptr ? on_link_datagram(*classified.link, classified.header, payload, {now, came})
                                       : on_group_datagram(classified, payload, {now, came});
  }
  if (fault == DatagramFault::none) return;
  ++dropped_[static_cast<size_t>(fault)];
  if (classified.group != nullptr)
    ++(classified.peer != nullptr ? classified.peer->dropped : classified.group->dropped)[static_cast<size_t>(fault)];
}

void UdpTransport::refused(Port& port, const TcpAddress& to) {
  for (auto* link : live_) {
    if (link->at.port != port.index && link->state == LinkState::up) continue;
    if (link->state == LinkState::up && same_endpoint(link->at.address, to)) link->flow->refused(now_);
    if (link->state != LinkState::connecting) continue;
    for (const auto& candidate : link->candidates) link->refused += same_endpoint(candidate.address, to) ? 1 : 0;
    if (link->answered_at && same_endpoint(*link->answered_at, to)) ++link->refused_where_it_answered;
  }
  for (const auto& link : drains_) {
    if (same_endpoint(link->at.address, to)) link->flow->refused(now_);
  }
}

void UdpTransport::on_hello(Port& port, const DatagramHeader& header, std::span<const std::byte> datagram,
                            const TcpAddress& from) {
  const auto ignore = [&](DatagramFault why) { ++dropped_[static_cast<size_t>(why)]; };
  if (hello_keys_.empty()) return ignore(DatagramFault::run);  // The key is not set yet. The peer will repeat its hello.
  UdpHello hello;
  UdpHelloTls tls;
  if (!read_hello_of_job(header, datagram, hello, tls)) {
    ++refused_connections_;
    note_foreign_hello(datagram);
    return ignore(DatagramFault::tag);
  }
  const auto known = by_id_.find(hello.from);
  if (known == by_id_.end()) return ignore(DatagramFault::sender);  // The peer is not added yet. It will repeat its hello.
  auto& link = *links_[known->second];
  if (link.state == LinkState::connecting && !link.handshake) step_handshake(link, now_);
  if (!link.handshake || link.state == LinkState::lost) return ignore(DatagramFault::duplicate);
  const bool same_address = link.at.port == port.index && same_endpoint(link.at.address, from);
  if (same_address && link.handshake->answered_just_now(hello, now_)) return ignore(DatagramFault::duplicate);
  const bool answer = link.handshake->on_hello(hello, now_, tls);
  if (!answer && (link.state != LinkState::connecting || !link.handshake->done())) return ignore(DatagramFault::duplicate);
  if (link.state == LinkState::connecting && !same_address) {
    flush();  // A hello that waits in an outbox refers to link.at.
    link.at = {from, port.index};
  }
  if (answer) send_hello(link, link.at);
  if (link.state == LinkState::connecting && link.handshake->done()) bring_up(link, now_);
}

// Returns true if the hello is sealed with one of our keys.
bool UdpTransport::read_hello_of_job(const DatagramHeader& header, std::span<const std::byte> datagram, UdpHello& hello,
                                     UdpHelloTls& tls) const {
  return std::ranges::any_of(
      hello_keys_, [&](const JobKey& key) { return read_hello(key, header, datagram, hello, options_.tls ? &tls : nullptr); });
}

// A hello that we cannot authenticate may come from a process to which we want a link, and which has another key. Anybody can
// send such a hello, so it only adds a hint to the text of the failure.
void UdpTransport::note_foreign_hello(std::span<const std::byte> datagram) {
  UdpHello hello;
  if (datagram.size() < hello_datagram_bytes) return;
  std::memcpy(&hello, datagram.data() + datagram_header_bytes, sizeof hello);
  const auto known = hello.to == options_.self ? by_id_.find(hello.from) : by_id_.end();
  if (known != by_id_.end()) links_[known->second]->is_key_foreign = true;
}

DatagramFault UdpTransport::on_link_datagram(Link& link, const DatagramHeader& header, std::span<const std::byte> payload,
                                             const UdpArrival& arrival) {
  auto& flow = *link.flow;
  if (link.state == LinkState::up) {
    if (link.handshake) link.handshake.reset();  // The peer uses the link, so our confirmation has arrived.
    return flow.on_datagram(header, payload, arrival, *sink_);
  }
  if (!link.drain && !UdpFlow::is_goodbye(header, payload) &&
      (header.kind == DatagramKind::fragment || header.kind == DatagramKind::control)) {
    // The link has ended here, but the peer still uses it, because it does not know that. Therefore tell it again. (A goodbye
    // from the peer is not handled here: on_datagram() below answers it.)
    flow.send_given_up(now_, ports_[link.at.port]->outbox);
    return DatagramFault::late;
  }
  // The link has ended, so the fragment is not acknowledged.
  if (header.kind == DatagramKind::fragment) return DatagramFault::late;
  const auto fault = flow.on_datagram(header, payload, arrival, *sink_);
  if (header.kind == DatagramKind::control) (void)flow.send_unpaced(now_, 0, ports_[link.at.port]->outbox);
  return fault;
}

std::string UdpTransport::describe(PeerIndex peer) const {
  const auto* link = find(peer);
  if (link == nullptr) return "udp, no link";
  if (!link->flow) return "udp, not connected";
  const auto& own = ports_[link->at.port]->socket->address();
  std::string text = "udp " + own.to_string() + " -> " + link->at.address.to_string();
  const auto entry =
      std::find_if(interfaces_.begin(), interfaces_.end(), [&](const auto& known) { return known.address.same_host(own); });
  if (entry != interfaces_.end()) text += concat(" (", entry->interface, ", ", link->flow->datagram_bytes(), " bytes)");
  if (const auto why = link_state(peer); !why.empty()) text += ", " + why;
  if (const auto* encryption = std::as_const(*link->flow).encryption(); encryption != nullptr)
    text += concat(", encrypted by ", unisono::name(encryption->cipher()));
  if (link->flow->group().auth == DatagramAuth::checksum) text += ", checksums only";
  if (options_.loss.per_mille > 0)
    text += concat(", drops ", options_.loss.per_mille, " per mille of the arriving datagrams on purpose");
  return text;
}

void UdpTransport::notice_size(Link& link) {
  const auto& change = link.flow->size_change();
  if (change.count == link.noticed_size_changes) return;
  link.noticed_size_changes = change.count;
  sink_->noticed(link.request.peer, change.is_reduced() ? EventKind::smaller_datagrams : EventKind::larger_datagrams,
                 describe_size_change("it", change));
}

DatagramSizeChange UdpTransport::size_change(PeerIndex peer) const {
  const auto* link = find(peer);
  return link == nullptr || !link->flow ? DatagramSizeChange() : link->flow->size_change();
}

std::string UdpTransport::link_state(PeerIndex peer) const {
  const auto change = size_change(peer);
  return change.is_reduced() ? describe_size_change("it", change) : std::string();
}

TransportCounters UdpTransport::counters() const {
  auto counters = retired_;
  const auto add = [&](const Link& link) {
    if (!link.flow) return;
    counters.sent_frames += link.flow->frames().sent_frames();
    counters.sent_bytes += link.flow->frames().sent_bytes();
    counters.received_frames += link.flow->received_frames();
    counters.received_bytes += link.flow->received_bytes();
  };
  for (const auto& link : links_) {
    if (link) add(*link);
  }
  for (const auto& link : drains_) add(*link);
  std::copy(std::begin(refused_frames_), std::end(refused_frames_), std::begin(counters.refused_frames));
  counters.refused_connections = refused_connections_;
  return counters;
}

}  // namespace unisono
