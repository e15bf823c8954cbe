// Measures one link when a group forms: latency and rate between rank 0, which asks, and one peer, which answers.
//
// A state machine: answers and time in, questions out; no clock, no socket. First echoes of a few bytes, one after another:
// half the shortest round trip is the latency. Then bursts of chunks, each chunk answered by a few bytes, each burst four
// times the one before until it takes long enough to be measured or is large enough. So what is on its way is never more than
// four times what the link has just carried quickly, and a thin link is not clogged. Inside a host the best of the largest
// bursts gives the rate: others were disturbed. Between hosts bursts become larger, and the median counts: a shaper lets the
// first bytes pass quickly. Then some echoes once more: two processes that have just started may have shared a core at first.
// It always ends: with what has arrived when the time is up. A peer that answers nothing leaves the link unmeasured.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"

namespace unisono {

struct LinkMeasurement {
  bool measured = false;
  double latency_us = 0;    // half a round trip: with the work of sending and receiving
  double bytes_per_us = 0;  // one way
  friend bool operator==(const LinkMeasurement&, const LinkMeasurement&) = default;
};

enum class LinkSpan : uint8_t { inside_host, between_hosts };

class LinkProbe {
 public:
  // A control message for the peer, to be sent so many times.
  struct Question {
    std::shared_ptr<Bytes> message;
    uint32_t times = 1;
  };

  // number: new for every probe, so that answers to an earlier one are known. until: the end at the latest.
  LinkProbe(uint32_t number, LinkSpan span, Nanos now, Nanos until);

  // Takes a control message of the peer. A message that answers no open question changes nothing.
  void answered(ByteView message, Nanos now);
  void woke(Nanos now);
  // When woke() must be called; `never` after the end.
  Nanos next_deadline() const { return done() ? never : deadline_; }
  bool done() const { return phase_ == Phase::done; }
  // Complete after done().
  const LinkMeasurement& result() const { return result_; }
  std::optional<Question> take_question() { return std::exchange(question_, std::nullopt); }

  // The other side's answer to a question; empty if the message is no question.
  static Bytes answer(ByteView message);

 private:
  enum class Phase : uint8_t { echo, burst, echo_again, done };

  void echo(Nanos now);
  void echo_came(Nanos now);
  void burst(uint32_t bytes, Nanos now);
  void burst_came(Nanos now);
  void finish();
  std::shared_ptr<Bytes> message(uint32_t bytes);
  // The time that the bytes of a burst took, less the round trip; at least an eighth of it, because round trips vary.
  Nanos without_echo(Nanos took) const { return std::max<Nanos>({1, took - round_trip_, took / 8}); }

  const uint32_t number_;
  const LinkSpan span_;
  const Nanos until_;
  Phase phase_ = Phase::echo;
  Nanos started_ = 0;  // the echoes
  Nanos deadline_ = 0;
  Nanos asked_ = 0;           // when the open echo or burst was begun
  Nanos round_trip_ = never;  // the shortest so far
  uint32_t sequence_ = 0;     // of the open echo, or of the chunks of the open burst
  uint32_t echoes_ = 0;       // of this phase
  Nanos bursts_began_ = 0;
  uint32_t burst_bytes_ = 0, burst_chunks_ = 0, chunks_came_ = 0;  // of the open burst
  std::vector<Nanos> took_;                                        // bursts of this size
  std::shared_ptr<Bytes> chunk_;
  std::optional<Question> question_;
  LinkMeasurement result_;
};

}  // namespace unisono
