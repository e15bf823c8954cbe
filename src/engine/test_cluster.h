// For the engine's tests: several engines in one process over a loopback hub, polled in turn in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "base/concat.h"
#include "engine/engine.h"
#include "engine/inline_compute.h"
#include "group/api/calls.h"
#include "transports/testing/faulty.h"
#include "transports/testing/loopback.h"

namespace unisono {

class TestCluster {
 public:
  explicit TestCluster(uint32_t world, const FaultPlan& faults = {}, EngineLimits limits = {},
                       uint32_t ranks_per_host_group = 2, Nanos (*clock)() = nullptr)
      : world_(world), compute_(clock) {
    hub_ = std::move(LoopbackHub::make({.count = world}).value());
    std::vector<uint32_t> host_groups(world);
    for (Rank r = 0; r < world; ++r) host_groups[r] = r / ranks_per_host_group;
    for (Rank r = 0; r < world; ++r) {
      auto plan = faults;
      plan.seed = faults.seed * 1000 + r;
      transports_.push_back(std::make_unique<FaultyTransport>(hub_->at(r), plan));
      engines_.push_back(std::make_unique<Engine>(limits, compute_));
      auto& engine = *engines_.back();
      engine.add_transport(*transports_.back());
      engine.set_topology({shared_memory_profile(2), network_tcp_profile(2)});
      for (Rank peer = 0; peer < world; ++peer) {
        if (peer != r) engine.add_peer(peer, *transports_.back(), concat("process ", peer));
      }
      groups_.push_back(&make_group(r, 1, all(), host_groups));
    }
  }

  std::vector<Rank> all() const {
    std::vector<Rank> ranks(world_);
    std::iota(ranks.begin(), ranks.end(), 0u);
    return ranks;
  }
  GroupCore& make_group(Rank rank, uint32_t number, const std::vector<Rank>& members, std::vector<uint32_t> host_groups = {}) {
    std::vector<PeerIndex> peers;
    for (const auto member : members) peers.push_back(member == rank ? self_peer : member);
    return engines_[rank]->make_group(number, 7, std::move(peers), std::move(host_groups));
  }
  Caller caller(Rank rank) const { return {rank, world_, 10 * second}; }
  Engine& engine(Rank rank) { return *engines_[rank]; }
  GroupCore& group(Rank rank) { return *groups_[rank]; }
  LoopbackHub& hub() { return *hub_; }
  FaultyTransport& transport(Rank rank) { return *transports_[rank]; }
  uint32_t world() const { return world_; }
  Nanos now() const { return now_; }

  std::shared_ptr<Completion> submit(Rank rank, Result<OperationRequest> request, uint64_t id = 0) {
    return submit(rank, *groups_[rank], std::move(request), id);
  }
  std::shared_ptr<Completion> submit(Rank rank, GroupCore& group, Result<OperationRequest> request, uint64_t id = 0) {
    EXPECT_TRUE(request.ok()) << request.status().to_string();
    return engines_[rank]->submit(group, std::move(*request), id, now_);
  }
  // Polls all engines until none makes progress. Time does not advance.
  void settle() {
    for (bool progress = true; progress;) {
      progress = false;
      for (auto& engine : engines_) progress |= engine->poll(now_);
    }
  }
  // Settles and advances time until all operations are done, or every deadline has passed.
  void finish(const std::vector<std::shared_ptr<Completion>>& operations) {
    for (int turn = 0; turn < 20'000; ++turn) {
      settle();
      if (std::all_of(operations.begin(), operations.end(), [](const auto& c) { return c == nullptr || c->done; })) return;
      now_ += millisecond;
    }
  }
  void advance(Nanos time) { now_ += time; }

 private:
  uint32_t world_;
  InlineCompute compute_;
  std::unique_ptr<LoopbackHub> hub_;
  std::vector<std::unique_ptr<FaultyTransport>> transports_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<GroupCore*> groups_;
  Nanos now_ = 0;
};

}  // namespace unisono
