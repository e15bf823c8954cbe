// How a link outlives its connections: it notices that one has ended, dials, answers the peer's dials, and judges what follows.
#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "transports/tcp/tcp_link.h"
#include "transports/tcp/tcp_path.h"

namespace unisono {
namespace {

// How often a stream with unconfirmed bytes is looked at.
constexpr Nanos care_interval = 250 * millisecond;
// After this time without more bytes of an encrypted record that has begun, another connection is dialled beside the present
// one.
constexpr Nanos incomplete_max = 2 * second;
// If the peer's host does not acknowledge for this long, a connection beside the present one is tried.
constexpr Nanos suspicious_silence = 1 * second;
// A hello that cannot be answered yet is looked at again after this time.
constexpr Nanos recheck_interval = 5 * millisecond;
// A hello whose connection has gone is not decided about again. After this time its stream waits for it no longer.
constexpr Nanos retiring_max = 1 * second;

// If a link was not looked at for longer than this, the process was stopped meanwhile.
constexpr Nanos stopped_after = 1 * second;
constexpr Nanos accepted_redial_delay = 1 * second;

}  // namespace

// Returns true if keep_up() has something to do, apart from its deadlines.
bool TcpLink::needs_care() {
  calm_ = false;
  if (state_ != LinkState::up) return false;
  if (overflowed_ || silent_) return true;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const auto& stream = *streams_[i];
    if (stream.ended() || lines_[i].end != TcpEnd::none || stream.session().stage() != TcpSession::Stage::up ||
        lines_[i].silent_since != never || stream.session().suspected() || stream.write_broken() ||
        redials_[i].dialer != nullptr || stream.fault() != FrameFault::none || !stream.broken().ok())
      return true;
  }
  calm_ = true;
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
  line.answered_at += stopped;
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
    // An end before the peer was heard on the connection says nothing about the peer: it may use another one. Neither does the
    // end of a connection to a relay, unless the peer had left.
    const bool of_peer = session.was_heard() && (session.is_direct() || stream.peer_left());
    note_end(index, stream.orderly() && of_peer ? TcpEnd::clean : TcpEnd::reset, stream.end_text(), now);
    stream.disconnect();
    // While a successor is chosen, the session does not depend on the old connection.
    if (session.stage() != TcpSession::Stage::retiring) session.ended(now);
  }
  // What is left can be read when there is memory. Meanwhile the successor is made.
  if (stream.write_broken() && waits_in_circle(index)) {
    stream.exceed_share();
    stream.read(now, sink);
    if (state_ != LinkState::up) return;
  }
  if (stream.paused() && stream.write_broken()) {
    session.suspect();
    note_end(index, TcpEnd::reset, stream.write_error_text(), now);
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
  disturb();
  auto& line = lines_[stream];
  if (line.end != TcpEnd::none || state_ != LinkState::up) return;
  has_ended_ = true;
  line.end = end == TcpEnd::clean && redials_[stream].dialer && redials_[stream].dialer->answered() ? TcpEnd::reset : end;
  line.end_text = std::move(text);
  line.down_since = now;
}

void TcpLink::note_reconnected(uint16_t stream, Nanos now) {
  auto& line = lines_[stream];
  const auto& own = *streams_[stream];
  if (line.end == TcpEnd::none || own.write_broken() || own.session().stage() != TcpSession::Stage::up) return;
  reconnected_ = concat("after ", seconds_text(now - line.down_since), ": ", line.end_text);
  ++reconnections_;
  line = {};
}

// Returns true if a refusal at this address means that the process is gone. At other addresses of the peer, a firewall may
// refuse, or another host. Within one host, nothing but the process itself can refuse.
bool TcpLink::refusal_counts(const TcpAddress& address) const {
  const auto same = [&](const TcpAddress& other) { return address.same_host(other) && address.port() == other.port(); };
  return (answered_at_ && same(*answered_at_)) || (on_this_host() && address.same_host(local_));
}

void TcpLink::inherit(const TcpLink& old) {
  answered_at_ = old.answered_at_;
  local_ = old.local_;
  remote_ = old.remote_;
}

bool TcpLink::is_refused_for_good() const {
  return dialer && dialer->refused_at([this](const TcpAddress& address) { return refusal_counts(address); });
}

// Returns true if the stream waits for memory that another stream of the link holds, and if that one lacks a connection. The
// peer may be in the same state, with the two streams exchanged: then each side would wait for the other for ever.
bool TcpLink::waits_in_circle(uint16_t index) const {
  return streams_[index]->paused() && std::any_of(streams_.begin(), streams_.end(), [](const auto& other) {
           return other->holds_memory() && other->session().stage() != TcpSession::Stage::up;
         });
}

TcpVerdict TcpLink::judge_stream(uint16_t index, Nanos now) const {
  const auto& line = lines_[index];
  // The peer may have ended the stream although its connection seems to stand: its end was lost, too.
  const bool peer_ended = line.no_session || line.left_confirmed;
  if (line.end == TcpEnd::none && !peer_ended) return TcpVerdict::outage;
  TcpEvidence seen;
  seen.leaving = streams_[index]->peer_left();
  seen.end = line.end == TcpEnd::none ? TcpEnd::reset : line.end;
  seen.no_session = line.no_session;
  seen.confirmed = line.left_confirmed;
  seen.refused = line.refused_for_good || line.refused_since != never;
  seen.refused_for = line.refused_since != never ? now - line.refused_since : 0;
  seen.answered_before = refusal_proves_end(line);
  seen.down_for = now - std::max(line.down_since, line.answered_at);
  return judge(seen, {.link_timeout = options_.link_timeout});
}

bool TcpLink::is_draining() const {
  return reconnecting() || std::any_of(streams_.begin(), streams_.end(),
                                       [](const auto& stream) { return stream->queue().unwritten_frames() > 0; });
}

bool TcpLink::awaits_confirmations() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream->awaits_confirmations(); });
}

void TcpLink::look_for_silence(Nanos now) {
  if (state_ != LinkState::up || (care_at_ != never && now < care_at_)) return;
  care_soon_ = false;
  const bool unconfirmed = std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) {
    return stream->awaits_answer() || stream->incomplete_since() != never;
  });
  const auto due_at = std::exchange(care_at_, unconfirmed ? now + care_interval : never);
  if (due_at == never) return;
  for (uint16_t i = 0; i < streams_.size(); ++i) {
    auto& stream = *streams_[i];
    auto& since = lines_[i].silent_since;
    const bool up = stream.connected() && stream.session().stage() == TcpSession::Stage::up;
    // Somebody on the path holds back or has altered a record's end: another connection brings it.
    const bool incomplete = up && now - stream.incomplete_since() >= incomplete_max;
    if (incomplete) stream.session().suspect();
    if (up && stream.socket().host_is_silent(suspicious_silence)) {
      stream.session().suspect();
      note_stall(i);
      if (since == never) since = now;
      // While this process was stopped, it dialled no other connection.
      else if (now - due_at > stopped_after) since += now - due_at;
      silent_ |= now - since >= options_.link_timeout;
    } else {
      since = never;
      if (incomplete) continue;
      // A connection that was made already is not dropped: the peer uses it.
      if (!up || stream.write_broken() || !stream.session().progressed()) continue;
      redials_[i] = {};
      stream.session().end_dial();
    }
  }
}

// Call it before a connection that stands is replaced.
void TcpLink::note_stall(uint16_t index) {
  const auto& stream = *streams_[index];
  if (!stream.connected()) return;
  if (auto text = describe_unacknowledged(stream.socket().unacknowledged(), remote_); !text.empty())
    stalls_[index] = {.text = std::move(text), .confirmed = stream.queue().confirmed()};
}

// From this time on the stream may be dialled. One that the peer has never begun is dialled by the side that makes the link,
// and by the other one only if that takes long. One that has left needs no connection.
Nanos TcpLink::may_redial_at(uint16_t stream) const {
  const auto& line = lines_[stream];
  if (line.left_confirmed || (streams_[stream]->peer_left() && line.end == TcpEnd::clean)) return never;
  return request_.dial || streams_[stream]->session().resumes() ? 0 : line.down_since + accepted_redial_delay;
}

bool TcpLink::redial_is_due(uint16_t stream, Nanos now) const {
  return state_ == LinkState::up && now >= may_redial_at(stream) && !redials_[stream].dialer &&
         lines_[stream].retiring_for == 0 && streams_[stream]->session().dial_due(now);
}

void TcpLink::begin_redial(uint16_t stream, std::unique_ptr<TcpDialer> redialer, Nanos now) {
  disturb();
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
  if (line.end != TcpEnd::none && own.refused_at([this](const TcpAddress& address) { return refusal_counts(address); }))
    line.refused_for_good = true;
  if (own.answered()) {
    answered_at_ = own.answered_at();
    // Its host answers, so a clean end is not the end of the host. The peer may have ended the connection for this dial.
    if (line.end == TcpEnd::clean) line.end = TcpEnd::reset;
  }
  if (own.take_peer_drains()) {
    TcpSessionReply draining;
    draining.reason = TcpRefusal::draining;
    line.answered_at = now;
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
  if (redial.made) {
    line.answered_at = now;  // the peer waits for this process
    return finish_redial(index, watcher, now, sink, sent) || any;
  }
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
  note_stall(index);
  if (waits_in_circle(index)) streams_[index]->exceed_share();
  if (!streams_[index]->drain(now, sink)) return false;
  if (state_ != LinkState::up) return true;  // an upcall has ended the link
  note_end(index, TcpEnd::reset, "it carried nothing any more", now);
  auto made = std::move(*redials_[index].made);
  redials_[index] = {};
  (void)adopt(index, std::move(made), watcher, now, sent);
  return true;
}

TcpAcceptor::Decision TcpLink::decide(const TcpSessionHello& hello, Nanos waited, Nanos now, Sink& sink) {
  disturb();
  const auto index = hello.stream_index;
  auto& stream = *streams_[index];
  auto& session = stream.session();
  auto& line = lines_[index];
  if (line.retiring_for == 0 || line.retiring_for != hello.attempt) {
    step_session(index, now);
    switch (session.judge(hello, !stream.paused() || waits_in_circle(index), now)) {
      case TcpHelloVerdict::hold:
        return {.wait = true, .draining = stream.paused(), .recheck_after = waited + recheck_interval};
      case TcpHelloVerdict::refuse:
        if (session.refusal() == TcpRefusal::left) line.left_confirmed = true;
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
  note_stall(index);
  if (waits_in_circle(index)) stream.exceed_share();
  const bool drained = stream.drain(now, sink);
  if (was_up && state_ != LinkState::up) return {.refusal = TcpRefusal::no_session};  // an upcall has ended the link
  note_end(index, TcpEnd::reset, "the peer has made a new connection", now);
  if (!drained) return {.wait = true, .draining = true, .recheck_after = waited + recheck_interval};
  TcpAcceptor::Decision decision{.position = stream.position(), .attempt = stream.session().attempt()};
  if (!stream.broken().ok()) decision.refusal = TcpRefusal::no_session;
  if (was_up && stream.peer_left()) {
    lines_[index].retiring_for = 0;
    lines_[index].left_confirmed = true;
    stream.session().ended(now);
    decision.refusal = TcpRefusal::left;
  }
  return decision;
}

std::vector<TcpAddress> TcpLink::last_addresses() const {
  std::vector<TcpAddress> addresses;
  if (answered_at_) addresses.push_back(*answered_at_);
  addresses.insert(addresses.end(), told_addresses_.begin(), told_addresses_.end());
  return addresses;
}

bool TcpLink::is_host_silent(Nanos silence) const {
  return state_ == LinkState::up && std::any_of(streams_.begin(), streams_.end(), [&](const auto& stream) {
           return stream->connected() && stream->socket().awaits_host(silence);
         });
}

bool TcpLink::reconnecting() const {
  return state_ == LinkState::up &&
         std::any_of(lines_.begin(), lines_.end(), [](const Line& line) { return line.end != TcpEnd::none; });
}

}  // namespace unisono
