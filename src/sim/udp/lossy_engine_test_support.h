// Engines whose frames arrive immediately. Their datagrams take virtual links, which may lose them. The engines take turns in
// virtual time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "engine/engine.h"
#include "engine/inline_compute.h"
#include "group/api/calls.h"
#include "sim/udp/datagram_network.h"
#include "transports/testing/loopback.h"

namespace unisono::sim {

// A transport that sends frames through one transport and datagrams through a datagram service.
class TransportWithDatagrams final : public Transport {
 public:
  TransportWithDatagrams(Transport& frames, DatagramService& datagrams) : frames_(frames), datagrams_(datagrams) {}
  const char* name() const override { return "test"; }
  size_t credit(PeerIndex peer) override { return frames_.credit(peer); }
  size_t slot_bytes() const override { return frames_.slot_bytes(); }
  Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) override {
    return frames_.acquire(peers, bytes, result);
  }
  void commit(const Slot& slot, const FrameHeader& header) override { frames_.commit(slot, header); }
  void abandon(const Slot& slot) override { frames_.abandon(slot); }
  bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) override {
    if (header.kind == FrameKind::lossy) ++lossy_frames;
    return frames_.send(peer, header, payload, id);
  }
  void release(const View& view) override { frames_.release(view); }
  void cancel(const Cancellation& what) override { frames_.cancel(what); }
  bool poll(Nanos now, Sink& sink) override { return frames_.poll(now, sink); }
  Nanos next_deadline() const override { return frames_.next_deadline(); }
  void close(PeerIndex peer) override { frames_.close(peer); }
  int wait_handle() const override { return -1; }
  bool arm() override { return frames_.arm(); }
  void disarm() override { frames_.disarm(); }
  DatagramService* datagrams() override { return &datagrams_; }
  TransportCounters counters() const override { return frames_.counters(); }
  std::string describe(PeerIndex peer) const override { return frames_.describe(peer); }

  uint64_t lossy_frames = 0;  // number of frames of kind `lossy` that were sent

 private:
  Transport& frames_;
  DatagramService& datagrams_;
};

class LossyEngines {
 public:
  explicit LossyEngines(const DatagramNetworkSettings& settings)
      : network_(settings), world_(settings.ranks), hub_(std::move(LoopbackHub::make({.count = settings.ranks}).value())) {
    for (Rank r = 0; r < world_; ++r) {
      transports_.push_back(std::make_unique<TransportWithDatagrams>(hub_->at(r), network_.at(r)));
      engines_.push_back(std::make_unique<Engine>(EngineLimits{}, compute_));
      auto& engine = *engines_.back();
      engine.add_transport(*transports_.back());
      engine.set_topology({shared_memory_profile(2), network_tcp_profile(2)});
      engine.set_datagrams(DatagramSecret{.run_id = 1, .key = {}, .datagram_bytes = settings.datagram_bytes});
      std::vector<PeerIndex> members;
      for (Rank peer = 0; peer < world_; ++peer) {
        if (peer != r) engine.add_peer(peer, *transports_.back(), concat("process ", peer));
        members.push_back(peer == r ? self_peer : peer);
      }
      std::vector<uint32_t> host_groups(world_);
      for (Rank i = 0; i < world_; ++i) host_groups[i] = i;
      groups_.push_back(&engine.make_group(1, 7, std::move(members), std::move(host_groups)));
    }
  }

  Caller caller(Rank rank) const { return {rank, world_, 10 * second}; }
  Engine& engine(Rank rank) { return *engines_[rank]; }
  GroupCore& group(Rank rank) { return *groups_[rank]; }
  uint64_t lossy_frames(Rank rank) const { return transports_[rank]->lossy_frames; }
  Nanos now() const { return now_; }

  std::shared_ptr<Completion> submit(Rank rank, Result<OperationRequest> request, uint64_t id = 0) {
    EXPECT_TRUE(request.ok()) << request.status().to_string();
    return engines_[rank]->submit(*groups_[rank], std::move(*request), id, now_);
  }
  std::shared_ptr<Completion> sum(Rank rank, std::vector<float>& values, const CallOptions& options = {}) {
    const Tensor tensor{std::span<float>(values)};
    return submit(rank, all_reduce_call(caller(rank), ConstTensor(tensor), tensor, options), options.id);
  }
  // Runs until all operations have ended, or 100 s have passed.
  void finish(const std::vector<std::shared_ptr<Completion>>& operations) {
    const auto until = now_ + 100 * second;
    for (settle(); now_ < until && !std::all_of(operations.begin(), operations.end(), [](const auto& c) { return c->done; });
         settle())
      advance(until);
  }
  void pass(Nanos time) {
    const auto until = now_ + time;
    for (settle(); now_ < until; settle()) advance(until);
  }

 private:
  // Lets all engines work until none makes progress, without advancing the time.
  void settle() {
    for (bool progress = true; progress;) {
      progress = false;
      for (auto& engine : engines_) progress |= engine->poll(now_);
    }
  }
  void advance(Nanos until) {
    auto next = std::min(until, network_.next_event());
    for (const auto& engine : engines_) next = std::min(next, engine->next_deadline());
    now_ = std::max(now_, next);
    network_.run_until(now_);
  }

  DatagramNetwork network_;
  uint32_t world_;
  InlineCompute compute_;
  std::unique_ptr<LoopbackHub> hub_;
  std::vector<std::unique_ptr<TransportWithDatagrams>> transports_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<GroupCore*> groups_;
  Nanos now_ = 0;
};

}  // namespace unisono::sim
