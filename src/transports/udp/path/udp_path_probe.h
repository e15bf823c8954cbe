// What a path carries: the largest datagram that arrives, and a first guess of its rate from how a train of datagrams spreads.
// Pure.
//
// Both ends use datagrams of kind path_probe. A question (phase 0) is padded with zeros; op is its number, packet_index its
// place in the train, deadline_us how many datagrams the train has. The answer (phase 1) has the question's op and a PathAnswer
// as payload; answers are not answered, and are shorter than questions. Sizes: docs/design/methods/packet_loss.md, "Rates".
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
  uint32_t datagrams = 0;  // of the train, that arrived
  uint32_t bytes = 0;      // of those after the first, UDP payload
  uint32_t spread_ns = 0;  // between the first and the last arrival
  uint32_t held_us = 0;    // since the last arrival
  friend bool operator==(const PathAnswer&, const PathAnswer&) = default;
};
static_assert(sizeof(PathAnswer) == 16);

enum class PathPhase : uint8_t { question = 0, answer = 1 };

// One datagram to send at once, not paced: it is to see how fast the path is.
struct PathQuestion {
  uint32_t number = 0, index = 0, count = 1;
  uint32_t bytes = 0;  // UDP payload, header included
};
void put_question(const PathQuestion& question, DatagramHeader& header);
// False: no such question (more than a train, outside of it).
bool get_question(const DatagramHeader& header, PathQuestion& question);
void put_answer(uint32_t number, DatagramHeader& header);  // its payload: a PathAnswer
bool read_answer(std::span<const std::byte> payload, PathAnswer& answer);

// IP and UDP, of each packet: what a path's MTU leaves is the payload.
inline constexpr uint32_t ipv4_headers_bytes = 28, ipv6_headers_bytes = 48;

struct PathProbeSettings {
  static constexpr uint32_t assumed_bytes = 1200;
  uint32_t bytes_max = 8972;  // 65,000 where the link is a loopback: tried too if >= 65,000
  uint32_t headers_bytes = ipv4_headers_bytes;
  bool sizes = true;  // false: bytes_max is given, and only the rate is asked for
};

class PathProbe {
 public:
  static constexpr uint32_t train_datagrams = 16;
  static constexpr uint32_t size_tries_max = 12;  // at 30 % loss both ways all of them fail once in 3000 times
  static constexpr uint32_t train_tries_max = 6;
  static constexpr Nanos train_wait_min = 50 * millisecond;
  static constexpr uint32_t train_heard_min = 4;  // fewer say nothing about the rate

  explicit PathProbe(const PathProbeSettings& settings);

  // What to send now, until it returns false: first one padded datagram of each size, and then the train.
  bool next(const RttEstimator& rtt, Nanos now, PathQuestion& question);
  // An answer to question `number`. Gives rtt its sample. Unknown numbers and impossible answers are ignored: false.
  bool answered(uint32_t number, const PathAnswer& answer, RttEstimator& rtt, Nanos now);
  // The kernel said EMSGSIZE to a datagram of this size: it and longer ones are not tried, and the result goes below it, for
  // the next epoch.
  void too_long(uint32_t bytes);
  // When to call next() again; `never` when done.
  Nanos due() const { return due_; }

  bool done() const { return stage_ == Stage::done; }
  // datagram_bytes() grows no more.
  bool sizes_known() const { return stage_ != Stage::sizes; }
  // The largest that has been seen to arrive; 1200 if none has.
  uint32_t datagram_bytes() const { return best_; }
  // Bytes/s; 0: not known.
  uint64_t dispersion_rate() const { return rate_; }

 private:
  enum class Stage : uint8_t { sizes, train, done };
  bool next_size(PathQuestion& question);
  void remember(const PathQuestion& question, Nanos now);
  void wait(const RttEstimator& rtt, Nanos now);

  PathProbeSettings settings_;
  std::array<uint32_t, 3> sizes_;  // tried: what fills packets of Ethernet, of jumbo Ethernet, of a loopback
  Stage stage_ = Stage::sizes;
  uint32_t best_ = PathProbeSettings::assumed_bytes, too_long_ = UINT32_MAX;
  uint32_t number_ = 0;          // of the next question
  uint32_t tries_ = 0, at_ = 0;  // of this stage; the place in this try
  struct Asked {
    uint32_t number = 0, bytes = 0, count = 1;
    Nanos at = never;  // the last of its datagrams; never: answered, or not asked
  };
  std::array<Asked, 32> asked_{};  // by number modulo its size
  Nanos due_ = 0;
  uint64_t rate_ = 0;
};

// The receiver's part: the train that is coming in from one sender, and its answer.
class TrainMeter {
 public:
  static constexpr Nanos silence_max = 2 * millisecond;  // after it a train is over, whole or not

  // arrived: when, as the kernel's time stamp has it if there is one; now otherwise.
  void question(const PathQuestion& question, Nanos arrived);
  // When to send the answer; `never` if there is none.
  Nanos due() const { return due_; }
  // The answer, and the number of its question. Once.
  PathAnswer answer(Nanos now, uint32_t& number);

 private:
  bool any_ = false, answered_ = false;
  uint32_t number_ = 0, seen_ = 0;  // seen: bit per index
  PathAnswer answer_;
  Nanos first_ = 0, last_ = 0, due_ = never;
};

}  // namespace unisono
