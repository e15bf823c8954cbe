// Peers of an elastic run on virtual links. The test begins, cancels and finishes the averaging steps of each peer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "elastic/peer/moshpit_peer.h"
#include "sim/elastic/elastic_cluster_test_support.h"
#include "sim/elastic/elastic_network.h"

namespace unisono::sim {

inline constexpr Nanos soon = 100 * millisecond;  // several link delays, but shorter than every timeout

class SteeredPeers final : private RoundObserver {
 public:
  explicit SteeredPeers(const ElasticClusterOptions& options)
      : settings(options.settings), network(options.links, options.seed), random_(options.seed) {}
  // Starts `count` peers and runs until they have formed a layout.
  explicit SteeredPeers(uint32_t count, uint32_t max_group = 4, std::vector<uint32_t> dims = {})
      : SteeredPeers(options_for(count, max_group)) {
    settings.dims = std::move(dims);
    for (uint32_t index = 0; index < count; ++index) add();
    EXPECT_TRUE(
        run(10 * second, [&] { return std::ranges::all_of(processes_, [](const auto& one) { return one->peer.ready(); }); }));
  }

  // Adds a peer and returns its index. The first peer founds the run. Later peers join through it, or through `seeds` if the
  // test gives them.
  uint32_t add(std::vector<std::string> seeds = {"sim://0"}) {
    const auto index = static_cast<uint32_t>(processes_.size());
    auto own = settings;
    own.self = {random_.next(), random_.next()};
    own.name = concat("peer ", index);
    own.addresses = {concat("sim://", index)};
    own.seed = random_.next();
    own.found = index == 0;
    own.seeds = index == 0 ? std::vector<std::string>{} : std::move(seeds);
    own.watch = this;
    processes_.push_back(std::make_unique<Process>(*this, own, index));
    indices_[own.self] = index;
    return network.add(processes_.back().get(), network.now());
  }
  MoshpitPeer& peer(uint32_t index) { return processes_[index]->peer; }
  PeerId id(uint32_t index) const { return processes_[index]->id; }
  // Calls act(peer, now), and then lets the network check the peer's next deadline.
  template <typename Act>
  auto with(uint32_t index, Act act) {
    struct AtExit {
      ElasticNetwork& network;
      uint32_t index;
      ~AtExit() { network.schedule_wake_up(index); }
    } const at_exit{network, index};
    return act(peer(index), network.now());
  }
  Status begin(uint32_t index, const std::vector<float>& values, double weight = 1) {
    return with(index, [&](MoshpitPeer& one, Nanos now) {
      return one.begin_step({.values = SharedBuffer::copy(std::as_bytes(std::span(values))), .weight = weight}, now);
    });
  }
  Status begin(uint32_t index) { return begin(index, values_of(index, settings.elements)); }
  void cancel(uint32_t index) {
    with(index, [](MoshpitPeer& one, Nanos now) { one.cancel_step(now); });
  }
  void leave(uint32_t index) {
    with(index, [](MoshpitPeer& one, Nanos now) { one.leave(now); });
  }
  bool run(Nanos time, const std::function<bool()>& done = {}) { return network.run(network.now() + time, done); }
  // Runs until none of these peers is in an averaging step. Returns the time taken, or `never` if it is longer than `time`.
  Nanos run_to_end(const std::vector<uint32_t>& who, Nanos time = 60 * second) {
    const auto began = network.now();
    const auto over = [&] { return std::ranges::none_of(who, [&](uint32_t index) { return peer(index).averaging(); }); };
    return over() || run(time, over) ? network.now() - began : never;
  }
  FinishedStep take(uint32_t index) {
    auto done = peer(index).take_step();
    EXPECT_TRUE(done.has_value()) << "peer " << index << " has ended no averaging step";
    return done ? std::move(*done) : FinishedStep{};
  }
  // Executes one averaging step of these peers, each with its own values.
  std::vector<FinishedStep> average(const std::vector<uint32_t>& who) {
    for (const auto index : who) EXPECT_TRUE(begin(index).ok());
    EXPECT_NE(run_to_end(who), never);
    std::vector<FinishedStep> done;
    for (const auto index : who) done.push_back(take(index));
    return done;
  }
  bool in_round(uint32_t index) const { return processes_[index]->in_round; }

 private:
  struct Process final : ElasticActor, ElasticPort {
    Process(SteeredPeers& owner, const MoshpitSettings& own, uint32_t number)
        : all(owner), index(number), id(own.self), peer(own, *this) {}
    void know(const PeerId&, const std::vector<std::string>&, bool) override {}
    void send(const PeerId& to, SharedMessage message) override {
      if (const auto found = all.indices_.find(to); found != all.indices_.end())
        all.network.send(index, found->second, message.whole());
    }
    void send_to_address(const std::string& address, SharedBuffer message) override {
      all.network.send(index, static_cast<uint32_t>(std::stoul(address.substr(std::string_view("sim://").size()))),
                       std::move(message));
    }
    bool credit(const PeerId& to) override { return all.network.credit(index, all.indices_.at(to)); }
    bool is_out(const PeerId& other) const override { return all.is_out && all.is_out(index, all.indices_.at(other)); }
    void close(const PeerId&) override {}

    void started(Nanos now) override { EXPECT_TRUE(peer.start(now).ok()); }
    void received(uint32_t from, SharedBuffer message, Nanos now) override {
      peer.received(all.id(from), std::move(message), now);
    }
    void link_lost(uint32_t other, bool refused, Nanos now) override {
      peer.link_lost(all.id(other), {refused ? Code::peer_lost : Code::unavailable, "the link is gone"}, refused, now);
      if (refused) peer.address_failed(concat("sim://", other), {Code::unavailable, "connection refused"}, now);
    }
    void credit(uint32_t other, Nanos now) override { peer.credit(all.id(other), now); }
    void woke(Nanos now) override { peer.woke(now); }
    Nanos next_deadline() const override { return peer.next_deadline(); }

    SteeredPeers& all;
    uint32_t index;
    PeerId id;
    bool in_round = false;
    MoshpitPeer peer;
  };

  void began(const RoundView& view) override { processes_[indices_.at(view.self)]->in_round = true; }
  void ended(const RoundView& view, const MoshpitRound&) override { processes_[indices_.at(view.self)]->in_round = false; }

 public:
  MoshpitSettings settings;  // settings of peers that are added later
  // Returns whether a peer's own link to another one is out, as far as it knows. Without this callback, no link is out.
  std::function<bool(uint32_t index, uint32_t other)> is_out;
  ElasticNetwork network;

 private:
  Random random_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<PeerId, uint32_t> indices_;
};

}  // namespace unisono::sim
