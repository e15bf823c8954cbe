// Probes a path for two values: the size of the longest datagram that arrives, and a rough estimate of the path's rate. The
// search for the size begins with the link. For the rate, a train of datagrams is sent at once; the rate follows from the
// distances in time at which they arrive. Trains are long, and most links of a large group carry little. Therefore a train is
// sent only when measure_rate() asks for it. The classes have no socket and no clock.
//
// The size may fall later: when check() shows that datagrams of that size no longer arrive, or when the kernel refuses one. It
// then becomes 1200, or the longest size below that arrives. Longer sizes are tried again from time to time (RFC 8899, sections
// 4.3 and 5.2, the states Base, Search and Search Complete).
//
// Both processes use datagrams of the kind path_probe. A question has phase 0, and is padded with zeros. In a question, `op` is
// the number of the question, packet_index is the datagram's index in the train, and deadline_us is the length of the train. An
// answer has phase 1, the `op` of its question, and a PathAnswer as payload. An answer is shorter than its question, and is not
// answered itself. Sizes: docs/design/methods/packet_loss.md, "Rates".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/clock.h"
#include "transports/udp/path/udp_rtt.h"
#include "wire/datagram.h"

namespace unisono {

struct PathAnswer {
  uint32_t datagrams = 0;  // how many datagrams of the train have arrived
  uint32_t bytes = 0;      // bytes of UDP payload in all these datagrams except the first
  uint32_t spread_ns = 0;  // time between the first and the last arrival
  uint32_t held_us = 0;    // time from the last arrival until the answer was sent
  friend bool operator==(const PathAnswer&, const PathAnswer&) = default;
};
static_assert(sizeof(PathAnswer) == 16);

enum class PathPhase : uint8_t { question = 0, answer = 1 };

// One datagram of a question. It is sent at once and not paced, because it measures how fast the path is.
struct PathQuestion {
  uint32_t number = 0, index = 0, count = 1;
  uint32_t bytes = 0;  // bytes of UDP payload, including our header
};
void put_question(const PathQuestion& question, DatagramHeader& header, uint32_t header_bytes = datagram_header_bytes);
// Returns false if the question is invalid: its index is outside of its train, or the train is too long.
bool get_question(const DatagramHeader& header, PathQuestion& question);
void put_answer(uint32_t number, DatagramHeader& header);  // the datagram's payload is a PathAnswer
bool read_answer(std::span<const std::byte> payload, PathAnswer& answer);

// An IP packet begins with this many bytes of IP and UDP headers. The rest of the path's MTU is UDP payload.
inline constexpr uint32_t ipv4_headers_bytes = 28, ipv6_headers_bytes = 48;

struct PathProbeSettings {
  static constexpr uint32_t assumed_bytes = base_datagram_bytes;
  uint32_t bytes_max = 8972;  // The largest datagram to try. If it is 65,000 or more, the loopback size (65,000) is tried, too.
  uint32_t headers_bytes = ipv4_headers_bytes;
  bool sizes = true;  // If false, no sizes are tried: the probe uses bytes_max, and measures at most the rate.
};

class PathProbe {
 public:
  static constexpr uint32_t train_datagrams = 16;
  // If 30 % of the datagrams are lost in each direction, all 12 tries fail in one of 3000 cases.
  static constexpr uint32_t size_tries_max = 12;
  static constexpr uint32_t train_tries_max = 6;
  static constexpr Nanos train_wait_min = 50 * millisecond;
  static constexpr uint32_t train_arrivals_min = 4;  // if fewer datagrams arrive, the rate cannot be estimated
  // A path counts as a black hole for a size after this many unanswered tries, while this many tries with 1200 bytes were
  // answered. If 30 % of the datagrams are lost in each direction, one check in 200 errs; longer sizes are tried again soon.
  static constexpr uint32_t check_tries_min = 8, check_answers_min = 4;
  static constexpr Nanos check_interval_max = 50 * millisecond;
  // Later searches for longer sizes: how many tries each makes, and the time before the first and the longest between two.
  static constexpr uint32_t raise_tries_max = 4;
  static constexpr Nanos raise_first = second, raise_max = 64 * second;

  explicit PathProbe(const PathProbeSettings& settings);

  // Fills in the next question to send. Call it again until it returns false, which means that there is nothing to send now.
  // First it sends one padded datagram of each size, and then the train if measure_rate() was called.
  bool next(const RttEstimator& rtt, Nanos now, PathQuestion& question);
  // Makes next() send the train as soon as no question about sizes waits for an answer. The first call counts, others do
  // nothing.
  void measure_rate(Nanos now);
  // Returns true from the first call of measure_rate() until the rate is known, or until no train was answered.
  bool measures_rate() const { return rate_pending_ || stage_ == Stage::train; }
  bool rate_asked() const { return rate_asked_; }
  // Handles an answer to the question `number`, and adds its round trip to `rtt`. Returns false if the number is unknown, or
  // the answer is impossible.
  bool answered(uint32_t number, const PathAnswer& answer, RttEstimator& rtt, Nanos now);
  // Call this when the kernel has refused a datagram of this size (EMSGSIZE). After that, this size and longer ones are not
  // tried any more, unless they were in use. If datagram_bytes() was this size or longer, it becomes shorter.
  void too_long(uint32_t bytes, Nanos now);
  // Begins to check whether datagrams of datagram_bytes() still arrive. Call this only if can_check(). A train that is not
  // answered yet is sent again after the check, because a black hole loses all of it.
  void check(Nanos now);
  bool can_check() const {
    return settings_.sizes && (stage_ == Stage::done || stage_ == Stage::train) && best_ > PathProbeSettings::assumed_bytes;
  }
  // Returns true once after a check has ended: the path carries datagrams of datagram_bytes(), which may have fallen.
  bool take_checked() { return std::exchange(checked_, false); }
  // Returns the time at which next() must be called again; `never` if there is nothing to do.
  Nanos due() const { return due_; }

  // Returns true if no question is waiting for an answer. There may be further ones later.
  bool done() const { return stage_ == Stage::done; }
  // Returns true if the first search for the longest size is over.
  bool sizes_known() const { return stage_ != Stage::sizes; }
  // Returns the size of the longest datagram that is known to arrive. As long as no answer has come, this is 1200.
  uint32_t datagram_bytes() const { return best_; }
  // Returns the estimated rate of the path in bytes/s; 0: not known.
  uint64_t dispersion_rate() const { return rate_; }

 private:
  // sizes: the first search. check: does the size still arrive? raise: a later search.
  enum class Stage : uint8_t { sizes, train, done, check, raise };
  bool next_search(const RttEstimator& rtt, Nanos now, PathQuestion& question);
  bool next_train(const RttEstimator& rtt, Nanos now, PathQuestion& question);
  bool next_check(const RttEstimator& rtt, Nanos now, PathQuestion& question);
  bool next_size(PathQuestion& question);
  bool may_try(uint32_t bytes) const;
  bool may_grow() const;
  void begin(Stage stage, Nanos now);
  void finish(Nanos now);
  void fall(Nanos now);
  void size_answered(uint32_t bytes, const RttEstimator& rtt, Nanos now);
  void remember(const PathQuestion& question, Nanos now);
  void wait(const RttEstimator& rtt, Nanos now);

  PathProbeSettings settings_;
  // The sizes to try. They fill a packet of Ethernet, of Ethernet with jumbo frames, and of loopback.
  std::array<uint32_t, 3> sizes_;
  Stage stage_ = Stage::sizes;
  uint32_t best_ = PathProbeSettings::assumed_bytes, too_long_ = UINT32_MAX;
  uint32_t fallen_from_ = 0;     // the longest size that was in use and is not any more
  uint32_t below_ = UINT32_MAX;  // the search that runs tries only sizes below this
  uint32_t base_answers_ = 0;    // number of questions of 1200 bytes that were answered in this check
  bool checked_ = false;
  bool rate_asked_ = false, rate_pending_ = false;  // rate_pending_: the train must be sent when this stage is over
  Nanos check_interval_ = 0, raise_interval_ = raise_first;
  uint32_t number_ = 0;  // number of the next question
  // tries_: the number of tries in this stage. at_: the index of the next size, or of the next datagram of the train, in this
  // try.
  uint32_t tries_ = 0, at_ = 0;
  struct SentQuestion {
    uint32_t number = 0, bytes = 0, count = 1;
    // The time when the last datagram of the question was sent. `never`: the question is answered, or was not sent.
    Nanos at = never;
  };
  std::array<SentQuestion, 32> sent_questions_{};  // question n is at n % sent_questions_.size()
  Nanos due_ = 0;
  uint64_t rate_ = 0;
};

// The receiver's half of the probe. It measures the train that arrives from one sender, and makes the answer.
class TrainMeter {
 public:
  static constexpr Nanos silence_max = 2 * millisecond;  // If no datagram arrives for this time, the train counts as finished.

  // Handles one datagram of a question. `arrived` is the kernel's time stamp or, if there is none, the current time.
  void question(const PathQuestion& question, Nanos arrived);
  // Returns the time at which the answer must be sent; `never` if there is no answer to send.
  Nanos due() const { return due_; }
  // Returns the answer, and sets `number` to the number of the question that it answers. Call this once per question.
  PathAnswer answer(Nanos now, uint32_t& number);

 private:
  bool any_ = false, answered_ = false;
  // number_: the current question. seen_: one bit per datagram of its train; 1: it has arrived.
  uint32_t number_ = 0, seen_ = 0;
  PathAnswer answer_;
  Nanos first_ = 0, last_ = 0, due_ = never;
};

}  // namespace unisono
