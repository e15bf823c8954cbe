#include "transports/tcp/tcp_dialer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/error_text.h"
#include "tls/tls_socket.h"

namespace unisono {
namespace {

// A dialer that was not stepped for longer than this belongs to a process that was stopped.
constexpr Nanos stopped_after = 1 * second;

TcpPreamble preamble_of(const TcpSessionHello& hello) {
  TcpPreamble preamble;
  preamble.flags = hello.flags;
  preamble.to = hello.to;
  seal(preamble);
  return preamble;
}

}  // namespace

TcpDialer::TcpDialer(TcpDialRequest request)
    : request_(std::move(request)), state_(request_.candidates.size()), round_(request_.attempts_before + 1) {
  if (request_.tls) request_.hello.flags |= tcp_flag_encrypted;
}

bool TcpDialer::step(Nanos now) {
  if (complete() || final_answer_) return false;
  bool any = false, broken = false;
  // Time in which this process was stopped does not count.
  if (const Nanos gap = now - std::exchange(stepped_at_, now); gap > stopped_after && gap != now) {
    for (auto& attempt : attempts_) attempt.hello_at += gap;
  }
  for (size_t i = 0; i < attempts_.size() && !final_answer_;) {
    auto& attempt = attempts_[i];
    const bool rests = attempt.phase == Phase::accepted || attempt.phase == Phase::introduced;
    const auto outcome = rests ? Outcome::pending : advance(attempt, now);
    if (outcome == Outcome::pending) {
      ++i;
      continue;
    }
    any = true;
    if (outcome == Outcome::accepted) {
      ++accepted_count_;
      attempt.phase = Phase::accepted;
      // Frames may arrive before the other streams are accepted. Nobody reads them yet, so they must wake nobody.
      (void)attempt.socket->watch(*request_.watcher, false, false, 0);
      if (!address_chosen_) {
        choose_attempt(i);
        break;
      }
      ++i;
      continue;
    }
    broken = address_chosen_;
    attempts_.erase(attempts_.begin() + static_cast<ptrdiff_t>(i));
    if (!address_chosen_) next_event_ = now;  // the next address is tried at once
  }
  if (complete() || final_answer_) return true;
  if (broken && !request_.only_stream) {
    start_over(now);
  } else if (!address_chosen_ && now >= next_event_) {
    any = true;
    while (next_candidate_ < state_.size() && state_[next_candidate_].hopeless) ++next_candidate_;
    if (next_candidate_ < state_.size()) {
      next_event_ = now + stagger;
      start(next_candidate_++, request_.only_stream.value_or(0));
    } else if (attempts_.empty() && !request_.only_stream) {
      start_over(now);
    } else {
      // All addresses are being tried. Each attempt is ended by the network, or by the owner.
      next_event_ = never;
    }
  }
  return any;
}

void TcpDialer::start_over(Nanos now) {
  attempts_.clear();
  next_candidate_ = 0;
  accepted_count_ = 0;
  address_chosen_ = false;
  ++round_;
  next_event_ = hopeless() ? never : now + retry_delay_;
  retry_delay_ = std::min(2 * retry_delay_, retry_last);
}

void TcpDialer::start(size_t candidate, uint16_t stream) {
  state_[candidate].refused_everywhere = state_[candidate].nobody_listens = false;
  Attempt attempt;
  attempt.candidate = candidate;
  attempt.stream = stream;
  int error = 0;
  attempt.socket = request_.network->connect(request_.candidates[candidate], request_.sources, error);
  if (attempt.socket && !attempt.socket->watch(*request_.watcher, false, true, 0)) error = ENOMEM;
  if (error != 0) {
    exhausted_ = exhausted_ || is_out_of_descriptors(error);
    (void)failed(attempt, error);
    attempt.socket.reset();
    next_event_ = 0;  // The next step() finds an attempt without a socket, and handles it like any attempt that failed.
  } else {
    state_[candidate].progress = "no answer";
  }
  attempts_.push_back(std::move(attempt));
}

TcpDialer::Outcome TcpDialer::failed(const Attempt& attempt, std::string why) {
  state_[attempt.candidate].error = std::move(why);
  state_[attempt.candidate].key_failures = 0;
  return Outcome::failed;
}

TcpDialer::Outcome TcpDialer::failed_by_key(const Attempt& attempt, std::string why) {
  auto& candidate = state_[attempt.candidate];
  const auto before = candidate.key_failures;
  const auto outcome = failed(attempt, std::move(why));
  candidate.key_failures = before + 1;
  candidate.hopeless = candidate.hopeless || (request_.key_may_differ && candidate.key_failures >= key_failures_max);
  return outcome;
}

TcpDialer::Outcome TcpDialer::failed(const Attempt& attempt, int error) {
  auto& candidate = state_[attempt.candidate];
  candidate.refused_everywhere = candidate.nobody_listens = error == ECONNREFUSED;
  return error == EKEYREJECTED ? failed_by_key(attempt, error_text(error)) : failed(attempt, error_text(error));
}

Nanos TcpDialer::next_deadline() const {
  Nanos next = next_event_;
  for (const auto& attempt : attempts_) {
    if ((attempt.phase == Phase::replying || attempt.clear != nullptr) && !request_.only_stream)
      next = std::min({next, attempt.hello_at + reply_timeout, stepped_at_ + stopped_after / 2});
  }
  return next;
}

TcpDialer::Outcome TcpDialer::advance(Attempt& attempt, Nanos now) {
  if (!attempt.socket) return Outcome::failed;
  if (attempt.phase == Phase::replying) {
    const auto outcome = read_reply(attempt);
    return outcome == Outcome::pending && is_late(attempt, now) ? failed(attempt, "no reply to the hello") : outcome;
  }
  if (const auto outcome = answer_in_clear(attempt)) return *outcome;
  const auto error = attempt.socket->connected();
  if (!error && attempt.clear != nullptr && is_late(attempt, now)) return failed(attempt, "no answer to the TLS handshake");
  if (!error) return Outcome::pending;
  if (*error != 0) return failed(attempt, *error);
  answered_at_ = request_.candidates[attempt.candidate];
  attempt.hello_at = now;
  attempt.clear = nullptr;
  return request_.tls && !attempt.preamble_sent ? secure(attempt) : send_hello(attempt);
}

// Sends the preamble in clear, and begins to encrypt. The attempt is connecting until the handshake is done.
TcpDialer::Outcome TcpDialer::secure(Attempt& attempt) {
  const auto preamble = preamble_of(request_.hello);
  const auto written = write_some(*attempt.socket, std::as_bytes(std::span(&preamble, 1)));
  if (written < 0) return failed(attempt, static_cast<int>(-written));
  if (written != sizeof preamble) return failed(attempt, "the network took only a part of the preamble");
  attempt.preamble_sent = true;
  attempt.clear = attempt.socket.get();
  attempt.socket = make_tls_socket(std::move(attempt.socket), request_.tls, TlsConnection::Role::client);
  state_[attempt.candidate].progress = "connected, but no answer to the TLS handshake";
  if (!attempt.socket->watch(*request_.watcher, false, true, 0)) return failed(attempt, ENOMEM);
  (void)attempt.socket->connected();
  return Outcome::pending;
}

// The host's port may belong to another process now, which answers the preamble in clear: it has no part in the handshake. Such
// an answer can refuse, but never accept. Returns nothing if there is no answer in clear.
std::optional<TcpDialer::Outcome> TcpDialer::answer_in_clear(Attempt& attempt) {
  if (attempt.clear == nullptr) return std::nullopt;
  std::array<std::byte, sizeof(TcpSessionReply)> bytes{};
  bool ended = false;
  const auto count = attempt.clear->peek(bytes, ended);
  // An answer that has come only in part is left to the handshake, which fails. The next dial may find all of it.
  if (count != static_cast<ptrdiff_t>(bytes.size()) || std::memcmp(bytes.data(), &tcp_reply_magic, 4) != 0) return std::nullopt;
  std::memcpy(&attempt.reply, bytes.data(), bytes.size());
  const auto why = attempt.reply.reason;
  const bool may_refuse = why == TcpRefusal::version || why == TcpRefusal::other_process || why == TcpRefusal::busy;
  if (attempt.reply.accepted != 0 || !may_refuse) return failed(attempt, EKEYREJECTED);
  return answer_of(attempt);
}

TcpDialer::Outcome TcpDialer::send_hello(Attempt& attempt) {
  const auto preamble = preamble_of(request_.hello);
  auto hello = request_.hello;
  hello.stream_index = attempt.stream;
  hello.attempt = request_.only_asks ? 0 : round_;
  hello.ends = {to_wire(attempt.socket->local()), to_wire(attempt.socket->remote())};
  seal(hello, request_.addresses);
  iovec parts[3];
  int count = 0;
  // The second hello of a connection, to the process that has introduced itself, follows without a preamble.
  if (!attempt.preamble_sent) parts[count++] = {const_cast<TcpPreamble*>(&preamble), sizeof preamble};
  parts[count++] = {&hello, sizeof hello};
  if (!request_.addresses.empty())
    parts[count++] = {request_.addresses.data(), request_.addresses.size() * sizeof(TcpWireAddress)};
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  const auto written = attempt.socket->write(parts, count);
  if (written < 0) return failed(attempt, static_cast<int>(-written));
  // This is unlikely, because the send buffer of a new connection has space for far more bytes than a hello.
  if (static_cast<size_t>(written) != bytes) return failed(attempt, "the network took only a part of the hello");
  state_[attempt.candidate].progress = "connected, but no reply to the hello";
  attempt.preamble_sent = greeted_ = true;
  attempt.phase = Phase::replying;
  UNISONO_CHECK(attempt.socket->watch(*request_.watcher, true, false, 0));
  return read_reply(attempt);
}

TcpDialer::Outcome TcpDialer::read_reply(Attempt& attempt) {
  bool ended = false;
  const auto destination = std::as_writable_bytes(std::span(&attempt.reply, 1)).subspan(attempt.reply_bytes);
  const auto count = read_some(*attempt.socket, destination, ended);
  if (count < 0) return failed(attempt, static_cast<int>(-count));
  if (ended) return failed(attempt, "closed the connection instead of a reply to the hello");
  attempt.reply_bytes += static_cast<size_t>(count);
  return attempt.reply_bytes < sizeof attempt.reply ? Outcome::pending : answer_of(attempt);
}

TcpDialer::Outcome TcpDialer::answer_of(Attempt& attempt) {
  const auto& reply = attempt.reply;
  if (!is_sound(reply)) return failed(attempt, "another program answers there, not Unisono");
  peer_attempts_ = std::max(peer_attempts_, reply.attempt);
  if (reply.accepted == 1) return Outcome::accepted;
  if (reply.reason == TcpRefusal::introduction) return introduced(attempt, reply.self);
  if (reply.reason == TcpRefusal::draining) {
    attempt.reply_bytes = 0;  // the next reply is still to come
    peer_drains_ = true;
    return Outcome::pending;
  }
  auto& candidate = state_[attempt.candidate];
  // With a key, all members have been seen to have one version: then somebody has altered the bytes on their way.
  const bool other_version = reply.reason == TcpRefusal::version && !request_.tls;
  candidate.hopeless = other_version || reply.reason == TcpRefusal::other_job;
  candidate.refused_everywhere = candidate.hopeless || reply.reason == TcpRefusal::other_process;
  const bool ends = reply.reason == TcpRefusal::no_session || reply.reason == TcpRefusal::left;
  if (ends || (request_.only_asks && reply.reason == TcpRefusal::stale && reply.self == request_.hello.to)) {
    final_answer_ = reply;
    answered_at_ = request_.candidates[attempt.candidate];
  }
  auto text = std::string("refused: ") + name(reply.reason);
  return reply.reason == TcpRefusal::no_key ? failed_by_key(attempt, std::move(text)) : failed(attempt, std::move(text));
}

// Handles the id in the listener's answer. The first process that answers becomes the peer of this link. Later answers from
// other processes are refused.
TcpDialer::Outcome TcpDialer::introduced(Attempt& attempt, const PeerId& id) {
  const bool meant = request_.hello.to == PeerId{} ? !introduced_ || *introduced_ == id : false;
  if (id == PeerId{} || !meant) return failed(attempt, "refused: another process is there");
  introduced_ = id;
  attempt.phase = Phase::introduced;
  return Outcome::pending;
}

void TcpDialer::accept_peer() {
  request_.hello.to = *std::exchange(introduced_, std::nullopt);
  for (auto& attempt : attempts_) {
    if (attempt.phase != Phase::introduced) continue;
    attempt.reply = {};
    attempt.reply_bytes = 0;
    attempt.phase = Phase::connecting;  // the next step sends the new hello
    UNISONO_CHECK(attempt.socket->watch(*request_.watcher, false, true, 0));
  }
}

// Called when the first handshake is complete. Drops the other attempts, and opens the remaining streams to the address of the
// winner.
void TcpDialer::choose_attempt(size_t winner) {
  address_chosen_ = true;
  auto kept = std::move(attempts_[winner]);
  attempts_.clear();
  const auto candidate = kept.candidate;
  attempts_.push_back(std::move(kept));
  next_event_ = never;
  if (request_.only_stream) return;
  for (uint16_t stream = 1; stream < request_.hello.stream_count; ++stream) start(candidate, stream);
}

std::vector<TcpDialled> TcpDialer::take() {
  std::vector<TcpDialled> taken(attempts_.size());
  for (auto& attempt : attempts_) {
    auto& place = taken[request_.only_stream ? 0 : attempt.stream];
    place.socket = std::move(attempt.socket);
    place.reply = attempt.reply;
  }
  attempts_.clear();
  return taken;
}

bool TcpDialer::hopeless() const {
  return std::all_of(state_.begin(), state_.end(), [](const auto& candidate) { return candidate.hopeless; });
}

bool TcpDialer::refused_everywhere() const {
  return !state_.empty() &&
         std::all_of(state_.begin(), state_.end(), [](const auto& candidate) { return candidate.refused_everywhere; });
}

bool TcpDialer::refused_at(const std::function<bool(const TcpAddress&)>& matters) const {
  for (size_t i = 0; i < state_.size(); ++i) {
    if (state_[i].nobody_listens && matters(request_.candidates[i])) return true;
  }
  return false;
}

std::string TcpDialer::failures() const {
  std::string text = state_.empty() ? "it has named no address" : "";
  for (size_t i = 0; i < state_.size(); ++i) {
    if (!text.empty()) text += "; ";
    text += request_.candidates[i].to_string() + ": " + (state_[i].error.empty() ? state_[i].progress : state_[i].error);
  }
  return text;
}

}  // namespace unisono
