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

}  // namespace

TcpLink::TcpLink(LinkRequest request, PayloadPool& pool, const TcpLinkOptions& options)
    : request_(std::move(request)), pool_(pool), options_(options) {}

TcpLink::~TcpLink() = default;

bool TcpLink::attach(uint16_t stream, uint16_t count, std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher) {
  UNISONO_CHECK(state_ == LinkState::connecting);
  if (streams_.empty()) {
    for (uint16_t i = 0; i < count; ++i) {
      streams_.push_back(std::make_unique<TcpStream>(request_.peer, pool_, traffic_, options_.queue_frames_max));
    }
  }
  remote_ = socket->remote();
  local_ = socket->local();
  if (!streams_[stream]->attach(std::move(socket), watcher, uint64_t{request_.peer} << 16 | stream)) return false;
  if (stream == 0) description_ = "tcp " + local_.to_string() + " -> " + remote_.to_string();
  const bool all = std::all_of(streams_.begin(), streams_.end(), [](const auto& each) { return each->attached(); });
  if (all) {
    state_ = LinkState::up;
    dialer.reset();
  }
  return true;
}

void TcpLink::name_interface(const std::string& interface) {
  description_ += " (" + interface;
  if (streams_.size() > 1) description_ += concat(", ", streams_.size(), " streams");
  description_ += ")";
}

bool TcpLink::broken_while_connecting() const {
  if (state_ != LinkState::connecting) return false;
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) {
    std::byte ahead{};
    bool ended = false;
    return stream->attached() && (stream->socket().peek(std::span(&ahead, 1), ended) < 0 || ended);
  });
}

void TcpLink::start_again() {
  std::vector<uint64_t> none;
  for (auto& stream : streams_) stream->detach(none);
  streams_.clear();
}

void TcpLink::withdraw_dial() {
  dialer.reset();
  request_.dial = false;
}

size_t TcpLink::queued_frames() const {
  size_t count = 0;
  for (const auto& stream : streams_) count += stream->queue().count();
  return count;
}

size_t TcpLink::credit() {
  if (state_ == LinkState::lost) return 0;
  const size_t queued = queued_frames();
  if (state_ == LinkState::up && queued < options_.queue_frames_max) return options_.queue_frames_max - queued;
  credit_refused_ = true;
  return 0;
}

TcpStream& TcpLink::stream_for(size_t payload_bytes) {
  if (streams_.size() == 1) return *streams_[0];
  if (payload_bytes >= spread_bytes) {
    next_stream_ = (next_stream_ + 1) % streams_.size();
    return *streams_[next_stream_];
  }
  return **std::min_element(streams_.begin(), streams_.end(),
                            [](const auto& a, const auto& b) { return a->queue().bytes() < b->queue().bytes(); });
}

bool TcpLink::send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  if (state_ != LinkState::up || overflowed_) return true;
  auto& stream = stream_for(payload.size());
  if (!stream.queue().empty()) {
    const size_t queued = queued_frames();
    if (queued + 1 >= options_.queue_frames_max) credit_refused_ = true;
    if (queued >= options_.queue_frames_max + options_.extra_frames_max) {
      overflowed_ = true;
      return true;
    }
  }
  return stream.send(header, payload, id);
}

void TcpLink::cancel(const Cancellation& what) {
  const bool receives = what.concerns_frames_from(request_.peer);
  for (auto& stream : streams_) {
    if (receives) stream->cancel_receive(what.group, what.operation);
    stream->cancel_sends(what.match, what.mask);
  }
}

bool TcpLink::flush(std::vector<uint64_t>& sent) {
  bool any = false;
  for (auto& stream : streams_) {
    if (!stream->queue().empty()) any |= stream->flush(sent);
  }
  return any;
}

bool TcpLink::read(uint16_t stream, Sink& sink) {
  return state_ == LinkState::up && stream < streams_.size() && streams_[stream]->read(sink);
}

bool TcpLink::read_all(Sink& sink) {
  bool any = false;
  for (uint16_t stream = 0; stream < streams_.size(); ++stream) any |= read(stream, sink);
  return any;
}

bool TcpLink::take_credit_returned() {
  if (!credit_returned()) return false;
  credit_refused_ = false;
  return true;
}

bool TcpLink::wants_poll() const {
  if (lost_ || credit_returned() || overflowed_ || silent_) return true;
  return state_ == LinkState::up && std::any_of(streams_.begin(), streams_.end(), [&](const auto& stream) {
           return (stream->ended() && end_deadline_ == never) || stream->wants_poll(pool_, request_.peer);
         });
}

void TcpLink::update_interest() {
  if (state_ != LinkState::up) return;
  for (auto& stream : streams_) stream->update_interest();
}

bool TcpLink::has_ended(Nanos now) {
  if (state_ != LinkState::up) return false;
  if (overflowed_ || silent_) return true;
  bool any = false, all = true, quiet = true, orderly = true;
  for (const auto& stream : streams_) {
    if (stream->fault() != FrameFault::none) return true;
    any |= stream->ended();
    all &= stream->ended();
    quiet &= stream->quiet();
    orderly &= !stream->ended() || stream->orderly();
  }
  if (!any) return false;
  if (end_deadline_ == never) end_deadline_ = now + end_timeout;
  return all || now >= end_deadline_ || (!orderly && quiet);
}

FrameFault TcpLink::fault() const {
  for (const auto& stream : streams_) {
    if (stream->fault() != FrameFault::none) return stream->fault();
  }
  return FrameFault::none;
}

std::string TcpLink::trouble() const {
  std::string text;
  for (const auto& stream : streams_) {
    if (text.empty() && stream->attached()) text = describe_unacknowledged(stream->socket().unacknowledged(), remote_);
  }
  return text;
}

Status TcpLink::end_status() const {
  std::string why = "ended";
  // If one stream ended with an error and another in order, report the error, because the orderly end may be a result of the
  // error.
  for (const auto& stream : streams_) {
    if (stream->ended() && (why == "ended" || stream->fault() != FrameFault::none)) why = stream->end_text();
  }
  if (silent_) why = concat("the peer's host has not answered for ", options_.silence / second, " s");
  if (overflowed_) why = concat("the peer reads nothing, and ", queued_frames(), " frames are queued for it");
  return Status(fault() == FrameFault::none ? Code::peer_lost : Code::corrupt,
                concat(request_.label, ": ", why, "; ", description_, "; ", traffic_.sent_bytes, " bytes sent, ",
                       traffic_.received.bytes, " received"));
}

void TcpLink::schedule_silence_check(Nanos now) {
  if (state_ == LinkState::up && silence_check_ == never && traffic_.sent_bytes != checked_bytes_) {
    silence_check_ = now + options_.silence / 4;
  }
}

void TcpLink::look_for_silence(Nanos now) {
  if (state_ != LinkState::up || now < silence_check_) return;
  bool acknowledged = true;
  for (const auto& stream : streams_) {
    if (stream->ended()) continue;
    silent_ |= stream->socket().host_is_silent(options_.silence);
    acknowledged &= stream->socket().all_acknowledged();
  }
  if (acknowledged) checked_bytes_ = traffic_.sent_bytes;
  silence_check_ = acknowledged ? never : now + options_.silence / 4;
}

void TcpLink::lose(const Status& why, std::vector<uint64_t>& sent) {
  if (state_ == LinkState::lost) return;
  state_ = LinkState::lost;
  lost_ = why;
  dialer.reset();
  credit_refused_ = false;
  overflowed_ = silent_ = false;
  silence_check_ = end_deadline_ = never;
  for (auto& stream : streams_) stream->detach(sent);
}

void TcpLink::close(bool memory_valid, std::vector<uint64_t>& sent, std::vector<TcpDrain>& drains) {
  if (memory_valid && state_ == LinkState::up) flush(sent);
  const bool was_up = state_ == LinkState::up;
  state_ = LinkState::lost;
  lost_.reset();
  dialer.reset();
  for (auto& stream : streams_) {
    auto last = stream->ended() ? Bytes() : stream->queue().unsent_bytes(memory_valid);
    auto socket = stream->detach(sent);
    if (was_up && socket) drains.emplace_back(std::move(socket), std::move(last));
  }
}

std::optional<Status> TcpLink::take_lost_status() {
  auto status = std::move(lost_);
  lost_.reset();
  return status;
}

}  // namespace unisono
