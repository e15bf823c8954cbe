#include "transports/tcp/tcp_dialer.h"

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/error_text.h"

namespace unisono {

TcpDialer::TcpDialer(TcpDialRequest request) : request_(std::move(request)), state_(request_.candidates.size()) {}

bool TcpDialer::step(Nanos now) {
  if (complete()) return false;
  bool any = false, broken = false;
  for (size_t i = 0; i < attempts_.size();) {
    auto& attempt = attempts_[i];
    const bool rests = attempt.phase == Phase::accepted || attempt.phase == Phase::introduced;
    const auto outcome = rests ? Outcome::pending : advance(attempt);
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
  if (complete()) return true;
  if (broken) {
    start_over(now);
  } else if (!address_chosen_ && now >= next_event_) {
    any = true;
    while (next_candidate_ < state_.size() && state_[next_candidate_].hopeless) ++next_candidate_;
    if (next_candidate_ < state_.size()) {
      next_event_ = now + stagger;
      start(next_candidate_++, 0);
    } else if (attempts_.empty()) {
      start_over(now);
    } else {
      // All addresses are being tried. Each attempt is ended by the kernel, or by the owner at its deadline.
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
  next_event_ = hopeless() ? never : now + retry_delay_;
  retry_delay_ = std::min(2 * retry_delay_, retry_last);
}

void TcpDialer::start(size_t candidate, uint16_t stream) {
  state_[candidate].refused_everywhere = false;
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
  return Outcome::failed;
}

TcpDialer::Outcome TcpDialer::failed(const Attempt& attempt, int error) {
  state_[attempt.candidate].refused_everywhere = error == ECONNREFUSED;
  return failed(attempt, error_text(error));
}

TcpDialer::Outcome TcpDialer::advance(Attempt& attempt) {
  if (!attempt.socket) return Outcome::failed;
  if (attempt.phase == Phase::replying) return read_reply(attempt);
  const auto error = attempt.socket->connected();
  if (!error) return Outcome::pending;
  if (*error != 0) return failed(attempt, *error);
  return send_hello(attempt);
}

TcpDialer::Outcome TcpDialer::send_hello(Attempt& attempt) {
  auto hello = request_.hello;
  hello.stream_index = attempt.stream;
  seal_hello(hello);
  const auto count = write_some(*attempt.socket, std::as_bytes(std::span(&hello, 1)));
  if (count < 0) return failed(attempt, static_cast<int>(-count));
  // This is unlikely, because the send buffer of a new connection has space for far more bytes than a hello.
  if (static_cast<size_t>(count) != sizeof hello) return failed(attempt, "the network took only a part of the hello");
  state_[attempt.candidate].progress = "connected, but no reply to the hello";
  attempt.phase = Phase::replying;
  UNISONO_CHECK(attempt.socket->watch(*request_.watcher, true, false, 0));
  return read_reply(attempt);
}

TcpDialer::Outcome TcpDialer::read_reply(Attempt& attempt) {
  auto& reply = attempt.answer.reply;
  const bool whole = attempt.answer_bytes >= sizeof reply;
  auto destination = std::as_writable_bytes(std::span(&attempt.answer, 1))
                         .first(whole ? sizeof attempt.answer : sizeof reply)
                         .subspan(attempt.answer_bytes);
  bool ended = false;
  const auto count = read_some(*attempt.socket, destination, ended);
  if (count < 0) return failed(attempt, static_cast<int>(-count));
  if (ended) return failed(attempt, "closed the connection instead of a reply to the hello");
  attempt.answer_bytes += static_cast<size_t>(count);
  if (attempt.answer_bytes < sizeof reply) return Outcome::pending;
  if (attempt.answer_bytes == sizeof attempt.answer) return introduced(attempt);
  if (!is_reply(reply)) return failed(attempt, "another program answers there, not Unisono");
  if (reply.accepted == 1) return Outcome::accepted;
  if (reply.reason == TcpRefusal::introduction) return whole ? Outcome::pending : read_reply(attempt);
  auto& candidate = state_[attempt.candidate];
  candidate.hopeless = reply.reason == TcpRefusal::version || reply.reason == TcpRefusal::other_job;
  candidate.refused_everywhere = candidate.hopeless || reply.reason == TcpRefusal::other_process;
  return failed(attempt, std::string("refused: ") + name(reply.reason));
}

// Handles the id in the listener's answer. The first process that answers becomes the peer of this link. Later answers from
// other processes are refused.
TcpDialer::Outcome TcpDialer::introduced(Attempt& attempt) {
  const auto id = attempt.answer.self;
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
    attempt.answer = {};
    attempt.answer_bytes = 0;
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
  for (uint16_t stream = 1; stream < request_.hello.stream_count; ++stream) start(candidate, stream);
}

std::vector<std::unique_ptr<StreamSocket>> TcpDialer::take() {
  std::vector<std::unique_ptr<StreamSocket>> sockets(attempts_.size());
  for (auto& attempt : attempts_) sockets[attempt.stream] = std::move(attempt.socket);
  attempts_.clear();
  return sockets;
}

bool TcpDialer::hopeless() const {
  return std::all_of(state_.begin(), state_.end(), [](const auto& candidate) { return candidate.hopeless; });
}

bool TcpDialer::refused_everywhere() const {
  return std::all_of(state_.begin(), state_.end(), [](const auto& candidate) { return candidate.refused_everywhere; });
}

std::string TcpDialer::failures() const {
  std::string text;
  for (size_t i = 0; i < state_.size(); ++i) {
    if (!text.empty()) text += "; ";
    text += request_.candidates[i].to_string() + ": " + (state_[i].error.empty() ? state_[i].progress : state_[i].error);
  }
  return text;
}

}  // namespace unisono
