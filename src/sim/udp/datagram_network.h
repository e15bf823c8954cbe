// The simulator's datagram service: virtual links that lose, queue and delay datagrams, in virtual time.
//
// Every rank has one outgoing and one incoming port with a given rate. The queue of an incoming port drops datagrams that do
// not fit. This models incast: if many ranks send to one rank at once, datagrams are dropped. The caller's function `loses`
// decides random losses. Equal settings and equal losses give equal runs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <vector>

#include "base/clock.h"
#include "transports/datagram_service.h"

namespace unisono::sim {

struct DatagramNetworkSettings {
  uint32_t ranks = 2;
  double bytes_per_second = 125e6;    // rate of each port
  Nanos delay = 20 * microsecond;     // delay between two ports
  uint64_t queue_bytes = 256u << 10;  // queue before each incoming port
  Nanos answer_time = millisecond;    // value that DatagramService::answer_time() returns
  uint32_t datagram_bytes = 1472;
  // Returns whether the network loses the datagram. The datagrams of each link are numbered by `number`. If the function is
  // null, no datagram is lost at random.
  std::function<bool(Rank from, Rank to, uint32_t number)> loses{};
};

class DatagramNetwork {
 public:
  explicit DatagramNetwork(const DatagramNetworkSettings& settings);
  ~DatagramNetwork();

  DatagramService& at(Rank rank);
  // A rank that is cut off sends and receives nothing.
  void cut_off(Rank rank, bool is_cut) { cut_[rank] = is_cut; }
  // Returns the time of the next event, or `never` if nothing is in flight.
  Nanos next_event() const { return events_.empty() ? never : events_.top().at; }
  // Processes all events up to and including time `now`.
  void run_until(Nanos now);

  struct Counts {
    uint64_t sent = 0, lost = 0, overflowed = 0, delivered = 0;  // numbers of datagrams of all kinds
    uint64_t data = 0, repairs = 0;  // number of data datagrams sent, including repairs; number of repairs among them
  };
  const Counts& counts() const { return counts_; }

 private:
  class Service;
  struct Packet {
    Rank from = 0, to = 0;
    DatagramHeader header;
    std::vector<std::byte> payload;
  };
  struct Event {
    enum class Kind : uint8_t { depart, arrive, deliver } kind = Kind::depart;
    Nanos at = 0;
    uint64_t order = 0;
    Rank rank = 0;  // the sending rank; only for `depart`
    std::shared_ptr<Packet> packet{};
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  struct Port {
    Nanos free_at = 0;
    uint64_t queued = 0;
  };

  void schedule(Event event) {
    event.order = order_++;
    events_.push(std::move(event));
  }
  void depart(Rank rank, Nanos now);
  void arrive(const std::shared_ptr<Packet>& packet, Nanos now);
  void deliver(const std::shared_ptr<Packet>& packet, Nanos now);
  void wake(Rank rank);
  void depart_at(Rank rank, Nanos at);
  Nanos time_of(size_t bytes) const;

  DatagramNetworkSettings settings_;
  std::vector<std::unique_ptr<Service>> services_;
  std::vector<bool> cut_;
  std::vector<Port> in_;
  std::priority_queue<Event> events_;
  std::vector<uint32_t> numbers_;  // number of datagrams sent on each link
  uint64_t order_ = 0;
  Nanos now_ = 0;
  Counts counts_;
};

}  // namespace unisono::sim
