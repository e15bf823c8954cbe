// Several lossy groups in one process over virtual links. The groups take turns in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "engine/lossy/lossy_group.h"
#include "group/api/calls.h"
#include "kernels/dispatch.h"
#include "sim/udp/datagram_network.h"

namespace unisono::sim {

class LossyCluster {
 public:
  explicit LossyCluster(const DatagramNetworkSettings& settings) : network_(settings), world_(settings.ranks) {
    for (Rank rank = 0; rank < world_; ++rank) {
      LossyGroupSetup setup{
          .number = 1,
          .datagrams = {.run_id = 1, .epoch = 7, .self = rank, .world = world_},
          .peers = {},
          .datagram_bytes = settings.datagram_bytes,
          .location = [](Rank r) { return concat("process ", r); },
          .announce_call = [this, rank](
                               Rank to,
                               const AnnouncedCall& call) { notifications_.push_back({.from = rank, .to = to, .call = call}); },
          .send_message =
              [this, rank](Rank to, Bytes payload) {
                messages_.push_back({.from = rank, .to = to, .at = now_ + notification_delay_, .payload = std::move(payload)});
              }};
      for (Rank peer = 0; peer < world_; ++peer) setup.peers.push_back(peer);
      groups_.push_back(std::move(LossyGroup::make(network_.at(rank), std::move(setup)).value()));
    }
  }

  DatagramNetwork& network() { return network_; }
  LossyGroup& group(Rank rank) { return *groups_[rank]; }
  Nanos now() const { return now_; }
  // While announcements of calls are held, they do not arrive, as if they had been lost and were sent again later.
  void hold_announcements(bool held) { announcements_held_ = held; }
  // Sets the delay of notifications between ranks.
  void set_notification_delay(Nanos time) { notification_delay_ = time; }

  std::shared_ptr<Completion> submit(Rank rank, std::vector<float>& values, const CallOptions& options) {
    return submit(rank, all_reduce_call(caller(rank), ConstTensor(std::span<const float>(values)),
                                        Tensor(std::span<float>(values)), options));
  }
  Caller caller(Rank rank) const { return {.self = rank, .world = world_, .timeout = 10 * second}; }
  std::shared_ptr<Completion> submit(Rank rank, Result<OperationRequest> request) {
    EXPECT_TRUE(request.ok()) << request.status().to_string();
    auto completion = std::make_shared<Completion>();
    groups_[rank]->submit(std::move(*request), completion, now_);
    return completion;
  }
  // Advances the time until all operations have ended.
  void finish(const std::vector<std::shared_ptr<Completion>>& completions) {
    const auto all_done = [&] {
      return std::all_of(completions.begin(), completions.end(), [](const auto& c) { return c->done; });
    };
    const auto until = now_ + 100 * second;
    while (now_ < until && !all_done()) step(until);
    EXPECT_TRUE(all_done());
  }
  void pass(Nanos time) {
    const auto until = now_ + time;
    while (now_ < until) step(until);
  }
  std::vector<Result<Report>> all_reduce(std::vector<std::vector<float>>& values, const CallOptions& options) {
    std::vector<std::shared_ptr<Completion>> completions;
    for (Rank rank = 0; rank < world_; ++rank) completions.push_back(submit(rank, values[rank], options));
    finish(completions);
    std::vector<Result<Report>> outcomes;
    for (const auto& completion : completions) outcomes.push_back(completion->outcome());
    return outcomes;
  }

 private:
  void step(Nanos until) {
    auto next = notifications_.empty() || announcements_held_ ? std::min(until, network_.next_event()) : now_;
    for (const auto& group : groups_) next = std::min(next, group->next_deadline());
    for (const auto& message : messages_) next = std::min(next, message.at);
    now_ = std::max(now_, next);
    network_.run_until(now_);
    if (!announcements_held_) {
      for (const auto& notification : std::exchange(notifications_, {}))
        groups_[notification.to]->on_call(notification.from, notification.call, now_);
    }
    for (auto& message : std::exchange(messages_, {})) {
      if (message.at <= now_) EXPECT_TRUE(groups_[message.to]->on_message(message.from, message.payload, now_));
      else messages_.push_back(std::move(message));
    }
    for (const auto& group : groups_) group->step(now_);
  }

  struct CallNotification {
    Rank from = 0, to = 0;
    AnnouncedCall call;
  };

  struct ControlMessage {
    Rank from = 0, to = 0;
    Nanos at = 0;
    Bytes payload;
  };

  DatagramNetwork network_;
  uint32_t world_;
  Nanos notification_delay_ = 0;
  bool announcements_held_ = false;
  std::vector<ControlMessage> messages_;
  std::vector<CallNotification> notifications_;
  std::vector<std::unique_ptr<LossyGroup>> groups_;
  Nanos now_ = 0;
};

inline std::vector<std::vector<float>> random_values(uint32_t ranks, size_t count, uint64_t seed) {
  std::vector<std::vector<float>> values(ranks, std::vector<float>(count));
  Random random(seed);
  for (auto& own : values) {
    for (auto& value : own) value = static_cast<float>(random.below(2001)) / 1000.0f - 1.0f;
  }
  return values;
}

inline std::vector<float> mean_of(const std::vector<std::vector<float>>& values) {
  std::vector<float> mean(values[0].size());
  std::vector<const void*> sources;
  for (const auto& own : values) sources.push_back(own.data());
  kernels::reduce({.dtype = DType::f32,
                   .op = ReduceOp::sum,
                   .sources = sources,
                   .destination = mean.data(),
                   .count = mean.size(),
                   .divisor = static_cast<uint32_t>(values.size())});
  return mean;
}

}  // namespace unisono::sim
