#include "transports/tcp/tcp_session.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace unisono {

Nanos TcpSession::step(Nanos now) {
  const Nanos gap = now - std::exchange(stepped_at_, now);
  if (gap == now || gap <= options_.stopped_after) return 0;
  next_dial_ += gap;
  if (dial_) dial_->since += gap;
  if (begin_deadline_ != never) begin_deadline_ += gap;
  if (down_since_ != never) down_since_ += gap;
  return gap;
}

Nanos TcpSession::next_deadline() const {
  Nanos next = stage_ == Stage::accepted ? begin_deadline_ : never;
  if (dial_) next = std::min(next, dial_->since + options_.dial_timeout);
  else if (wants_dial()) next = std::min(next, next_dial_);
  return next == never ? never : std::min(next, step_again_at());
}

// This side's dial ----------------------------------------------------------------------------------------------------

// A side that has heard `leaving` dials, too: the peer's last frames may still be unconfirmed, and it may be unable to dial.
bool TcpSession::dial_due(Nanos now) const { return wants_dial() && !dial_ && now >= next_dial_; }

uint32_t TcpSession::begin_dial(Nanos now) {
  UNISONO_CHECK(!dial_);
  dial_ = Dial{.since = now};
  const bool long_down = stage_ == Stage::up || !resumes_ || (down_since_ != never && now - down_since_ >= options_.soon_until);
  next_dial_ = now + (long_down ? options_.later : options_.soon);
  return ++attempt_;
}

void TcpSession::send_hello(Nanos now) {
  UNISONO_CHECK(dial_);
  dial_->hello_sent = true;
  dial_->since = now;
  greeted_ = true;
}

void TcpSession::end_dial() { dial_.reset(); }

TcpReplyVerdict TcpSession::judge(const TcpSessionReply& reply, Nanos now) {
  // The peer has read this side's hello, so every hello that it sent before is older than what this reply decides.
  seen_ = std::max(seen_, reply.attempt);
  if (!dial_ || !dial_->hello_sent) return TcpReplyVerdict::again;
  if (reply.accepted == 1) {
    stage_ = Stage::retiring;
    by_dial_ = true;
    return TcpReplyVerdict::adopt;
  }
  if (reply.reason == TcpRefusal::draining) {
    dial_->since = now;
    return TcpReplyVerdict::wait;
  }
  end_dial();
  if (reply.reason == TcpRefusal::left) return TcpReplyVerdict::left;
  if (reply.reason == TcpRefusal::no_session) return left_ ? TcpReplyVerdict::left : TcpReplyVerdict::lost;
  return TcpReplyVerdict::again;
}

void TcpSession::adopted(bool direct, Nanos now) {
  UNISONO_CHECK(stage_ == Stage::retiring && by_dial_);
  dial_.reset();
  seen_ = std::max(seen_, held_);
  go_on(direct, now);
}

// The peer's dial -----------------------------------------------------------------------------------------------------

bool TcpSession::lets_wait(Nanos now) const {
  if (stage_ == Stage::retiring && by_dial_) return true;
  return dial_ && dial_->hello_sent && options_.smaller_id && now < dial_->since + options_.other_dial_timeout;
}

TcpHelloVerdict TcpSession::judge(const TcpSessionHello& hello, bool can_drain, Nanos now) {
  const auto refuse = [&](TcpRefusal why) {
    refusal_ = why;
    return TcpHelloVerdict::refuse;
  };
  const bool other = hello.session != number_;
  if (other && hello.resumes != 0) return refuse(TcpRefusal::no_session);
  if (!other && left_ && stage_ == Stage::down) return refuse(TcpRefusal::left);
  // A stale hello comes from before the connection in use, so its sender believes that one still.
  if (hello.attempt <= seen_) return refuse(TcpRefusal::stale);
  // If nothing of the peer was read, its first hello may have crossed this side's, and everything still can begin at 0.
  if (other && known_) return TcpHelloVerdict::new_link;
  if (!can_drain || lets_wait(now)) {
    held_ = std::max(held_, hello.attempt);
    return TcpHelloVerdict::hold;
  }
  number_ = hello.session;
  seen_ = hello.attempt;
  dial_.reset();
  stage_ = Stage::retiring;
  by_dial_ = false;
  return TcpHelloVerdict::accept;
}

void TcpSession::accepted(Nanos now) {
  UNISONO_CHECK(stage_ == Stage::retiring && !by_dial_);
  stage_ = Stage::accepted;
  begin_deadline_ = now + options_.begin_timeout;
}

void TcpSession::begun(bool direct, Nanos now) {
  UNISONO_CHECK(stage_ == Stage::accepted || stage_ == Stage::retiring);
  known_ = resumes_ = true;
  // begin was found in a connection that is being replaced: the queue is rewound, and the successor stays chosen.
  if (stage_ == Stage::retiring) return;
  go_on(direct, now);
  heard_ = true;
}

// The connection in use -----------------------------------------------------------------------------------------------

void TcpSession::go_on(bool direct, Nanos now) {
  stage_ = Stage::up;
  direct_ = direct;
  heard_ = greeted_ = suspected_ = false;
  resumes_ = true;
  begin_deadline_ = down_since_ = never;
  next_dial_ = now;
}

void TcpSession::heard() { heard_ = known_ = true; }

void TcpSession::ended(Nanos now) {
  if (stage_ == Stage::retiring && by_dial_) dial_.reset();
  stage_ = Stage::down;
  suspected_ = false;
  begin_deadline_ = never;
  if (!resumes_ || down_since_ != never) return;
  down_since_ = now;
  next_dial_ = now;
}

bool TcpSession::progressed() {
  const bool dialled = suspected_ && dial_.has_value();
  suspected_ = false;
  return dialled;
}

std::optional<Nanos> TcpSession::down_for(Nanos now) const {
  return down_since_ == never ? std::nullopt : std::optional(now - down_since_);
}

}  // namespace unisono
