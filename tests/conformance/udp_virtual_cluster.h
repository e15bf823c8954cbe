// For tests: UDP transports on a virtual network, in virtual time. Transport i knows transport j as PeerIndex j. In each pair,
// the transport with the lower index dials.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/concat.h"
#include "transport_promises_data.h"
#include "transports/udp/udp_test_support.h"
#include "transports/udp/udp_transport.h"

namespace unisono {

class VirtualCluster {
 public:
  explicit VirtualCluster(size_t count, uint64_t seed = 1, bool v6 = false) : network(seed), v6_(v6) {
    for (size_t i = 0; i < count; ++i) start(i);
  }
  // The last datagrams are sent when the transports end. By then, the variables of a test that these functions use are gone.
  ~VirtualCluster() { network.filter = nullptr, network.watcher = nullptr; }
  VirtualCluster(const VirtualCluster&) = delete;
  VirtualCluster& operator=(const VirtualCluster&) = delete;

  static PeerId id(size_t i, uint64_t life = 0) { return {i + 1, 1000 + life}; }
  static JobKey job(uint8_t fill = 0x5A) {
    JobKey key;
    key.fill(std::byte{fill});
    return key;
  }
  std::string endpoint(size_t i) const { return (v6_ ? concat("[fd00::", i + 1, "]") : concat("10.0.0.", i + 1)) + ":4500"; }
  static std::string label(size_t i) { return concat("rank ", i, " (host virtual)"); }

  // Starts a process at address i. If there already was one, the new process replaces it.
  void start(size_t i, uint64_t life = 0, bool with_job = true) {
    if (i >= transports.size()) transports.resize(i + 1), frame_sinks.resize(i + 1);
    transports[i].reset();
    DatagramSockets sockets;
    sockets.push_back(network.socket(endpoint(i)));
    options.self = id(i, life);
    transports[i] = UdpTransport::from_sockets(options, std::move(sockets));
    if (with_job) transports[i]->set_job(job());
    frame_sinks[i] = std::make_unique<conformance::Recorder>(transports[i].get());
  }
  Status add(size_t i, size_t j, uint64_t life_of_j = 0, std::optional<bool> dial = {}, Nanos within = 5 * second) {
    LinkRequest request;
    request.peer = static_cast<PeerIndex>(j);
    request.id = id(j, life_of_j);
    request.label = label(j);
    request.endpoints = {"udp://" + endpoint(j)};
    request.dial = dial.value_or(i < j);
    request.deadline = network.now + within;
    return transports[i]->add_peer(request);
  }
  bool up(size_t i, size_t j) const { return transports[i]->state(static_cast<PeerIndex>(j)) == LinkState::up; }
  bool both_up(size_t i, size_t j) const { return up(i, j) && up(j, i); }
  void link_all() {
    for (size_t i = 0; i < transports.size(); ++i) {
      for (size_t j = 0; j < transports.size(); ++j) {
        if (i == j) continue;
        ASSERT_TRUE(add(i, j).ok());
      }
    }
    ASSERT_TRUE(until([&] {
      for (size_t i = 0; i < transports.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          if (!both_up(i, j)) return false;
        }
      }
      return true;
    }));
  }

  // Polls all transports once. If nothing is due now, the time advances to the next event.
  void turn() {
    bool any = false;
    const auto asleep = paused < 0 ? std::string() : endpoint(static_cast<size_t>(paused));
    Nanos next = network.next_arrival(asleep);
    for (size_t i = 0; i < transports.size(); ++i) {
      if (!transports[i] || paused == static_cast<int>(i)) continue;
      any |= transports[i]->poll(network.now, *frame_sinks[i]);
      next = std::min(next, transports[i]->next_deadline());
    }
    if (after_turn) after_turn();
    next = std::min(next, network.next_arrival(asleep));
    // The time advances if a turn did nothing. It also advances after 20 turns at the same time, because an event that is due
    // now may need one that comes later.
    idle_turns_ = any ? idle_turns_ + 1 : 100;
    if (next > network.now || idle_turns_ >= 20) {
      network.now = std::max(network.now + microsecond, std::min(next, network.now + 100 * millisecond));
      idle_turns_ = 0;
    }
  }
  bool until(const std::function<bool()>& done, Nanos within = 10 * second) {
    const auto limit = network.now + within;
    while (!done()) {
      if (network.now > limit) return false;
      turn();
    }
    return true;
  }
  void pass(Nanos time) {
    until([] { return false; }, time);
  }

  VirtualNetwork network;  // It is declared before the transports, because their sockets refer to it.
  UdpOptions options;
  std::vector<std::unique_ptr<UdpTransport>> transports;
  std::vector<std::unique_ptr<conformance::Recorder>> frame_sinks;
  std::function<void()> after_turn;
  int paused = -1;

 private:
  bool v6_;
  int idle_turns_ = 0;
};

}  // namespace unisono
