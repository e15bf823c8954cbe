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

// A link that leaves ends if its connections stand, and the peer has confirmed nothing for confirm_timeout. While bytes are
// still to be written it ends after write_timeout: if the peer's process is stopped, it reads them when it continues, and
// learns from them why it was left.
constexpr Nanos confirm_timeout = 2 * second, write_timeout = 60 * second;
constexpr Nanos stopped_after = 1 * second;

}  // namespace

TcpLink::TcpLink(LinkRequest request, PayloadPool& pool, ResendMemory& process, const TcpLinkOptions& options)
    : request_(std::move(request)),
      pool_(pool),
      options_(options),
      resend_memory_(options.resend_memory, &process),
      tag_base_(request_.peer) {}

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
  stalls_.resize(count);
}

void TcpLink::note_connected(uint16_t stream, const StreamSocket& socket) {
  disturb();
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
  answered_at_ = connections[0].socket->remote();
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
  return streams_[stream]->adopt(std::move(made.socket), made.reply.position, watcher, tag_base_ << 16 | stream, direct, now,
                                 sent);
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
  if (!streams_[index]->accept(std::move(socket), watcher, tag_base_ << 16 | index, inbound.direct, now)) return false;
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
      disturb();
      return true;
    }
  }
  care_soon_ |= care_at_ == never;
  return stream.send(header, payload, id);
}

bool TcpLink::release_acknowledged(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent) {
  bool any = false;
  for (auto& stream : streams_) any |= stream->release_acknowledged(match, mask, sent);
  return any;
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
  if (state_ != LinkState::up || stream >= streams_.size()) return false;
  const bool any = streams_[stream]->read(now, sink);
  // An upcall may have ended the streams.
  if (stream < streams_.size() && streams_[stream]->incomplete_since() != never) care_soon_ |= care_at_ == never;
  return any;
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

// Ending the link -----------------------------------------------------------------------------------------------------

FrameFault TcpLink::fault() const {
  for (const auto& stream : streams_) {
    if (stream->fault() != FrameFault::none) return stream->fault();
  }
  return FrameFault::none;
}

std::string TcpLink::link_state(Nanos now) const {
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
  for (size_t i = 0; i < stalls_.size(); ++i) {
    if (!stalls_[i].text.empty() && streams_[i]->queue().confirmed() == stalls_[i].confirmed) return stalls_[i].text;
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
      else if (verdict == TcpVerdict::dead && (line.refused_for_good || line.refused_since != never))
        why += concat(refusal_proves_end(line) ? "; its process is gone: " : "; all its addresses refuse dials: ",
                      redials_[i].dialer ? redials_[i].dialer->failures() : line.dial_text);
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
  if (silent_) why = concat("the peer's host has not answered for ", seconds_text(options_.link_timeout));
  if (overflowed_) why = concat("the peer reads nothing, and ", queued_frames(), " frames are queued for it");
  return Status(code, concat(request_.label, ": ", why, "; ", description_, "; ", traffic_.sent_bytes, " bytes sent, ",
                             traffic_.received.bytes, " received"));
}

Nanos TcpLink::next_deadline() const {
  if (state_ != LinkState::up) return never;
  Nanos next = care_at_;
  if (leaves()) next = std::min(next, moved_looked_at_ + stopped_after / 2);
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
    next =
        std::min({next, std::max(line.down_since, line.answered_at) + options_.link_timeout, stream.session().step_again_at()});
    if (line.end == TcpEnd::clean && !stream.peer_left())
      next = std::min(next, line.down_since + TcpVerdictLimits().silence_after_end);
  }
  return next;
}

void TcpLink::lose(const Status& why, PeerFate fate, std::vector<uint64_t>& sent) {
  if (state_ == LinkState::lost) return;
  state_ = LinkState::lost;
  lost_ = why;
  fate_ = fate;
  dialer.reset();
  credit_refused_ = false;
  overflowed_ = silent_ = false;
  care_at_ = never;
  care_soon_ = false;
  reconnected_.clear();
  for (auto& stream : streams_) stream->end(sent);
  redials_.clear();
  redials_.resize(streams_.size());
}

void TcpLink::leave(uint64_t tag_base, Nanos now, std::vector<uint64_t>& sent) {
  UNISONO_CHECK(state_ == LinkState::up && !leaves());
  tag_base_ = tag_base;
  moved_at_ = moved_looked_at_ = now;
  reconnected_.clear();
  credit_refused_ = false;
  for (uint16_t i = 0; i < streams_.size(); ++i) streams_[i]->leave(tag_base_ << 16 | i, now, sent);
}

// Returns true if the stream lacks a word of the peer. Nothing is needed any more if the peer has confirmed the last frame, or
// if it has left itself: then it discards what comes. It only needs the confirmation of its own last frame.
bool TcpLink::needs_peer(uint16_t index, Nanos now) const {
  const auto& stream = *streams_[index];
  if (lines_[index].left_confirmed || !stream.queue().has_unconfirmed()) return false;
  return !stream.peer_left() || stream.wants_flush(now);
}

TcpLink::Leaving TcpLink::leaving_state(Nanos now) {
  if (state_ != LinkState::up) return Leaving::in_vain;
  const Nanos gap = now - std::exchange(moved_looked_at_, now);
  if (gap > stopped_after) moved_at_ += gap;
  bool needs_any = false;
  uint64_t confirmed = 0, unwritten = 0;
  for (uint16_t i = 0; i < streams_.size(); ++i) {
    confirmed += streams_[i]->queue().confirmed();
    if (!needs_peer(i, now)) continue;
    needs_any = true;
    unwritten += streams_[i]->queue().unwritten_bytes();
    // How long a stream may be without a connection is judged elsewhere.
    if (lines_[i].end != TcpEnd::none) moved_at_ = now;
  }
  if (!needs_any) return Leaving::in_order;
  if (confirmed > confirmed_bytes_ || unwritten < unwritten_bytes_) moved_at_ = now;
  confirmed_bytes_ = confirmed;
  unwritten_bytes_ = std::min(unwritten, unwritten_bytes_);
  return now - moved_at_ < (unwritten > 0 ? write_timeout : confirm_timeout) ? Leaving::goes_on : Leaving::in_vain;
}

bool TcpLink::may_be_missed() const {
  for (uint16_t i = 0; i < streams_.size(); ++i) {
    if (needs_peer(i, moved_looked_at_) && !streams_[i]->host_has_everything()) return true;
  }
  return false;
}

void TcpLink::discard_arrived(Nanos now, Sink& sink) {
  for (auto& stream : streams_) stream->discard_all();
  read_all(now, sink);
}

std::optional<Status> TcpLink::take_lost_status() {
  if (!lost_) return std::nullopt;
  auto status = std::move(lost_);
  lost_.reset();
  return status;
}

}  // namespace unisono
