// The session of one stream: which connection carries it, when to dial, whose dial wins, and whether the kernel's word about
// acknowledged bytes is believed. It has no socket and no clock; the stream tells it what happened, and does what it says.
//
// A connection is replaced in three steps, so that each byte is taken once and none is missing:
//   hello   the dialler believes no acknowledgement any more, but reads on
//   reply   the acceptor believes no more, reads the old connection empty, closes it, and says its position
//   begin   the dialler does the same, goes on at the reply's position, and says its own
// A side that believed an acknowledgement did so before its hello or reply was sent. The other side reads its old connection
// empty after that, so the position it says lies behind every byte that was believed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "transports/tcp/tcp_greeting.h"

namespace unisono {

struct TcpSessionOptions {
  uint64_t number = 0;      // a random number, which holds if this process's dial makes the first connection
  bool smaller_id = false;  // this process's id is the smaller one of the two
  // The first dial begins at this time or later. The side that waits for the other one's dial sets it to a later time.
  Nanos first_dial = 0;
  // While this side's hello is unanswered and its id is the smaller one, the other side's hello waits this long.
  Nanos other_dial_timeout = 1 * second;
  Nanos dial_timeout = 1 * second;   // a dial without connection, or without reply, ends
  Nanos begin_timeout = 1 * second;  // an accepted connection on which no begin comes ends
  // A dial follows the last one after `soon` at first, and after `later` when the stream has been down for `soon_until`, or if
  // its connection stands. The first ones come quickly: a process that is being killed may still take a connection and close
  // it.
  Nanos soon = 2 * millisecond, later = 200 * millisecond, soon_until = 100 * millisecond;
  // If step() was not called for longer than this, the process was stopped, and all time limits move.
  Nanos stopped_after = 1 * second;
};

enum class TcpHelloVerdict : uint8_t {
  // Withdraw this side's own dial, read the old connection empty, close it, then reply and call accepted(). If the peer's last
  // frame was in it, reply `left` and call ended() instead.
  accept,
  hold,      // judge the hello again later; the connection stays open
  refuse,    // reply with the reason and close
  new_link,  // the peer has begun a new link: the old one is lost, and the hello is judged by the new one
};

enum class TcpReplyVerdict : uint8_t {
  adopt,  // read the old connection empty, close it, rewind to the reply's position, send begin and call adopted()
  wait,   // the peer is busy with its old connection: the reply is still to come
  again,  // close; another dial follows
  lost,   // close; the peer has given up this link
  left,   // close; the peer has read everything up to the reply's position, and this link has ended in order
};

class TcpSession {
 public:
  enum class Stage : uint8_t {
    down,      // no connection
    retiring,  // the successor is chosen, and the old connection is read to its end; nothing is written
    accepted,  // the reply is sent; nothing may be written before begin is read
    up,
  };

  explicit TcpSession(const TcpSessionOptions& options)
      : options_(options), number_(options.number), next_dial_(options.first_dial) {}

  Stage stage() const { return stage_; }
  bool may_write() const { return stage_ == Stage::up; }
  uint64_t number() const { return number_; }
  uint32_t attempt() const { return attempt_; }
  // Returns true if this side has had a connection of this session: the value of TcpSessionHello::resumes.
  bool resumes() const { return resumes_; }

  // Call this in each poll before the calls below. Returns for how long the process was stopped, by which the caller moves its
  // own times; 0: it was not.
  Nanos step(Nanos now);
  // While time limits run, step() must be called by this time, so that waiting does not look like being stopped.
  Nanos step_again_at() const { return stepped_at_ + options_.stopped_after / 2; }
  Nanos next_deadline() const;

  // This side's dial -------------------------------------------------------------------------------------------------
  bool dialling() const { return dial_.has_value(); }
  bool dial_due(Nanos now) const;
  // Returns the number of the attempt, which goes into the hello.
  uint32_t begin_dial(Nanos now);
  // Dials of this side up to this number were made outside of this object.
  void count_dials(uint32_t attempts) { attempt_ = std::max(attempt_, attempts); }
  // Call this before the hello is sent, and ask the kernel for the last believed acknowledgement before that.
  void send_hello(Nanos now);
  // Returns true if the dial takes too long. The caller closes it and calls end_dial().
  bool dial_expired(Nanos now) const { return dial_ && now >= dial_->since + options_.dial_timeout; }
  void end_dial();
  TcpReplyVerdict judge(const TcpSessionReply& reply, Nanos now);
  // begin is sent, and the stream goes on over the dialled connection. `direct`: see is_direct().
  void adopted(bool direct, Nanos now);

  // The peer's dial --------------------------------------------------------------------------------------------------
  // can_drain: the decoder has memory, so that the old connection can be read to its end.
  TcpHelloVerdict judge(const TcpSessionHello& hello, bool can_drain, Nanos now);
  TcpRefusal refusal() const { return refusal_; }  // the reason of the last verdict `refuse`
  // The reply is sent.
  void accepted(Nanos now);
  // Returns true if begin should have come. The caller reads what is there, and closes the connection if begin is not in it.
  bool begin_expired(Nanos now) const { return stage_ == Stage::accepted && now >= begin_deadline_; }
  // begin was read, and the queue was rewound to its position.
  void begun(bool direct, Nanos now);

  // The connection in use --------------------------------------------------------------------------------------------
  // A frame was read. From the first one on, the peer is known to use this connection, and its acknowledgements count.
  void heard();
  bool was_heard() const { return heard_; }
  bool is_direct() const { return direct_; }
  bool believes() const { return stage_ == Stage::up && direct_ && heard_ && !greeted_; }
  // The connection has ended, and was read empty. Also call this if the successor ends while the stage is `retiring`.
  void ended(Nanos now);
  // Bytes are unacknowledged although they were sent again: dial beside this connection. progressed() says that they are
  // acknowledged now; it returns true if a dial is under way, which the caller drops.
  void suspect() { suspected_ = stage_ == Stage::up; }
  bool suspected() const { return suspected_; }
  bool progressed();
  // The peer has sent its last frame.
  void peer_left() { left_ = true; }
  // Returns for how long there has been no connection; nothing if there is one, or if there has never been one.
  std::optional<Nanos> down_for(Nanos now) const;

 private:
  struct Dial {
    Nanos since = 0;
    bool hello_sent = false;
  };
  void go_on(bool direct, Nanos now);
  bool wants_dial() const { return stage_ == Stage::down || (stage_ == Stage::up && suspected_); }
  bool lets_wait(Nanos now) const;

  TcpSessionOptions options_;
  uint64_t number_ = 0;
  Stage stage_ = Stage::down;
  std::optional<Dial> dial_;
  uint32_t attempt_ = 0;  // how often this side has dialled
  uint32_t seen_ = 0;     // hellos of the peer up to this number are stale
  uint32_t held_ = 0;     // the highest number of a hello that was held
  TcpRefusal refusal_ = TcpRefusal::none;
  bool by_dial_ = false;  // stage retiring: the successor is this side's dial
  bool resumes_ = false;
  bool known_ = false;  // something of the peer was read in this session, so the peer knows its number
  bool direct_ = false;
  bool heard_ = false;    // a frame was read on the connection in use
  bool greeted_ = false;  // a hello for a successor of the connection in use was sent
  bool suspected_ = false;
  bool left_ = false;
  Nanos stepped_at_ = 0;
  Nanos next_dial_ = 0;
  Nanos begin_deadline_ = never;
  Nanos down_since_ = never;
};

}  // namespace unisono
