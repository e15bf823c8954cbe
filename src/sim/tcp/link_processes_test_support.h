// For tests of links: several processes with TcpTransports over virtual connections, and what happens to them at random: they
// send, cancel and ask for links; connections, hosts and processes have faults.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "sim/tcp/link_faults_test_support.h"
#include "sim/tcp/link_peer_test_support.h"
#include "sim/tcp/stream_relay.h"

namespace unisono::sim {

class LinkProcesses {
 public:
  static constexpr Nanos link_timeout = 20 * second;

  explicit LinkProcesses(const LinksPlan& plan) : plan_(plan), world_(plan.streams), random_(mix64(plan.seed)) {
    for (uint32_t i = 0; i < plan.processes; ++i) {
      // The last process shares a host with the one before it if there are three.
      const auto host = i == 2 ? hosts_.back() : world_.add_host({address_text(i)});
      if (i < 2) hosts_.push_back(host);
      const auto process = world_.add_process(host);
      networks_.push_back(std::make_unique<VirtualStreams>(world_, process));
      peers_.push_back(std::make_unique<LinkPeer>(process, plan.transport.streams == 1, random_.next()));
      start(i);
    }
    if (plan.relayed) add_relay();
  }
  // The first problem is kept.
  bool ok() const { return problem_.empty(); }
  void fail(const std::string& text) {
    if (ok()) problem_ = text;
  }
  const std::string& problem() const { return problem_; }

  const LinksPlan& plan() const { return plan_; }
  StreamWorld& world() { return world_; }
  Random& random() { return random_; }
  LinkPeer& peer(uint32_t i) { return *peers_[i]; }
  bool alive(uint32_t i) const { return world_.alive(i); }
  LinkState state(uint32_t i, uint32_t j) { return peer(i).transport->state(j); }
  // Calls fn(i, j) for each pair of processes, and also (j, i), if the first one is alive.
  template <typename Fn>
  void for_each_link(Fn fn) {
    for (uint32_t i = 0; i < plan_.processes; ++i) {
      for (uint32_t j = 0; j < plan_.processes; ++j) {
        if (i != j && alive(i)) fn(i, j);
      }
    }
  }

  // A link that is lost while this is false is a problem. A fault that may end links sets it.
  bool may_lose = false;
  uint64_t losses = 0, cancels = 0;

  // Asks for a link if there is none.
  void add_link(uint32_t i, uint32_t j) {
    if (i == j || !alive(i) || !alive(j) || !peer(i).links[j].lost_told) return;
    LinkRequest request;
    request.peer = j;
    request.id = id_of(j);
    request.label = concat("process ", j);
    request.endpoints = {endpoint_of(j)};
    request.dial = i < j;
    request.deadline = world_.now() + link_timeout;
    const auto status = peer(i).transport->add_peer(request);
    if (!status.ok()) return fail(status.to_string());
    auto& link = peer(i).links[j];
    ++link.count;
    link.lost_told = false;
  }
  // Without faults, no connection is given up. The first stream of a link waits up to 1 s for its begin, in which time both
  // processes are polled several times, because the dialler makes the other streams first.
  static constexpr Nanos unpolled_max = 100 * millisecond;
  Nanos wait_max() const { return plan_.faults.empty() ? unpolled_max : 3 * second; }
  // Lets one random thing happen.
  void act() {
    const auto what = random_.below(100);
    if (what < 40) poll(static_cast<uint32_t>(random_.below(plan_.processes)));
    else if (what < 65) wait(static_cast<Nanos>(random_.below(300 * microsecond)));
    else if (what < 67) wait(static_cast<Nanos>(random_.below(random_.chance(0.3) ? wait_max() : 50 * millisecond)));
    else use(static_cast<uint32_t>(random_.below(plan_.processes)));
    for (uint32_t i = 0; i < plan_.processes && plan_.faults.empty(); ++i) {
      if (world_.now() - polled_at_[i] >= unpolled_max) poll(i);
    }
    if (random_.chance(plan_.fault_chance)) inflict(plan_.faults[random_.below(plan_.faults.size())]);
  }
  void wait(Nanos time) {
    world_.advance(world_.now() + time);
    while (relay_ && relay_->step()) continue;
  }
  void poll(uint32_t i) {
    if (!world_.runs(i) || !ok()) return;
    polled_at_[i] = world_.now();
    auto& transport = *peer(i).transport;
    if (plan_.sleeps && world_.now() < transport.next_deadline() && transport.arm()) return transport.disarm();
    transport.poll(world_.now(), peer(i));
    if (!peer(i).problem().empty()) fail(peer(i).problem());
  }
  size_t random_size() {
    switch (random_.below(4)) {
      case 0: return random_.below(2);
      case 1: return random_.below(200);
      case 2: return 4000 + random_.below(200);
      default: return random_.below(plan_.payload_bytes_max);
    }
  }

  void end_faults() {
    for (const auto a : hosts_) {
      for (const auto b : hosts_) world_.block(a, b, 0);
    }
    for (const auto id : world_.open_connections()) world_.slow_down(id, 0);
    for (uint32_t i = 0; i < plan_.processes; ++i) world_.resume(i);
  }
  // Ends all processes.
  void end() {
    for (auto& each : peers_) each->transport.reset();
    relay_.reset();
  }

 private:
  static std::string address_text(uint32_t i) { return concat("10.0.0.", i + 1); }
  static PeerId id_of(uint32_t i) { return {i + 1, 7}; }
  void start(uint32_t i) {
    auto options = plan_.transport;
    options.self = id_of(i);
    auto made = TcpTransport::make(options, *networks_[i]);
    if (!made.ok()) return fail(made.status().to_string());
    peer(i).transport = std::move(*made);
    JobKey key;
    key.fill(std::byte{0x5A});
    peer(i).transport->set_job(key);
    peer(i).on_lost = [this, i](PeerIndex from, const Status& why) {
      ++losses;
      world_.note(concat("process ", i, " loses the link to ", from, ": ", why.message()));
      // Altered bytes were acknowledged by the host, but cannot be read. Their memory may have been given back.
      const bool lacks_memory = altered_ && why.message().find("cannot be sent again") != std::string::npos;
      may_lose |= lacks_memory;
      if (!may_lose) fail(concat("process ", i, " loses its link without a cause: ", why.message()));
    };
  }
  void add_relay() {
    const auto process = world_.add_process(world_.add_host({"10.0.1.1"}));
    relay_network_ = std::make_unique<VirtualStreams>(world_, process);
    auto target = world_.addresses_of(1).front();
    target.set_port(peer(1).transport->port());
    relay_ = std::make_unique<StreamRelay>(*relay_network_, target, 1 + random_.below(8000));
  }
  std::string endpoint_of(uint32_t i) {
    auto address = world_.addresses_of(i).front();
    if (i != 1 || !relay_) {
      address.set_port(peer(i).transport->port());
      return address.endpoint();
    }
    address = *parse_tcp_address("10.0.1.1");
    address.set_port(relay_->port());
    return address.endpoint();
  }

  // A process uses its links.
  void use(uint32_t i) {
    if (!world_.runs(i)) return;
    const auto j = static_cast<uint32_t>(random_.below(plan_.processes));
    if (i == j) return peer(i).release_views();
    auto& link = peer(i).links[j];
    const auto what = random_.below(100);
    if (what < 75) {
      if (state(i, j) != LinkState::up) return;
      for (auto n = random_.below(6); n > 0; --n) {
        const auto bytes = peer(i).transport->credit(j) > 0 ? random_size() : 0;
        peer(i).send_frame(j, bytes);
      }
    } else if (what < 85 && alive(j)) {
      const auto newest = std::max(link.next_number, peer(j).links[i].next_number) / LinkPeer::frames_per_operation;
      ++cancels;
      peer(i).cancel(j, static_cast<uint32_t>(newest - std::min<uint64_t>(newest, random_.below(3))));
    } else if (what < 88) {
      peer(i).transport->release_early(uint64_t{j} << 32, 0xFFFFFFFF00000000ull);
    } else if (what < 91) {
      peer(i).release_views();
    } else if (link.lost_told) {
      add_link(i, j);
    }
  }
  // Faults ----------------------------------------------------------------------------------------------------------

  void inflict(LinkFault fault) {
    const auto i = static_cast<uint32_t>(random_.below(plan_.processes));
    const auto ids = world_.open_connections();
    const auto id = ids.empty() ? 0 : ids[random_.below(ids.size())];
    const auto until = world_.now() + static_cast<Nanos>(random_.below(3 * second));
    may_lose |= may_lose_links(fault);
    switch (fault) {
      case LinkFault::reset: return world_.reset(id, random_.chance(0.7), random_.chance(0.7));
      case LinkFault::relay_drop: return relay_ ? relay_->drop_all() : void();
      case LinkFault::forget_path: return world_.block(id, 0, never), world_.block(id, 1, never);
      case LinkFault::outage: world_.block(hosts_[1], hosts_[0], until); [[fallthrough]];
      case LinkFault::one_way_outage: return world_.block(hosts_[0], hosts_[1], until);
      case LinkFault::slow: return world_.slow_down(id, 1e4 + 1e6 * random_.unit());
      case LinkFault::stop: return random_.chance(0.5) ? world_.stop(i) : world_.resume(i);
      case LinkFault::crash:
      case LinkFault::host_loss: return kill(i, fault);
      case LinkFault::alter: altered_ = true; return ids.empty() ? void() : world_.alter(id, random_.chance(0.5) ? 0 : 1);
      case LinkFault::move: return world_.change_addresses(hosts_[0], {concat("10.0.2.", ++moves_)});
    }
  }
  // At least two processes stay.
  void kill(uint32_t i, LinkFault fault) {
    if (i != 0 || plan_.processes < 3 || !alive(0)) return;
    if (fault == LinkFault::crash) world_.crash(0);
    else world_.remove_host(hosts_[0]);
    peer(0).transport.reset();
  }

  LinksPlan plan_;
  StreamWorld world_;
  Random random_;
  std::vector<HostIndex> hosts_;
  std::vector<std::unique_ptr<VirtualStreams>> networks_;
  std::unique_ptr<VirtualStreams> relay_network_;
  std::vector<std::unique_ptr<LinkPeer>> peers_;
  std::unique_ptr<StreamRelay> relay_;
  std::map<uint32_t, Nanos> polled_at_;
  uint32_t moves_ = 0;
  bool altered_ = false;
  std::string problem_;
};

}  // namespace unisono::sim
