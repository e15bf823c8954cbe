#include "transports/tcp/tcp_transport.h"

#include <algorithm>

#include "base/check.h"
#include "base/concat.h"
#include "base/random.h"
#include "transports/tcp/kernel_streams.h"
#include "wire/checksum.h"

namespace unisono {
namespace {

constexpr uint64_t control_tag = UINT64_MAX;
// With at most this many streams, poll() tries to read each of them. With more streams, it is cheaper to ask the watcher and to
// read only the streams that are ready.
constexpr size_t direct_streams_max = 3;
// While links are in use and no link is connecting, poll() looks for new connections only in every control_every-th call, and
// when control_interval has passed.
constexpr uint32_t control_every = 64;
constexpr Nanos control_interval = millisecond;

// Links that end with their transport have no sink any more, and make no upcalls.
class NoSink final : public Sink {
 public:
  std::byte* receive_buffer(PeerIndex, const FrameHeader&) override { return nullptr; }
  void received(PeerIndex, const FrameHeader&, const View&) override {}
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status&, PeerFate) override {}
  void credit(PeerIndex) override {}
};

bool is_gone(const TcpLink& link) { return link.request().fail_if_refused && link.dialer->refused_everywhere(); }

PeerFate fate_of(TcpVerdict verdict) {
  return verdict == TcpVerdict::dead || verdict == TcpVerdict::left ? PeerFate::ended : PeerFate::unknown;
}

}  // namespace

TcpTransport::TcpTransport(const TcpOptions& options, StreamNetwork& network)
    : options_(options), network_(network), pool_(options.pool) {}

Result<std::unique_ptr<TcpTransport>> TcpTransport::make(const TcpOptions& options) { return make(options, kernel_streams()); }

Result<std::unique_ptr<TcpTransport>> TcpTransport::make(const TcpOptions& options, StreamNetwork& network) {
  if (options.streams == 0 || options.streams > tcp_streams_max) {
    return Status(Code::invalid,
                  concat("tcp: ", options.streams, " streams per link; 1 to ", tcp_streams_max, " are possible"));
  }
  std::unique_ptr<TcpTransport> transport(new TcpTransport(options, network));
  if (auto status = transport->open(); !status.ok()) return status;
  return transport;
}

Status TcpTransport::open() {
  auto all = network_.interfaces();
  if (!all.ok()) return all.status();
  interfaces_ = std::move(*all);
  sort_by_preference(interfaces_);
  auto chosen = select_interface(interfaces_, options_.interface);
  if (!chosen.ok()) return Status(chosen.status().code(), "tcp: " + chosen.status().message());
  listening_ = best_addresses(std::move(*chosen), offered_addresses_max);
  if (auto status = open_watchers(); !status.ok()) return status;
  TcpListenerOptions acceptor{.listen = {.port = options_.port},
                              .self = options_.self,
                              .tls = options_.tls,
                              .shares_port = options_.shares_port,
                              .hello_timeout = options_.hello_timeout,
                              .inbound_timeout = options_.inbound_timeout,
                              .unauthenticated_max = options_.unauthenticated_max};
  if (!options_.interface.empty()) acceptor.listen.addresses = listening_;
  auto listener = TcpListener::make(acceptor, network_, *control_);
  if (!listener.ok()) return listener.status();
  listener_.emplace(std::move(*listener));
  return {};
}

Status TcpTransport::open_watchers() {
  if (watcher_) return {};
  auto watcher = network_.make_watcher(nullptr, 0);
  if (!watcher.ok()) return watcher.status();
  auto control = network_.make_watcher(watcher->get(), control_tag);
  if (!control.ok()) return control.status();
  watcher_ = std::move(*watcher);
  control_ = std::move(*control);
  return {};
}

TcpTransport::~TcpTransport() {
  // Nothing is written, because the memory of pending sends may already be freed.
  NoSink sink;
  for (auto* link : live_) link->discard_arrived(now_, sink);
  for (auto& leaving : leaving_) leaving.link->discard_arrived(now_, sink);
}

// Connector ---------------------------------------------------------------------------------------------------------

std::vector<std::string> TcpTransport::endpoints() const {
  std::vector<std::string> result;
  for (const auto& entry : listening_) {
    auto address = entry.address;
    address.set_port(listener_->port());
    result.push_back(address.endpoint());
  }
  return result;
}

void TcpTransport::set_job(const JobKey& key) {
  job_ = key;
  listener_->recheck_waiting();
  check_control_ = true;
}

void TcpTransport::stop_listening() {
  // Peers with a link may connect anew, so such a process goes on listening.
  if (!live_.empty() || !leaving_.empty()) return;
  listener_->close();
  check_control_ = true;
  dial_back_ = {};
  control_.reset();
  watcher_.reset();
}

Status TcpTransport::add_peer(const LinkRequest& request) {
  if (request.peer >= peers_max) return Status(Code::invalid, concat("tcp: peer index ", request.peer, " is too large"));
  if (request.id == options_.self) return Status(Code::invalid, "tcp: " + request.label + ": is this process itself");
  const bool anyone = request.id == PeerId{};
  if (anyone && (registry_ == nullptr || !request.dial)) {
    return Status(Code::invalid,
                  "tcp: " + request.label + ": a link without an id can only be dialled, and needs an InboundRegistry");
  }
  if (by_id_.contains(request.id))
    return Status(Code::invalid, "tcp: " + request.label + ": a link to this peer exists already");
  const auto* old = find(request.peer);
  if (old != nullptr && (old->state() != LinkState::lost || old->has_lost_status())) {
    return Status(Code::invalid, "tcp: " + request.label + ": its index is in use for " + old->request().label);
  }
  if (auto status = open_watchers(); !status.ok()) return status;
  auto made = std::make_unique<TcpLink>(request, pool_, process_resend_memory(), options_.link);
  // Random, because the id is; and different for each link.
  made->set_session(mix64(options_.self.low ^ mix64(options_.self.high + ++sessions_)), options_.self);
  if (old != nullptr && old->request().id == request.id) made->inherit(*old);
  if (request.dial) {
    auto dialer = make_dialer(*made);
    if (!dialer.ok()) return dialer.status();
    made->dialer = std::move(*dialer);
  }
  close(request.peer);
  if (request.peer >= links_.size()) links_.resize(request.peer + size_t{1});
  auto& link = links_[request.peer];
  link = std::move(made);
  live_.push_back(link.get());
  if (!anyone) by_id_[request.id] = request.peer;
  ++connecting_;
  listener_->recheck_waiting();
  check_control_ = true;
  return {};
}

LinkState TcpTransport::state(PeerIndex peer) const {
  const auto* link = find(peer);
  return link == nullptr ? LinkState::unknown : link->state();
}

bool TcpTransport::is_reconnecting(PeerIndex peer) const {
  const auto* link = find(peer);
  return link != nullptr && link->reconnecting();
}

bool TcpTransport::is_host_silent(PeerIndex peer, Nanos silence) const {
  const auto* link = find(peer);
  return link != nullptr && link->is_host_silent(silence);
}

void TcpTransport::mark_up(TcpLink& link) {
  --connecting_;
  std::string via = "unknown interface";
  for (const auto& entry : interfaces_) {
    if (entry.address.same_host(link.local())) via = entry.interface;
  }
  link.name_interface(via);
  count_streams();
}

void TcpTransport::count_streams() {
  stream_count_ = 0;
  for (const auto* link : live_) stream_count_ += link->stream_count();
  for (const auto& leaving : leaving_) stream_count_ += leaving.link->stream_count();
}

Status TcpTransport::unreachable(const TcpLink& link, const char* what) const {
  std::string text = link.request().label + ": " + what + "; ";
  auto code = Code::unavailable;
  if (link.dialer) {
    text += "tried " + link.dialer->failures();
    const bool nobody_here = registry_ != nullptr && link.dialer->hopeless();
    if (nobody_here && link.request().id == PeerId{}) code = Code::invalid;
    else if (is_gone(link)) code = Code::peer_lost;
    else if (nobody_here) code = Code::invalid;
  } else {
    text += "waited for its connection at";
    for (const auto& endpoint : endpoints()) text += " " + endpoint;
    if (!listener_->exhausted().empty()) text += "; " + listener_->exhausted();
    if (const auto unauthenticated = listener_->last_refusal(); !unauthenticated.empty()) text += "; " + unauthenticated;
  }
  return Status(code, text);
}

// Transport: sending ------------------------------------------------------------------------------------------------

size_t TcpTransport::credit(PeerIndex peer) {
  auto* link = find(peer);
  return link == nullptr ? 0 : link->credit();
}

Slot TcpTransport::acquire(std::span<const PeerIndex>, size_t, bool) { return {}; }

void TcpTransport::commit(const Slot& slot, const FrameHeader&) { UNISONO_CHECK(!slot); }

void TcpTransport::abandon(const Slot& slot) { UNISONO_CHECK(!slot); }

bool TcpTransport::send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  UNISONO_CHECK(payload.size() <= payload_bytes_max);
  auto* link = find(peer);
  if (link == nullptr) return true;
  auto sealed = header;
  sealed.payload_bytes = static_cast<uint32_t>(payload.size());
  if (options_.payload_checksum) {
    sealed.flags |= frame_flag_payload_checksum;
    sealed.payload_checksum = crc32c(payload.data(), payload.size());
  }
  const bool done = link->send(sealed, payload, id);
  // The caller may sleep until next_deadline() without another poll().
  link->look_for_silence(now_);
  return done;
}

bool TcpTransport::release_acknowledged(uint64_t match, uint64_t mask) {
  bool any = false;
  for (auto* link : live_) any |= link->release_acknowledged(match, mask, sent_);
  return any;
}

void TcpTransport::release_early(uint64_t match, uint64_t mask) {
  for (auto* link : live_) link->release_early(match, mask, sent_);
}

void TcpTransport::release(const View& view) { pool_.give(view.handle); }

void TcpTransport::cancel(const Cancellation& what) {
  for (auto* link : live_) link->cancel(what);
  std::erase_if(sent_, [&](uint64_t id) { return what.concerns_send(id); });
}

bool TcpTransport::poll(Nanos now, Sink& sink) {
  UNISONO_CHECK(!polling_);
  polling_ = true;
  now_ = now;
  sink_ = &sink;
  bool any = control_is_due(now) && step_control(now);
  any |= move_bytes(now, sink);
  any |= step_leaving(now, sink);
  any |= report(sink);
  closed_links_.clear();
  polling_ = false;
  return any;
}

bool TcpTransport::control_is_due(Nanos now) {
  if (check_control_ || now >= control_deadline_) return true;
  if (!control_) return false;
  const bool busy =
      std::exchange(slept_, false) || connecting_ > 0 || listener_->waiting() > 0 || !leaving_.empty() || live_.empty();
  if (!busy && ++polls_ % control_every != 0 && now - last_control_ < control_interval) return false;
  last_control_ = now;
  uint64_t tag = 0;
  return control_->ready(std::span(&tag, 1)) > 0;
}

bool TcpTransport::step_control(Nanos now) {
  check_control_ = false;
  last_control_ = now;
  bool any = listener_->step(now, *this);
  any |= dial_back_.step(now, [this](const TcpLink& link) { return make_redialer(link, 0, true); });
  control_deadline_ = std::min(listener_->next_deadline(), dial_back_.next_deadline());
  for (auto* link : live_) {
    if (link->state() == LinkState::connecting) any |= step_connecting(*link, now);
    if (link->state() != LinkState::connecting) continue;
    control_deadline_ = std::min(control_deadline_, link->request().deadline);
    if (link->dialer) control_deadline_ = std::min(control_deadline_, link->dialer->next_deadline());
  }
  return any;
}

bool TcpTransport::step_connecting(TcpLink& link, Nanos now) {
  bool any = false;
  if (link.dialer) {
    any = link.dialer->step(now);
    if (link.dialer->complete()) {
      finish_dialling(link, now);
      return true;
    }
    if (const auto id = link.dialer->introduced()) {
      identify_peer(link, *id);
      return true;
    }
  }
  const char* what = nullptr;
  if (now >= link.request().deadline) what = link.dialer ? "cannot be reached in time" : "did not connect in time";
  else if (link.dialer && is_gone(link)) what = "is gone";
  else if (link.dialer && link.dialer->hopeless()) what = "cannot be reached";
  // In a group, the members connect once, and descriptors do not become free meanwhile. In an elastic run, they may.
  else if (registry_ == nullptr && link.dialer && link.dialer->exhausted()) what = "cannot be dialled";
  else if (registry_ == nullptr && !link.dialer && !listener_->exhausted().empty()) what = "cannot be accepted";
  if (what == nullptr) return any;
  --connecting_;
  // A refusal proves a death only where a dial was answered before. Otherwise a firewall may have refused.
  const bool ended = link.dialer && is_gone(link) && link.is_refused_for_good();
  link.lose(unreachable(link, what), ended ? PeerFate::ended : PeerFate::unknown, sent_);
  return true;
}

void TcpTransport::finish_dialling(TcpLink& link, Nanos now) {
  const auto attempts = link.dialer->attempts();
  link.dialled(link.dialer->take(), attempts, *watcher_, now, sent_);
  mark_up(link);
}

bool TcpTransport::move_bytes(Nanos now, Sink& sink) {
  bool any = false;
  const bool direct = stream_count_ <= direct_streams_max;
  for (size_t i = 0; i < live_.size(); ++i) {
    auto* link = live_[i];
    if (link->state() != LinkState::up) continue;
    bool moved = link->flush(now, sent_);
    if (direct || link->wants_poll()) moved |= link->read_all(now, sink);
    if (moved) link->disturb();
    any |= moved;
  }
  for (size_t i = 0; i < leaving_.size(); ++i) {
    auto& link = *leaving_[i].link;
    bool moved = link.flush(now, sent_);
    if (direct || link.wants_poll()) moved |= link.read_all(now, sink);
    if (moved) link.disturb();
    any |= moved;
  }
  if (!direct) any |= move_ready(now, sink);
  for (size_t i = 0; i < live_.size(); ++i) any |= keep_up(*live_[i], now, sink);
  return any;
}

// Looks after connections that have ended or look broken. Most calls find nothing to do.
bool TcpTransport::keep_up(TcpLink& link, Nanos now, Sink& sink) {
  if (link.is_calm(now)) return false;
  link.look_for_silence(now);
  if (!link.needs_care()) return false;
  bool any = false;
  const auto verdict = link.keep_up(now, sink);
  // What to answer to a hello that waits may depend on it.
  check_control_ |= link.take_end() && listener_->waiting() > 0;
  if (verdict != TcpVerdict::outage) {
    if (const auto fault = link.fault(); fault != FrameFault::none) ++refused_frames_[static_cast<size_t>(fault)];
    if (verdict == TcpVerdict::left) remember_departure(link);
    link.lose(link.end_status(verdict), fate_of(verdict), sent_);
    return true;
  }
  for (uint16_t stream = 0; stream < link.stream_count() && link.state() == LinkState::up; ++stream) {
    if (link.redial_is_due(stream, now)) link.begin_redial(stream, make_redialer(link, stream), now);
    any |= link.step_redial(stream, *watcher_, now, sink, sent_);
  }
  return any;
}

bool TcpTransport::move_ready(Nanos now, Sink& sink) {
  std::array<uint64_t, 64> tags;
  const size_t count = watcher_->ready(tags);
  bool any = false;
  for (size_t i = 0; i < count; ++i) {
    if (tags[i] == control_tag) {
      check_control_ = any = true;
      continue;
    }
    // An earlier upcall of this loop may have closed or replaced the link. In that case read() finds nothing to read.
    auto* link = find_tag(tags[i]);
    if (link == nullptr || !link->read(static_cast<uint16_t>(tags[i]), now, sink)) continue;
    any = true;
    // An upcall may have closed the link.
    if (find_tag(tags[i]) == link) link->disturb();
  }
  return any;
}

bool TcpTransport::report(Sink& sink) {
  bool any = false;
  for (const auto peer : std::exchange(finished_dials_, {})) close(peer);
  if (!sent_.empty()) {
    any = true;
    reporting_.swap(sent_);
    for (size_t i = 0; i < reporting_.size(); ++i) sink.sent(reporting_[i]);
    reporting_.clear();
  }
  for (size_t i = 0; i < live_.size();) {
    auto* link = live_[i];
    const auto peer = link->request().peer;
    if (auto why = link->take_lost_status()) {
      live_.erase(live_.begin() + static_cast<ptrdiff_t>(i));
      by_id_.erase(link->request().id);
      listener_->recheck_waiting();
      check_control_ = true;
      count_streams();
      sink.lost(peer, *why, link->fate());
      any = true;
      continue;
    }
    ++i;
    if (link->has_reconnected()) {
      sink.noticed(peer, EventKind::reconnected, "reconnected to it " + link->take_reconnected());
      any = true;
    }
    if (!link->take_credit_returned()) continue;
    sink.credit(peer);
    any = true;
  }
  return any;
}

bool TcpTransport::draining() const {
  return !leaving_.empty() || std::any_of(live_.begin(), live_.end(), [](const TcpLink* link) { return link->is_draining(); });
}

bool TcpTransport::awaits_confirmations() const {
  return dial_back_.busy() ||
         std::any_of(live_.begin(), live_.end(), [](const TcpLink* link) { return link->awaits_confirmations(); });
}

Nanos TcpTransport::next_deadline() const {
  if (check_control_) return 0;
  Nanos next = control_deadline_;
  for (const auto* link : live_) next = std::min(next, link->next_deadline());
  for (const auto& leaving : leaving_) next = std::min(next, leaving.link->next_deadline());
  return next;
}

bool TcpTransport::arm() {
  if (check_control_ || !sent_.empty()) return false;
  for (const auto* link : live_) {
    if (link->wants_poll()) return false;
  }
  for (const auto& leaving : leaving_) {
    if (leaving.link->wants_poll()) return false;
  }
  for (auto* link : live_) link->update_interest();
  for (const auto& leaving : leaving_) leaving.link->update_interest();
  uint64_t tag = 0;
  if (!watcher_ || watcher_->ready(std::span(&tag, 1)) == 0) return true;
  check_control_ |= tag == control_tag;
  return false;
}

TransportCounters TcpTransport::counters() const {
  TransportCounters counters;
  auto total = retired_;
  const auto add = [&](const TcpLink& link) {
    total.sent_frames += link.traffic().sent_frames;
    total.sent_bytes += link.traffic().sent_bytes;
    total.received.frames += link.traffic().received.frames;
    total.received.bytes += link.traffic().received.bytes;
  };
  for (const auto& link : links_) {
    if (link) add(*link);
  }
  for (const auto& leaving : leaving_) add(*leaving.link);
  counters.sent_frames = total.sent_frames;
  counters.sent_bytes = total.sent_bytes;
  counters.received_frames = total.received.frames;
  counters.received_bytes = total.received.bytes;
  std::copy(std::begin(refused_frames_), std::end(refused_frames_), std::begin(counters.refused_frames));
  counters.refused_connections = listener_->refused();
  return counters;
}

std::string TcpTransport::describe(PeerIndex peer) const {
  const auto* link = find(peer);
  if (link == nullptr) return "tcp, no link";
  const auto stuck = link->link_state(now_);
  return link->describe() + (stuck.empty() ? "" : "; " + stuck);
}

std::string TcpTransport::link_state(PeerIndex peer) const {
  const auto* link = find(peer);
  return link == nullptr ? std::string() : link->link_state(now_);
}

}  // namespace unisono
