// Virtual UDP sockets in virtual time, under the simulated UDP transport.
//
// Every process has an outgoing and an incoming port with a given rate. The incoming port has a queue and drops datagrams that
// do not fit: many senders to one process are an incast. Behind it is the socket buffer, which fills up while the process does
// not read. A LossModel decides random loss: a datagram's fate is a function of seed, link and its number on the link (or of
// its range, for laws about ranges). No clock, no descriptor.
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
  double bytes_per_second = 125e6;     // of each port
  Nanos delay = 50 * microsecond;      // from an outgoing to an incoming port
  Nanos jitter = 0;                    // uniform, added to each datagram's delay; it reorders
  uint64_t queue_bytes = 256u << 10;   // datagrams before an incoming port
  uint64_t socket_bytes = 4u << 20;    // of a socket's own buffer
  uint32_t datagram_bytes_max = 1472;  // longer datagrams are refused, as with don't-fragment
  LossModel loss = {};                 // its dead and slow peers are ignored: see cut_off() and slow_down()
  uint32_t ranges = 1;                 // of the longest stream, for laws about ranges
};

// The fates of datagrams.
struct DatagramFates {
  uint64_t sent = 0, delivered = 0;
  uint64_t lost = 0;        // on links, by the law
  uint64_t overflowed = 0;  // in the queue of an incoming port
  uint64_t cut = 0;         // to or from a process that is cut off or dead
  uint64_t unread = 0;      // dropped by a full socket buffer
  friend bool operator==(const DatagramFates&, const DatagramFates&) = default;
  DatagramFates operator-(const DatagramFates& earlier) const;
  DatagramFates operator+(const DatagramFates& other) const;
};

class SocketNetwork {
 public:
  // Arrivals are events of the event queue; pass them to arrive().
  SocketNetwork(const SocketNetworkSettings& settings, EventQueue& event_queue);
  ~SocketNetwork();
  SocketNetwork(const SocketNetwork&) = delete;
  SocketNetwork& operator=(const SocketNetwork&) = delete;

  // One per process; the network must outlive it.
  std::unique_ptr<DatagramSocket> make_socket(PeerIndex process);
  static TcpAddress address_of(PeerIndex process);

  // An event of kind `arrive`: a datagram has reached an incoming port, or the report of a refused one has come back. Returns
  // when the process can read it; never if the process is gone.
  Nanos arrive(uint64_t index);
  // When the process can read something; never if nothing is in flight to it.
  Nanos readable_at(PeerIndex process) const;

  // A process that is cut off sends and receives nothing.
  void cut_off(PeerIndex process, bool is_cut) { processes_[process].cut = is_cut; }
  // The process is gone: its host refuses datagrams and notifies their senders.
  void kill(PeerIndex process) { processes_[process].dead = true; }
  // Its ports take `factor` times as long.
  void slow_down(PeerIndex process, double factor) { processes_[process].slowness = factor; }

  const DatagramFates& fates() const { return all_; }
  // Datagrams with contributions (0) and results (1), including repairs.
  const DatagramFates& fates_of_data(uint32_t phase) const { return data_[phase]; }
  // Hash of everything sent, in order.
  uint64_t trace_hash() const { return hash_; }

 private:
  class Socket;
  struct Datagram {
    PeerIndex from = 0, to = 0;
    int8_t phase = -1;     // of data datagrams
    bool refusal = false;  // to `to`: there is no process at `from`
    Nanos at = 0;          // readable from then on
    std::vector<std::byte> bytes;
  };
  struct Process {
    Nanos out_free_at = 0, in_free_at = 0;
    double slowness = 1;
    bool cut = false, dead = false;
    uint64_t inbox_bytes = 0, own_drops = 0;
    std::deque<uint64_t> inbox{};      // datagrams by time, including those still in the queue
    std::vector<PeerIndex> refused{};  // not reported yet
  };

  SendOutcome send(PeerIndex from, std::span<const OutDatagram> batch);
  ReceiveOutcome receive(PeerIndex process, DatagramInbox& inbox, size_t datagrams_max);
  void carry(PeerIndex from, PeerIndex to, const OutDatagram& out);
  bool is_lost(PeerIndex from, PeerIndex to, const DatagramHeader& header);
  void count(int8_t phase, uint64_t DatagramFates::*fate);
  Nanos time_of(size_t bytes, double slowness) const;
  uint64_t bytes_in(Nanos time, double slowness) const;
  uint64_t take();
  void give(uint64_t index) { free_.push_back(index); }

  SocketNetworkSettings settings_;
  EventQueue& event_queue_;
  bool ranges_have_a_law_;  // the law concerns ranges; the law of numbers then covers the rest, and repairs
  LossPattern by_number_, by_range_;
  Random random_;
  std::vector<TcpAddress> addresses_;
  std::vector<Process> processes_;
  std::vector<uint64_t> numbers_;  // of datagrams, by link
  std::deque<Datagram> datagrams_;
  std::vector<uint64_t> free_;
  DatagramFates all_;
  std::array<DatagramFates, 2> data_{};
  uint64_t hash_ = 0;
};

}  // namespace unisono::sim
