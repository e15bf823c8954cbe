#include "transports/tcp/tcp_link.h"

#include <algorithm>

#include "base/check.h"
#include "base/concat.h"
#include "transports/tcp/tcp_path.h"

namespace unisono {
namespace {

// A payload below this size is sent on the stream with the shortest queue. Larger payloads use the streams in turn, so that
// each stream carries the same share of the bytes.
constexpr size_t spread_bytes = 16u << 10;
// How often a stream with unconfirmed bytes is looked at.
constexpr Nanos care_interval = 250 * millisecond;
// If the peer's host does not acknowledge for this long, a connection beside the present one is tried.
constexpr Nanos suspicious_silence = 1 * second;
// A hello that cannot be answered yet is looked at again after this time.
constexpr Nanos recheck_interval = 5 * millisecond;
// A hello whose connection has gone is not decided about again. After this time its stream waits for it no longer.
constexpr Nanos retiring_max = 1 * second;

// If a link was not looked at for longer than this, the process was stopped meanwhile.
constexpr Nanos stopped_after = 1 * second;
constexpr Nanos accepted_redial_delay = 1 * second;

std::string seconds_text(Nanos time) {
  const auto tenths = (time + 50 * millisecond) / (100 * millisecond);
  return concat(tenths / 10, ".", tenths % 10, " s");
}

}  // namespace

TcpLink::TcpLink(LinkRequest request, PayloadPool& pool, ResendMemory& process, const TcpLinkOptions& options)
    : request_(std::move(request)), pool_(pool), options_(options), resend_memory_(options.resend_memory, &process) {}

TcpLink::~TcpLink() = default;

// Making the link -----------------------------------------------------------------------------------------------------

void TcpLink::set_session(uint64_t number, const PeerId& self) {
  session_.number = number;
  session_.smaller_id = self < request_.id;
  self_ = self;
}

void TcpLink::identify_peer(const PeerId& id) {
  request_.id = id;
  session_.smaller_id = self_ < id;
}

void TcpLink::make_streams(uint16_t count) {
  if (!streams_.empty()) return;
  for (uint16_t i = 0; i < count; ++i) {
    streams_.push_back(
        std::make_unique<TcpStream>(request_.peer, pool_, resend_memory_, traffic_, options_.queue_frames_max, session_));
  }
  redials_.resize(count);
  lines_.resize(count);
}

void TcpLink::note_connected(uint16_t stream, const StreamSocket& socket) {
  local_ = socket.local();
  remote_ = socket.remote();
  if (stream == 0) {
    description_ = "tcp " + local_.to_string() + " -> " + remote_.to_string();
    if (!interface_text_.empty()) name_interface(interface_text_);
  }
  lines_[stream].retiring_for = 0;
  lines_[stream].refused_since = never;
}

void TcpLink::mark_up_if_complete() {
  if (state_ != LinkState::connecting) return;
  const bool all = std::all_of(streams_.begin(), streams_.end(), [](const auto& each) { return each->connected(); });
  if (!all) return;
  state_ = LinkState::up;
  dialer.reset();
}

void TcpLink::dialled(std::vector<TcpDialled> connections, uint32_t attempts, StreamWatcher& watcher, Nanos now,
                      std::vector<uint64_t>& sent) {
  make_streams(static_cast<uint16_t>(connections.size()));
  answered_before_ = true;
  state_ = LinkState::up;
  dialer.reset();
  for (uint16_t i = 0; i < connections.size(); ++i) {
    auto& session = streams_[i]->session();
    session.end_dial();
    session.count_dials(attempts - 1);
    session.begin_dial(now);
    session.send_hello(now);
    UNISONO_CHECK(session.judge(connections[i].reply, now) == TcpReplyVerdict::adopt);
    if (!adopt(i, std::move(connections[i]), watcher, now, sent))
      note_end(i, TcpEnd::reset, "its connection broke while it was made", now);
  }
}

// Lets a stream go on over a connection that this process has dialled. Returns false if the connection cannot be used.
bool TcpLink::adopt(uint16_t stream, TcpDialled made, StreamWatcher& watcher, Nanos now, std::vector<uint64_t>& sent) {
  const TcpEnds mine{to_wire(made.socket->local()), to_wire(made.socket->remote())};
  const bool direct = is_direct(mine, made.reply.ends, 0);
  note_connected(stream, *made.socket);
  return streams_[stream]->adopt(std::move(made.socket), made.reply.position, watcher, uint64_t{request_.peer} << 16 | stream,
                                 direct, now, sent);
}

bool TcpLink::accepted(const TcpInbound& inbound, std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, Nanos now) {
  const auto index = inbound.hello.stream_index;
  told_addresses_.clear();
  if (inbound.hello.port != 0) {
    auto source = socket->remote();
    source.set_port(inbound.hello.port);
    told_addresses_.push_back(source);
  }
  for (size_t i = 0; i < inbound.hello.addresses; ++i) told_addresses_.push_back(from_wire(inbound.addresses[i]));
  note_connected(index, *socket);
  const uint64_t tag = uint64_t{request_.peer} << 16 | index;
  if (!streams_[index]->accept(std::move(socket), watcher, tag, inbound.direct, now)) return false;
  mark_up_if_complete();
  return true;
}

void TcpLink::withdraw_dial() {
  // The peer has seen these dials. Later ones with their numbers would be stale.
  for (auto& stream : streams_) stream->session().count_dials(dialer->attempts());
  dialer.reset();
  request_.dial = false;
}

void TcpLink::name_interface(const std::string& interface) {
  interface_text_ = interface;
  description_ += " (" + interface;
  if (streams_.size() > 1) description_ += concat(", ", streams_.size(), " streams");
  description_ += ")";
}

// Using the link ------------------------------------------------------------------------------------------------------

size_t TcpLink::queued_frames() const {
  size_t count = 0;
  for (const auto& stream : streams_) count += stream->queue().unwritten_frames();
  return count;
}

size_t TcpLink::credit() {
  if (state_ == LinkState::lost) return 0;
  const size_t queued = queued_frames();
  if (state_ == LinkState::up && queued < options_.queue_frames_max) return options_.queue_frames_max - queued;
  credit_refused_ = true;
  return 0;
}

// New frames prefer streams that have a connection.
TcpStream& TcpLink::stream_for(size_t payload_bytes) {
  if (streams_.size() == 1) return *streams_[0];
  if (payload_bytes >= spread_bytes) {
    for (size_t tries = 0; tries < streams_.size(); ++tries) {
      next_stream_ = (next_stream_ + 1) % streams_.size();
      if (streams_[next_stream_]->session().may_write()) break;
    }
    return *streams_[next_stream_];
  }
  return **std::min_element(streams_.begin(), streams_.end(), [](const auto& a, const auto& b) {
    const bool a_up = a->session().may_write(), b_up = b->session().may_write();
    return a_up != b_up ? a_up : a->queue().unwritten_bytes() < b->queue().unwritten_bytes();
  });
}

bool TcpLink::send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  if (state_ != LinkState::up || overflowed_) return true;
  auto& stream = stream_for(payload.size());
  if (stream.queue().unwritten_frames() > 0) {
    const size_t queued = queued_frames();
    if (queued + 1 >= options_.queue_frames_max) credit_refused_ = true;
    if (queued >= options_.queue_frames_max + options_.extra_frames_max) {
      overflowed_ = true;
      return true;
    }
  }
  return stream.send(header, payload, id);
}

void TcpLink::release_early(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent) {
  for (auto& stream : streams_) stream->release_early(match, mask, sent);
}

void TcpLink::cancel(const Cancellation& what) {
  const bool receives = what.concerns_frames_from(request_.peer);
  for (auto& stream : streams_) {
    if (receives) stream->cancel_receive(what.group, what.operation);
    stream->cancel_sends(what.match, what.mask);
  }
}

bool TcpLink::wants_flush(Nanos now) const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& stream) { return stream->wants_flush(now); });
}

bool TcpLink::flush(Nanos now, std::vector<uint64_t>& sent) {
  bool any = false;
  for (auto& stream : streams_) {
    if (stream->wants_flush(now)) any |= stream->flush(now, sent);
  }
  return any;
}

bool TcpLink::read(uint16_t stream, Nanos now, Sink& sink) {
  return state_ == LinkState::up && stream < streams_.size() && streams_[stream]->read(now, sink);
}

bool TcpLink::read_all(Nanos now, Sink& sink) {
  bool any = false;
  for (uint16_t stream = 0; stream < streams_.size(); ++stream) any |= read(stream, now, sink);
  return any;
}

bool TcpLink::take_credit_returned() {
  if (!credit_returned()) return false;
  credit_refused_ = false;
  return true;
}

bool TcpLink::wants_poll() const {
  if (lost_ || credit_returned() || overflowed_ || silent_ || !reconnected_.empty()) return true;
  return state_ == LinkState::up && std::any_of(streams_.begin(), streams_.end(), [&](const auto& stream) {
           return stream->ended() || stream->queue().wants_confirm() || stream->wants_poll(pool_, request_.peer);
         });
}

void TcpLink::update_interest() {
  if (state_ != LinkState::up) return;
  for (auto& stream : streams_) stream->update_interest();
}

// Reconnecting --------------------------------------------------------------------------------------------------------

bool TcpLink::needs_care() const {
  if (state_ != LinkState::up) return false;
  if (overflowed_ || silent_) return true;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const auto& stream = *streams_[i];
    if (stream.ended() || lines_[i].end != TcpEnd::none || stream.session().stage() != TcpSession::Stage::up ||
        lines_[i].silent_since != never || redials_[i].dialer != nullptr || stream.fault() != FrameFault::none ||
        !stream.broken().ok())
      return true;
  }
  return false;
}

TcpVerdict TcpLink::keep_up(Nanos now, Sink& sink) {
  bool all_left = true, left_long_ago = false;
  for (uint16_t i = 0; i < streams_.size() && state_ == LinkState::up; ++i) {
    keep_up_stream(i, now, sink);
    if (state_ != LinkState::up) break;
    if (streams_[i]->fault() != FrameFault::none || !streams_[i]->broken().ok()) return TcpVerdict::lost;
    const auto verdict = judge_stream(i, now);
    if (verdict == TcpVerdict::dead || verdict == TcpVerdict::lost) return verdict;
    all_left &= verdict == TcpVerdict::left;
    // The ends of the other streams may be lost with their connections.
    left_long_ago |= verdict == TcpVerdict::left && now - lines_[i].down_since >= options_.link_timeout;
  }
  if (state_ != LinkState::up) return TcpVerdict::outage;  // an upcall has ended the link
  if (silent_ || overflowed_) return TcpVerdict::lost;
  return all_left || left_long_ago ? TcpVerdict::left : TcpVerdict::outage;
}

void TcpLink::step_session(uint16_t stream, Nanos now) {
  const Nanos stopped = streams_[stream]->session().step(now);
  auto& line = lines_[stream];
  line.down_since += stopped;
  line.retiring_at += stopped;
  if (line.refused_since != never) line.refused_since += stopped;
}

void TcpLink::keep_up_stream(uint16_t index, Nanos now, Sink& sink) {
  auto& stream = *streams_[index];
  auto& session = stream.session();
  auto& line = lines_[index];
  step_session(index, now);
  note_reconnected(index, now);
  if (stream.fault() != FrameFault::none || !stream.broken().ok()) return;
  if (stream.ended()) {
    // The peer closes a connection in order when it takes the one that is being dialled beside it.
    if (session.suspected()) note_end(index, TcpEnd::reset, "it carried nothing any more", now);
    // An end before the peer has begun says nothing about the peer: it may have made another connection.
    note_end(index, stream.orderly() && session.resumes() ? TcpEnd::clean : TcpEnd::reset, stream.end_text(), now);
    stream.disconnect();
    // While a successor is chosen, the session does not depend on the old connection.
    if (session.stage() != TcpSession::Stage::retiring) session.ended(now);
  }
  // The peer's begin may lie in the socket.
  if (session.begin_expired(now)) stream.read(now, sink);
  if (state_ != LinkState::up) return;
  if (session.begin_expired(now)) {
    note_end(index, TcpEnd::reset, "the peer did not go on after its hello", now);
    stream.disconnect();
    session.ended(now);
  }
  if (line.retiring_for != 0 && now - line.retiring_at > retiring_max) {
    line.retiring_for = 0;
    if (session.stage() == TcpSession::Stage::retiring) session.ended(now);
  }
  note_reconnected(index, now);
}

// A connection has ended, or is replaced although it stands. If the stream is down already, the first end counts.
void TcpLink::note_end(uint16_t stream, TcpEnd end, std::string text, Nanos now) {
  auto& line = lines_[stream];
  if (line.end != TcpEnd::none || state_ != LinkState::up) return;
  has_ended_ = true;
  line.end = end == TcpEnd::clean && redials_[stream].dialer && redials_[stream].dialer->answered() ? TcpEnd::reset : end;
  line.end_text = std::move(text);
  line.down_since = now;
}

void TcpLink::note_reconnected(uint16_t stream, Nanos now) {
  auto& line = lines_[stream];
  if (line.end == TcpEnd::none || streams_[stream]->session().stage() != TcpSession::Stage::up) return;
  reconnected_ = concat("after ", seconds_text(now - line.down_since), ": ", line.end_text);
  ++reconnections_;
  line = {};
}

TcpVerdict TcpLink::judge_stream(uint16_t index, Nanos now) const {
  const auto& line = lines_[index];
  if (line.end == TcpEnd::none) return TcpVerdict::outage;
  TcpEvidence seen;
  seen.leaving = streams_[index]->peer_left();
  seen.end = line.end;
  seen.no_session = line.no_session;
  seen.confirmed = line.left_confirmed;
  seen.refused = line.refused_since != never;
  seen.refused_for = seen.refused ? now - line.refused_since : 0;
  // Within one host, nothing but the process itself can refuse.
  seen.answered_before = answered_before_ || on_this_host();
  seen.down_for = now - line.down_since;
  return judge(seen, {.link_timeout = options_.link_timeout});
}

bool TcpLink::is_draining() const {
  return reconnecting() ||
         std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream->queue().has_unconfirmed(); });
}

void TcpLink::look_for_silence(Nanos now) {
  if (state_ != LinkState::up || (care_at_ != never && now < care_at_)) return;
  const bool unconfirmed =
      std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream->awaits_answer(); });
  const auto due_at = std::exchange(care_at_, unconfirmed ? now + care_interval : never);
  if (due_at == never) return;
  for (uint16_t i = 0; i < streams_.size(); ++i) {
    auto& stream = *streams_[i];
    auto& since = lines_[i].silent_since;
    const bool up = stream.connected() && stream.session().stage() == TcpSession::Stage::up;
    if (up && stream.socket().host_is_silent(suspicious_silence)) {
      stream.session().suspect();
      if (since == never) since = now;
      // While this process was stopped, it dialled no other connection.
      else if (now - due_at > stopped_after) since += now - due_at;
      silent_ |= now - since >= options_.link_timeout;
    } else {
      since = never;
      // A connection that was made already is not dropped: the peer uses it.
      if (!up || !stream.session().progressed()) continue;
      redials_[i] = {};
      stream.session().end_dial();
    }
  }
}

// From this time on the stream may be dialled. One that the peer has never begun is dialled by the side that makes the link, and
// by the other one only if that takes long. One that has left needs no connection.
Nanos TcpLink::may_redial_at(uint16_t stream) const {
  const auto& line = lines_[stream];
  if (streams_[stream]->peer_left() && line.end == TcpEnd::clean) return never;
  return request_.dial || streams_[stream]->session().resumes() ? 0 : line.down_since + accepted_redial_delay;
}

bool TcpLink::redial_is_due(uint16_t stream, Nanos now) const {
  return state_ == LinkState::up && now >= may_redial_at(stream) && !redials_[stream].dialer && lines_[stream].retiring_for == 0 &&
         streams_[stream]->session().dial_due(now);
}

void TcpLink::begin_redial(uint16_t stream, std::unique_ptr<TcpDialer> redialer, Nanos now) {
  auto& redial = redials_[stream];
  redial = {};
  redial.dialer = std::move(redialer);
  streams_[stream]->session().begin_dial(now);
}

void TcpLink::end_redial(uint16_t stream) {
  redials_[stream] = {};
  streams_[stream]->session().end_dial();
}

bool TcpLink::step_redial(uint16_t index, StreamWatcher& watcher, Nanos now, Sink& sink, std::vector<uint64_t>& sent) {
  auto& redial = redials_[index];
  if (!redial.dialer) return false;
  auto& session = streams_[index]->session();
  auto& line = lines_[index];
  auto& own = *redial.dialer;
  bool any = !redial.made && own.step(now);
  // From the moment of the hello the network's word counts no more. Nobody has asked for it since.
  if (own.greeted() && !std::exchange(redial.greeted, true)) session.send_hello(now);
  if (own.answered()) {
    answered_before_ = true;
    // Its host answers, so a clean end is not the end of the host. The peer may have ended the connection for this dial.
    if (line.end == TcpEnd::clean) line.end = TcpEnd::reset;
  }
  if (own.take_peer_drains()) {
    TcpSessionReply draining;
    draining.reason = TcpRefusal::draining;
    session.judge(draining, now);
  }
  if (const auto& last = own.final_answer()) {
    const auto verdict = session.judge(*last, now);
    line.no_session |= verdict == TcpReplyVerdict::lost;
    line.left_confirmed |= verdict == TcpReplyVerdict::left;
    end_redial(index);
    return true;
  }
  if (own.complete() && !redial.made) {
    redial.made.emplace(std::move(own.take().front()));
    if (session.judge(redial.made->reply, now) != TcpReplyVerdict::adopt) {
      end_redial(index);
      return true;
    }
  }
  if (redial.made) return finish_redial(index, watcher, now, sink, sent) || any;
  if (own.failed()) {
    if (!own.refused_everywhere()) line.refused_since = never;
    else if (line.refused_since == never) line.refused_since = now;
    TcpSessionReply stale;
    stale.reason = TcpRefusal::stale;
    stale.attempt = own.peer_attempts();
    session.judge(stale, now);
    line.dial_text = own.failures();
    end_redial(index);
    return true;
  }
  if (session.dial_expired(now)) {
    line.refused_since = never;
    line.dial_text = own.failures();
    end_redial(index);
    return true;
  }
  return any;
}

// Reads the former connection to its end, and goes on over the new one. Returns false if the former one cannot be read yet.
bool TcpLink::finish_redial(uint16_t index, StreamWatcher& watcher, Nanos now, Sink& sink, std::vector<uint64_t>& sent) {
  if (!streams_[index]->drain(now, sink)) return false;
  if (state_ != LinkState::up) return true;  // an upcall has ended the link
  note_end(index, TcpEnd::reset, "it carried nothing any more", now);
  auto made = std::move(*redials_[index].made);
  redials_[index] = {};
  (void)adopt(index, std::move(made), watcher, now, sent);
  return true;
}

TcpAcceptor::Decision TcpLink::decide(const TcpSessionHello& hello, Nanos waited, Nanos now, Sink& sink) {
  const auto index = hello.stream_index;
  auto& stream = *streams_[index];
  auto& session = stream.session();
  auto& line = lines_[index];
  if (line.retiring_for == 0 || line.retiring_for != hello.attempt) {
    step_session(index, now);
    switch (session.judge(hello, !stream.paused(), now)) {
      case TcpHelloVerdict::hold:
        return {.wait = true, .draining = stream.paused(), .recheck_after = waited + recheck_interval};
      case TcpHelloVerdict::refuse:
        return {.refusal = session.refusal(), .position = stream.position(), .attempt = session.attempt()};
      case TcpHelloVerdict::new_link:
        return {.refusal = TcpRefusal::duplicate, .position = stream.position(), .attempt = session.attempt()};
      case TcpHelloVerdict::accept: break;
    }
    redials_[index] = {};
    line.retiring_for = hello.attempt;
  }
  line.retiring_at = now;
  return take_over(index, waited, now, sink);
}

// Reads the old connection of a stream to its end, and says where the successor goes on.
TcpAcceptor::Decision TcpLink::take_over(uint16_t index, Nanos waited, Nanos now, Sink& sink) {
  auto& stream = *streams_[index];
  const bool was_up = state_ == LinkState::up;
  const bool drained = stream.drain(now, sink);
  if (was_up && state_ != LinkState::up) return {.refusal = TcpRefusal::no_session};  // an upcall has ended the link
  note_end(index, TcpEnd::reset, "the peer has made a new connection", now);
  if (!drained) return {.wait = true, .draining = true, .recheck_after = waited + recheck_interval};
  TcpAcceptor::Decision decision{.position = stream.position(), .attempt = stream.session().attempt()};
  if (!stream.broken().ok()) decision.refusal = TcpRefusal::no_session;
  if (was_up && stream.peer_left()) {
    lines_[index].retiring_for = 0;
    stream.session().ended(now);
    decision.refusal = TcpRefusal::left;
  }
  return decision;
}

std::vector<TcpAddress> TcpLink::last_addresses() const {
  std::vector<TcpAddress> addresses;
  if (request_.dial && remote_.bytes > 0) addresses.push_back(remote_);
  addresses.insert(addresses.end(), told_addresses_.begin(), told_addresses_.end());
  return addresses;
}

bool TcpLink::reconnecting() const {
  return state_ == LinkState::up &&
         std::any_of(lines_.begin(), lines_.end(), [](const Line& line) { return line.end != TcpEnd::none; });
}

// Ending the link -----------------------------------------------------------------------------------------------------

FrameFault TcpLink::fault() const {
  for (const auto& stream : streams_) {
    if (stream->fault() != FrameFault::none) return stream->fault();
  }
  return FrameFault::none;
}

std::string TcpLink::trouble(Nanos now) const {
  for (size_t i = 0; i < lines_.size(); ++i) {
    const auto& line = lines_[i];
    if (state_ != LinkState::up || line.end == TcpEnd::none) continue;
    // The dial that is under way has found little yet.
    const bool first = line.dial_text.empty() && redials_[i].dialer != nullptr;
    const auto tried = first ? redials_[i].dialer->failures() : line.dial_text;
    return concat("its connection is down for ", seconds_text(now - line.down_since), " (", line.end_text,
                  tried.empty() ? "" : "; " + tried, ")");
  }
  for (const auto& stream : streams_) {
    if (!stream->connected()) continue;
    if (auto text = describe_unacknowledged(stream->socket().unacknowledged(), remote_); !text.empty()) return text;
  }
  return {};
}

Status TcpLink::end_status(TcpVerdict verdict) const {
  std::string why = "ended";
  auto code = Code::peer_lost;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const auto& stream = *streams_[i];
    const auto& line = lines_[i];
    if (line.end != TcpEnd::none && why == "ended") {
      why = line.end_text;
      if (line.no_session) why += "; then the peer had given up this link";
      else if (verdict == TcpVerdict::dead && line.refused_since != never) why += "; its process is gone: " + line.dial_text;
      else if (verdict == TcpVerdict::lost && !line.dial_text.empty())
        why += concat("; it could not be reached again for ", seconds_text(options_.link_timeout), ": ", line.dial_text);
    }
    if (stream.fault() != FrameFault::none) {
      why = stream.end_text();
      code = Code::corrupt;
    } else if (!stream.broken().ok()) {
      why = stream.broken().message();
      code = stream.broken().code();
    }
  }
  if (silent_) why = concat("the peer's host has not answered for ", options_.link_timeout / second, " s");
  if (overflowed_) why = concat("the peer reads nothing, and ", queued_frames(), " frames are queued for it");
  return Status(code, concat(request_.label, ": ", why, "; ", description_, "; ", traffic_.sent_bytes, " bytes sent, ",
                             traffic_.received.bytes, " received"));
}

Nanos TcpLink::next_deadline() const {
  if (state_ != LinkState::up) return never;
  Nanos next = care_at_;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const auto& stream = *streams_[i];
    const auto& line = lines_[i];
    next = std::min(next, stream.next_deadline());
    const bool fine = line.end == TcpEnd::none && line.silent_since == never;
    if (fine && stream.session().stage() == TcpSession::Stage::up && !redials_[i].dialer) continue;
    // A dial that has succeeded waits until the old connection can be read to its end, whatever its time limit says.
    if (redials_[i].made) next = std::min(next, stream.session().step_again_at());
    else if (stream.session().stage() == TcpSession::Stage::accepted || redials_[i].dialer)
      next = std::min(next, stream.session().next_deadline());
    else next = std::min(next, std::max(stream.session().next_deadline(), may_redial_at(static_cast<uint16_t>(i))));
    if (redials_[i].dialer) next = std::min(next, redials_[i].dialer->next_deadline());
    if (line.end == TcpEnd::none) continue;
    next = std::min({next, line.down_since + options_.link_timeout, stream.session().step_again_at()});
    if (line.end == TcpEnd::clean && !stream.peer_left()) next = std::min(next, line.down_since + TcpVerdictLimits().silence_after_end);
  }
  return next;
}

void TcpLink::lose(const Status& why, std::vector<uint64_t>& sent) {
  if (state_ == LinkState::lost) return;
  state_ = LinkState::lost;
  lost_ = why;
  dialer.reset();
  credit_refused_ = false;
  overflowed_ = silent_ = false;
  care_at_ = never;
  reconnected_.clear();
  for (auto& stream : streams_) stream->detach(sent);
  redials_.clear();
  redials_.resize(streams_.size());
}

void TcpLink::close(bool memory_valid, Nanos now, std::vector<uint64_t>& sent, std::vector<TcpDrain>& drains) {
  const bool was_up = state_ == LinkState::up;
  if (was_up && memory_valid) {
    for (auto& stream : streams_) stream->leave(now, sent);
    flush(now, sent);
  }
  state_ = LinkState::lost;
  lost_.reset();
  dialer.reset();
  reconnected_.clear();
  for (auto& stream : streams_) {
    auto last = stream->ended() || !stream->session().may_write() ? Bytes() : stream->queue().unsent_bytes(memory_valid);
    auto socket = stream->detach(sent);
    if (was_up && socket) drains.emplace_back(std::move(socket), std::move(last));
  }
  redials_.clear();
  redials_.resize(streams_.size());
}

std::optional<Status> TcpLink::take_lost_status() {
  auto status = std::move(lost_);
  lost_.reset();
  return status;
}

}  // namespace unisono
