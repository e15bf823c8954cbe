// Applies --rate, --loss and --delay to packets. The class does no I/O and reads no clock: the caller passes the current time
// as an argument.
//
// Every rank has a cable to a switch, like a host that has one network card. A packet crosses first the sender's cable and then
// the receiver's cable. At each cable, it waits until the cable is free, and then crosses it at the given rate. It arrives
// after the given delay. So packets to one receiver keep their order. A cable has the full rate in each direction. The queue
// before a cable holds as many packets as can cross in queue_time, and never fewer than queue_packets_min. If the queue is
// full, further packets are dropped (tail drop). Each packet is lost with the probability `loss`, independently of the others.
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
  uint64_t bits_per_second = 0;  // 0: no limit
  double loss = 0;               // share of the packets that are lost; at least 0, less than 1
  Nanos delay = 0;               // how long a packet travels from one rank to another
  bool any() const { return bits_per_second > 0 || loss > 0 || delay > 0; }
  // Returns text such as "100 Mbit/s per rank and direction, 1 % of packets lost, 20 ms one way".
  std::string to_string() const;
};

// Parses a rate in bits per second, such as "100M", "1.5G" or "64K". The letters mean powers of 1000. The rate must be at least
// 8K.
Result<uint64_t> parse_rate(std::string_view text);
// Parses a share such as "1%" or "0.01". It must be below 100 %.
Result<double> parse_loss(std::string_view text);

// Ethernet adds a preamble, a header, a checksum and a gap to each packet. They take time on the cable, too.
inline constexpr uint64_t frame_overhead_bytes = 38;
inline constexpr Nanos queue_time = 50 * millisecond;
// These packets have 1538 bytes: the largest Ethernet frame, with its overhead.
inline constexpr uint64_t queue_packets_min = 64;
// All links together hold at most this many bytes, and further packets are dropped. Only links without a rate can reach this
// limit.
inline constexpr size_t under_way_bytes_max = 256u << 20;

struct LinkCounts {
  uint64_t packets = 0;     // packets that ranks sent
  uint64_t lost = 0;        // packets that were dropped at random, because of --loss
  uint64_t overflowed = 0;  // packets that were dropped because a queue was full
};

struct Arrival {
  Nanos due = 0;
  uint32_t to = 0;
  std::string packet;
};

class ThinLinks {
 public:
  ThinLinks(const LinkLimits& limits, uint32_t ranks, uint64_t seed);

  // Sends a packet at the time `now`. From call to call, this time must never decrease.
  void send(uint32_t from, uint32_t to, std::string packet, Nanos now);
  // Returns the next packet that has arrived by the time `now`, in the order of arrival. Returns nullopt if there is none.
  std::optional<Arrival> take(Nanos now);
  // Returns the time at which take() should be called next. Returns `never` if no packet is on its way.
  Nanos next() const { return events_.empty() ? never : events_.front().at; }
  const LinkCounts& counts() const { return counts_; }

 private:
  struct Event {
    Nanos at = 0;
    uint64_t number = 0;     // if two events have the same time, the one with the lower number comes first
    bool at_switch = false;  // true: the packet arrives at the switch; false: it arrives at its receiver
    uint32_t to = 0;
    std::string packet;
    friend bool operator>(const Event& a, const Event& b) { return a.at != b.at ? a.at > b.at : a.number > b.number; }
  };
  // Sends a packet over a cable that is busy until the time `free`. Returns the time at which the packet has crossed the cable.
  // Returns nullopt if the queue is full.
  std::optional<Nanos> cross(Nanos& free, Nanos at, size_t packet_bytes);
  void add(Event event);

  LinkLimits limits_;
  Random random_;
  std::vector<Nanos> up_;      // up_[rank]: when the rank's cable to the switch becomes free
  std::vector<Nanos> down_;    // down_[rank]: when the rank's cable from the switch becomes free
  std::vector<Event> events_;  // a heap; the earliest event is at the front
  size_t bytes_ = 0;           // the bytes of all packets in events_
  uint64_t number_ = 0;
  LinkCounts counts_;
};

}  // namespace unisono::cli
