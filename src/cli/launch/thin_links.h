// Applies --rate, --loss and --delay to one packet. Pure: virtual time in, times out.
//
// Every rank has a cable to a switch, as a host with one network card has: a packet waits for the sender's cable, crosses it at
// the rate, waits for the receiver's cable, crosses that likewise, and arrives a delay later; so packets of one receiver keep
// their order. Each cable carries its rate in each direction. A queue takes queue_time of packets, at least queue_packets_min,
// and drops what comes beyond (tail drop). A packet is lost with probability `loss`, each for itself, whatever it holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "unisono/status.h"

namespace unisono::cli {

struct LinkLimits {
  uint64_t bits_per_second = 0;  // 0: as fast as it goes
  double loss = 0;               // of packets, 0 to below 1
  Nanos delay = 0;               // from one rank to another, one way
  bool any() const { return bits_per_second > 0 || loss > 0 || delay > 0; }
  // "100 Mbit/s per rank and direction, 1 % of packets lost, 20 ms one way".
  std::string to_string() const;
};

// "100M", "1.5G", "64K": bits per second, powers of 1000; at least 8K.
Result<uint64_t> parse_rate(std::string_view text);
// "1%" or "0.01"; below 100 %.
Result<double> parse_loss(std::string_view text);

// Preamble, header, checksum and gap that an Ethernet frame has around its packet; they take their time on the cable.
inline constexpr uint64_t frame_overhead_bytes = 38;
inline constexpr Nanos queue_time = 50 * millisecond;
inline constexpr uint64_t queue_packets_min = 64;          // of 1538 bytes
inline constexpr size_t under_way_bytes_max = 256u << 20;  // of all links together; reached only without a rate, then it drops

struct LinkCounts {
  uint64_t packets = 0;    // offered
  uint64_t lost = 0;       // on request
  uint64_t overflown = 0;  // a queue was full
};

struct Arrival {
  Nanos due = 0;
  uint32_t to = 0;
  std::string packet;
};

class ThinLinks {
 public:
  ThinLinks(const LinkLimits& limits, uint32_t ranks, uint64_t seed);

  // `now` does not go back.
  void send(uint32_t from, uint32_t to, std::string packet, Nanos now);
  // The next packet that has arrived by now; in the order of their times, and for each receiver in the order of its cable.
  std::optional<Arrival> take(Nanos now);
  // When take() should be called next; never if nothing is under way.
  Nanos next() const { return events_.empty() ? never : events_.front().at; }
  const LinkCounts& counts() const { return counts_; }

 private:
  struct Event {
    Nanos at = 0;
    uint64_t number = 0;     // of two at one time the earlier goes first
    bool at_switch = false;  // else at the receiver
    uint32_t to = 0;
    std::string packet;
    friend bool operator>(const Event& a, const Event& b) { return a.at != b.at ? a.at > b.at : a.number > b.number; }
  };
  // The time at which the packet has crossed the cable that is free at `free`; nothing if its queue is full.
  std::optional<Nanos> cross(Nanos& free, Nanos at, size_t packet_bytes);
  void add(Event event);

  LinkLimits limits_;
  Random random_;
  std::vector<Nanos> up_;      // per rank: when its cable to the switch is free
  std::vector<Nanos> down_;    // per rank: when its cable from the switch is free
  std::vector<Event> events_;  // a heap, the earliest at the front
  size_t bytes_ = 0;           // of all packets in events_
  uint64_t number_ = 0;
  LinkCounts counts_;
};

}  // namespace unisono::cli
