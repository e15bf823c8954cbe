// Measures the latency and the rate of one link when a group forms. This process sends requests, and the peer answers them.
//
// LinkProbe is a state machine without a clock and without a socket. Its inputs are answers and the time; its outputs are
// requests. First it sends echoes of a few bytes, one after another. The latency is half of the shortest round trip. Then it
// sends bursts of chunks, and the peer answers each chunk with a few bytes. Each burst is four times as large as the previous
// one. Bursts stop growing when one takes long enough to be measured, or when they have the largest size. Thus they do not clog
// a slow link: the data in flight is at most four times what the link has just carried quickly.
//
// Inside a host, the rate is that of the fastest of the largest bursts, because the slower ones were disturbed. Between hosts,
// a traffic shaper may let the first bytes pass quickly. Therefore bursts grow larger there, and the rate is that of the median
// burst. At the end, some more echoes follow, because two new processes may have shared a core at first. A probe always ends:
// at its deadline it uses the answers that have arrived. If the peer has answered nothing, the link counts as not measured.
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
  double latency_us = 0;    // half of a round trip; it includes the CPU time for sending and receiving
  double bytes_per_us = 0;  // the rate in one direction
  friend bool operator==(const LinkMeasurement&, const LinkMeasurement&) = default;
};

enum class LinkSpan : uint8_t { inside_host, between_hosts };

class LinkProbe {
 public:
  // A control message for the peer. The caller must send it `times` times.
  struct Request {
    std::shared_ptr<Bytes> message;
    uint32_t times = 1;
  };

  // `number` must be different for every probe, so that a probe can recognize answers to an earlier one. The probe ends at the
  // time `until` at the latest.
  LinkProbe(uint32_t number, LinkSpan span, Nanos now, Nanos until);

  // Handles a control message from the peer. Ignores it if it does not answer the last request.
  void on_answer(ByteView message, Nanos now);
  void woke(Nanos now);
  // Returns the time at which woke() must be called. Returns `never` after the end of the probe.
  Nanos next_deadline() const { return done() ? never : deadline_; }
  bool done() const { return phase_ == Phase::done; }
  // Returns the measurement. It is complete when done() returns true.
  const LinkMeasurement& result() const { return result_; }
  std::optional<Request> take_request() { return std::exchange(request_, std::nullopt); }

  // Returns the peer's answer to a request. Returns an empty message if `message` is not a request.
  static Bytes answer(ByteView message);

 private:
  enum class Phase : uint8_t { echo, burst, echo_again, done };

  void echo(Nanos now);
  void on_echo(Nanos now);
  void burst(uint32_t bytes, Nanos now);
  void on_burst(Nanos now);
  void finish();
  std::shared_ptr<Bytes> message(uint32_t bytes);
  // Returns the duration of a burst minus a round trip. Round trips vary, so the difference may be far too small. Therefore the
  // result is at least an eighth of the duration.
  Nanos without_echo(Nanos took) const { return std::max<Nanos>({1, took - round_trip_, took / 8}); }

  const uint32_t number_;
  const LinkSpan span_;
  const Nanos until_;
  Phase phase_ = Phase::echo;
  Nanos started_ = 0;  // when the echoes of the current phase began
  Nanos deadline_ = 0;
  Nanos sent_at_ = 0;         // when the echo or burst was sent that has not been answered yet
  Nanos round_trip_ = never;  // the shortest round trip so far
  uint32_t sequence_ = 0;     // sequence number of the echo or of the chunks that were sent last
  uint32_t echoes_ = 0;       // number of echoes in this phase that have been answered
  Nanos bursts_began_ = 0;
  // These belong to the last burst: its size, the number of chunks sent, and the number of chunks answered.
  uint32_t burst_bytes_ = 0, burst_chunks_ = 0, chunks_answered_ = 0;
  std::vector<Nanos> durations_;  // durations of those bursts that had the current size
  std::shared_ptr<Bytes> chunk_;
  std::optional<Request> request_;
  LinkMeasurement result_;
};

}  // namespace unisono
