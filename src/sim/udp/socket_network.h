// Virtual UDP sockets in virtual time, for simulations of the UDP transport.
//
// Every process has an outgoing and an incoming port with a given rate. The incoming port has a queue, which drops datagrams
// that do not fit. This models incast: if many processes send to one process at once, datagrams are dropped. Behind the queue
// is the socket buffer, which fills up while the process does not read.
//
// A LossModel decides which datagrams are lost at random. The decision depends on the seed, the link, and the number of the
// datagram on the link. If a law is about ranges, it depends on the datagram's range instead of this number.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "net/datagram_socket.h"
#include "sim/event_queue.h"
#include "sim/loss_pattern.h"

namespace unisono::sim {

struct SocketNetworkSettings {
  uint32_t processes = 2;  // at most 50,000
  uint64_t seed = 1;
  double bytes_per_second = 125e6;    // rate of each port
  Nanos delay = 50 * microsecond;     // delay from an outgoing port to an incoming port
  Nanos jitter = 0;                   // A random time of up to this is added to `delay`. It lets datagrams overtake each other.
  uint64_t queue_bytes = 256u << 10;  // queue before each incoming port
  uint64_t socket_bytes = 4u << 20;   // buffer of each socket
  uint32_t datagram_bytes_max = 1472;  // longer datagrams are refused, as with the don't-fragment bit
  LossModel loss = {};                 // Dead and slow peers of the model are ignored. Use cut_off() and slow_down() instead.
  uint32_t ranges = 1;                 // number of ranges in the longest stream; laws about ranges need it
};

// Counts what became of datagrams.
struct DatagramFates {
  uint64_t sent = 0, delivered = 0;
  uint64_t lost = 0;        // lost on links, by the LossModel
  uint64_t overflowed = 0;  // dropped by the queue of an incoming port
  uint64_t cut = 0;         // the sender or the receiver was cut off or dead
  uint64_t unread = 0;      // dropped because the socket buffer was full
  friend bool operator==(const DatagramFates&, const DatagramFates&) = default;
  DatagramFates operator-(const DatagramFates& earlier) const;
  DatagramFates operator+(const DatagramFates& other) const;
};

class SocketNetwork {
 public:
  // The network adds arrivals to `event_queue`. The caller must pass these events to arrive().
  SocketNetwork(const SocketNetworkSettings& settings, EventQueue& event_queue);
  ~SocketNetwork();
  SocketNetwork(const SocketNetwork&) = delete;
  SocketNetwork& operator=(const SocketNetwork&) = delete;

  // Returns the socket of a process. Call this once for each process. The network must outlive the socket.
  std::unique_ptr<DatagramSocket> make_socket(PeerIndex process);
  static TcpAddress address_of(PeerIndex process);

  // Handles an event of kind `arrive`: a datagram has reached an incoming port, or a refusal has reached the sender. Returns
  // the time at which the process can read the datagram or the refusal, or `never`.
  Nanos arrive(uint64_t index);
  // Returns the time at which the process can read something, or `never` if nothing has arrived for it.
  Nanos readable_at(PeerIndex process) const;

  // A process that is cut off sends and receives nothing.
  void cut_off(PeerIndex process, bool is_cut) { processes_[process].cut = is_cut; }
  // Kills the process: its host refuses datagrams and notifies their senders.
  void kill(PeerIndex process) { processes_[process].dead = true; }
  // From now on, datagrams longer than this are lost without a notice to anybody: a black hole.
  void lose_longer_than(uint32_t bytes) { carried_bytes_max_ = bytes; }
  // From now on, the sender's host refuses datagrams longer than this.
  void refuse_longer_than(uint32_t bytes) { settings_.datagram_bytes_max = bytes; }
  // Makes the process's ports `factor` times as slow.
  void slow_down(PeerIndex process, double factor) { processes_[process].slowness = factor; }

  const DatagramFates& fates() const { return all_; }
  // Returns what became of data datagrams with contributions (phase 0) or results (phase 1), including repairs.
  const DatagramFates& fates_of_data(uint32_t phase) const { return data_[phase]; }
  // Returns a hash of all datagrams sent, in order.
  uint64_t trace_hash() const { return hash_; }

 private:
  class Socket;
  struct Datagram {
    PeerIndex from = 0, to = 0;
    int8_t phase = -1;     // phase of a data datagram; -1: other datagrams
    bool refusal = false;  // true: tells process `to` that process `from` does not exist
    Nanos at = 0;          // the time from which the datagram can be read
    std::vector<std::byte> bytes;
  };
  struct Process {
    Nanos out_free_at = 0, in_free_at = 0;
    double slowness = 1;
    bool cut = false, dead = false;
    uint64_t inbox_bytes = 0, own_drops = 0;
    std::deque<uint64_t> inbox{};      // datagrams in order of time; some are still in the queue of the port
    std::vector<PeerIndex> refused{};  // processes that refused a datagram; the socket has not reported them yet
  };

  SendOutcome send(PeerIndex from, std::span<const OutDatagram> batch);
  ReceiveOutcome receive(PeerIndex process, DatagramInbox& inbox, size_t datagrams_max);
  void carry(PeerIndex from, PeerIndex to, const OutDatagram& out);
  bool is_lost(PeerIndex from, PeerIndex to, const DatagramHeader& header);
  void count(int8_t phase, uint64_t DatagramFates::*fate);
  Nanos time_of(size_t bytes, double slowness) const;
  uint64_t bytes_in(Nanos time, double slowness) const;
  uint64_t allocate();
  void recycle(uint64_t index) { free_.push_back(index); }

  SocketNetworkSettings settings_;
  uint32_t carried_bytes_max_ = UINT32_MAX;
  EventQueue& event_queue_;
  // If true, by_range_ decides which first transmissions are lost, and by_number_ decides which other datagrams are lost. If
  // false, by_number_ decides about all datagrams.
  bool loss_is_per_range_;
  LossPattern by_number_, by_range_;
  Random random_;
  std::vector<TcpAddress> addresses_;
  std::vector<Process> processes_;
  std::vector<uint64_t> numbers_;  // number of datagrams sent on each link
  std::deque<Datagram> datagrams_;
  std::vector<uint64_t> free_;
  DatagramFates all_;
  std::array<DatagramFates, 2> data_{};
  uint64_t hash_ = 0;
};

}  // namespace unisono::sim
