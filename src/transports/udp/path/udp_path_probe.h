// Probes a path for the largest datagram that arrives, and for a first estimate of its rate from how a train of datagrams
// spreads. Pure.
//
// Both ends use datagrams of kind path_probe. A question (phase 0) is padded with zeros. Its op is its number, packet_index its
// index in the train, and deadline_us the length of the train. The answer (phase 1) has the question's op and a PathAnswer as
// payload. Answers are not answered, and are shorter than questions. Sizes: docs/design/methods/packet_loss.md, "Rates".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "transports/udp/path/udp_rtt.h"
#include "wire/datagram.h"

namespace unisono {

struct PathAnswer {
  uint32_t datagrams = 0;  // how many of the train arrived
  uint32_t bytes = 0;      // UDP payload of those after the first
  uint32_t spread_ns = 0;  // between the first and the last arrival
  uint32_t held_us = 0;    // since the last arrival
  friend bool operator==(const PathAnswer&, const PathAnswer&) = default;
};
static_assert(sizeof(PathAnswer) == 16);

enum class PathPhase : uint8_t { question = 0, answer = 1 };

// One datagram to send at once, not paced, because it measures how fast the path is.
struct PathQuestion {
  uint32_t number = 0, index = 0, count = 1;
  uint32_t bytes = 0;  // UDP payload, header included
};
void put_question(const PathQuestion& question, DatagramHeader& header);
// False if this is no valid question (outside of its train, or a train that is too long).
bool get_question(const DatagramHeader& header, PathQuestion& question);
void put_answer(uint32_t number, DatagramHeader& header);  // its payload: a PathAnswer
bool read_answer(std::span<const std::byte> payload, PathAnswer& answer);

// IP and UDP headers of each packet; the payload is the rest of the path's MTU.
inline constexpr uint32_t ipv4_headers_bytes = 28, ipv6_headers_bytes = 48;

struct PathProbeSettings {
  static constexpr uint32_t assumed_bytes = 1200;
  uint32_t bytes_max = 8972;  // 65,000 for a loopback link: tried, too, if >= 65,000
  uint32_t headers_bytes = ipv4_headers_bytes;
  bool sizes = true;  // false: bytes_max is given, and only the rate is measured
};

class PathProbe {
 public:
  static constexpr uint32_t train_datagrams = 16;
  static constexpr uint32_t size_tries_max = 12;  // at 30 % loss in both directions, all of them fail once in 3000 times
  static constexpr uint32_t train_tries_max = 6;
  static constexpr Nanos train_wait_min = 50 * millisecond;
  static constexpr uint32_t train_heard_min = 4;  // fewer arrivals say nothing about the rate

  explicit PathProbe(const PathProbeSettings& settings);

  // Fills in the next question to send. Call repeatedly; false: there is none to send now. The questions are one padded
  // datagram of each size, then the train.
  bool next(const RttEstimator& rtt, Nanos now, PathQuestion& question);
  // Handles an answer to question `number` and gives rtt its sample. Returns false for unknown numbers and impossible answers.
  bool answered(uint32_t number, const PathAnswer& answer, RttEstimator& rtt, Nanos now);
  // The kernel refused a datagram of this size (EMSGSIZE). This size and longer ones are not tried any more, and the result
  // becomes smaller, for the next epoch.
  void too_long(uint32_t bytes);
  // When to call next() again; `never` when done.
  Nanos due() const { return due_; }

  bool done() const { return stage_ == Stage::done; }
  // datagram_bytes() does not grow any more.
  bool sizes_known() const { return stage_ != Stage::sizes; }
  // The largest size that has arrived; 1200 if none has.
  uint32_t datagram_bytes() const { return best_; }
  // Bytes/s; 0: not known.
  uint64_t dispersion_rate() const { return rate_; }

 private:
  enum class Stage : uint8_t { sizes, train, done };
  bool next_size(PathQuestion& question);
  void remember(const PathQuestion& question, Nanos now);
  void wait(const RttEstimator& rtt, Nanos now);

  PathProbeSettings settings_;
  std::array<uint32_t, 3> sizes_;  // sizes to try: full packets of Ethernet, of jumbo Ethernet, of a loopback
  Stage stage_ = Stage::sizes;
  uint32_t best_ = PathProbeSettings::assumed_bytes, too_long_ = UINT32_MAX;
  uint32_t number_ = 0;          // of the next question
  uint32_t tries_ = 0, at_ = 0;  // tries_: in this stage; at_: position in this try
  struct Asked {
    uint32_t number = 0, bytes = 0, count = 1;
    Nanos at = never;  // time of its last datagram; never: answered, or not asked
  };
  std::array<Asked, 32> asked_{};  // by number modulo its size
  Nanos due_ = 0;
  uint64_t rate_ = 0;
};

// The receiver's side: the train that is arriving from one sender, and its answer.
class TrainMeter {
 public:
  static constexpr Nanos silence_max = 2 * millisecond;  // after it a train counts as finished, whole or not

  // arrived: the kernel's time stamp if there is one, otherwise now.
  void question(const PathQuestion& question, Nanos arrived);
  // When to send the answer; `never` if there is none.
  Nanos due() const { return due_; }
  // The answer and the number of its question. Call once.
  PathAnswer answer(Nanos now, uint32_t& number);

 private:
  bool any_ = false, answered_ = false;
  uint32_t number_ = 0, seen_ = 0;  // seen: bit per index
  PathAnswer answer_;
  Nanos first_ = 0, last_ = 0, due_ = never;
};

}  // namespace unisono
