// Lossy groups over whole UDP transports on shaped links. The processes take turns in virtual time. A process runs some time
// after the event that wakes it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "engine/lossy/lossy_group.h"
#include "group/api/calls.h"
#include "sim/udp/shaped_network_test_support.h"
#include "transports/udp/udp_transport.h"

namespace unisono::sim {

class ShapedCluster : Sink {
 public:
  explicit ShapedCluster(const ShapedSettings& settings)
      : settings_(settings),
        network_(settings),
        random_(settings.seed + 1),
        wakes_(settings.ranks, never),
        arrived_(settings.ranks, false) {
    UdpOptions options;
    options.clock = [this] { return now_; };
    for (size_t rank = 0; rank < settings.ranks; ++rank) {
      DatagramSockets sockets;
      sockets.push_back(network_.socket(rank));
      options.self = id(rank);
      transports_.push_back(UdpTransport::from_sockets(options, std::move(sockets)));
      transports_[rank]->set_job(JobKey{});
    }
    groups_.resize(settings.ranks);
    link_all();
  }

  ShapedNetwork& network() { return network_; }
  const UdpTransport& transport(size_t rank) const { return *transports_[rank]; }
  Nanos now() const { return now_; }

  void pass(Nanos time) {
    for (const Nanos until = now_ + time; now_ < until;) step(until);
  }
  // Executes an all-reduce that all ranks start together. Returns the time until the last rank is done, or `never` if a call
  // failed.
  Nanos all_reduce(std::vector<std::vector<float>>& values, double loss_budget) {
    CallOptions call{.schedule = ScheduleKind::two_step, .delivery = Delivery::lossy};
    call.lossy.loss_budget = loss_budget;
    const Nanos begun = now_;
    std::vector<std::shared_ptr<Completion>> completions;
    for (Rank rank = 0; rank < settings_.ranks; ++rank) {
      auto request =
          all_reduce_call({.self = rank, .world = settings_.ranks, .timeout = 10 * second},
                          ConstTensor(std::span<const float>(values[rank])), Tensor(std::span<float>(values[rank])), call);
      completions.push_back(std::make_shared<Completion>());
      groups_[rank]->submit(std::move(*request), completions.back(), now_);
    }
    const auto done = [&] {
      return std::all_of(completions.begin(), completions.end(), [](const auto& c) { return c->done; });
    };
    while (!done() && now_ < begun + 20 * second) step(begun + 20 * second);
    bool ok = done();
    for (const auto& completion : completions) {
      EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
      ok &= completion->status.ok();
    }
    return ok ? now_ - begun : never;
  }

 private:
  struct CallNotification {
    Rank from = 0, to = 0;
    AnnouncedCall call;
  };
  static PeerId id(size_t rank) { return {rank + 1, 1000}; }
  // Implementation of Sink: these tests expect no frames.
  std::byte* receive_buffer(PeerIndex, const FrameHeader&) override { return nullptr; }
  void received(PeerIndex, const FrameHeader&, const View&) override { ADD_FAILURE(); }
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status& why, PeerFate) override { ADD_FAILURE() << why.to_string(); }
  void credit(PeerIndex) override {}

  void link_all() {
    std::vector<PeerIndex> peers;
    for (Rank rank = 0; rank < settings_.ranks; ++rank) {
      peers.push_back(rank);
      for (Rank other = 0; other < settings_.ranks; ++other) {
        if (rank == other) continue;
        EXPECT_TRUE(transports_[rank]
                        ->add_peer({.peer = other,
                                    .id = id(other),
                                    .label = concat("rank ", other),
                                    .endpoints = {"udp://" + ShapedNetwork::endpoint(other)},
                                    .dial = rank < other,
                                    .deadline = now_ + 10 * second})
                        .ok());
      }
    }
    pass(600 * millisecond);
    for (Rank rank = 0; rank < settings_.ranks; ++rank) {
      LossyGroupSetup setup{.number = 1,
                            .datagrams = {.run_id = 1, .epoch = 7, .self = rank, .world = settings_.ranks},
                            .peers = peers,
                            .datagram_bytes = transports_[rank]->datagram_bytes(peers),
                            .location = [](Rank r) { return concat("process ", r); },
                            .announce_call =
                                [this, rank](Rank to, const AnnouncedCall& call) {
                                  notifications_.push_back({.from = rank, .to = to, .call = call});
                                }};
      groups_[rank] = std::move(LossyGroup::make(*transports_[rank]->datagrams(), std::move(setup)).value());
    }
  }
  Nanos due(size_t rank) const {
    const auto due = transports_[rank]->next_deadline();
    return groups_[rank] ? std::min(due, groups_[rank]->next_deadline()) : due;
  }
  void step(Nanos until) {
    auto next = notifications_.empty() ? std::min(until, network_.next_event()) : now_;
    for (size_t rank = 0; rank < settings_.ranks; ++rank)
      next = std::min(next, wakes_[rank] != never ? wakes_[rank] : due(rank));
    now_ = std::max(now_, next);
    network_.run_until(now_, [this](size_t rank) { arrived_[rank] = true; });
    for (const auto& notification : std::exchange(notifications_, {}))
      groups_[notification.to]->on_call(notification.from, notification.call, now_);
    for (size_t rank = 0; rank < settings_.ranks; ++rank) {
      if (wakes_[rank] == never && (arrived_[rank] || due(rank) <= now_)) wakes_[rank] = now_ + latency();
      if (wakes_[rank] > now_) continue;
      wakes_[rank] = never;
      arrived_[rank] = false;
      for (bool any = true; any;) {
        any = transports_[rank]->poll(now_, *this);
        if (groups_[rank]) any |= groups_[rank]->step(now_);
      }
    }
  }
  Nanos latency() {
    return 10 * microsecond + static_cast<Nanos>(static_cast<double>(settings_.wake) * -std::log(1 - random_.unit()));
  }

  ShapedSettings settings_;
  ShapedNetwork network_;
  Random random_;
  std::vector<Nanos> wakes_;
  std::vector<bool> arrived_;
  std::vector<std::unique_ptr<UdpTransport>> transports_;
  std::vector<std::unique_ptr<LossyGroup>> groups_;
  std::vector<CallNotification> notifications_;
  Nanos now_ = second;
};

}  // namespace unisono::sim
