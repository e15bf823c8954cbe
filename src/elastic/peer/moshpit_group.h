// A round of one group, together with the peer of each rank. Messages that the round sends to a rank go to the peer with that
// rank.
#pragma once

#include <memory>
#include <utility>

#include "elastic/formation/group_descriptor.h"
#include "elastic/peer/elastic_port.h"
#include "elastic/round/moshpit_round.h"

namespace unisono {

class MoshpitGroup final : public RoundPort {
 public:
  MoshpitGroup(GroupDescriptor descriptor, ElasticPort& port) : descriptor_(std::move(descriptor)), port_(port) {}

  void send(uint32_t rank, SharedMessage message, bool) override {
    port_.send(descriptor_.members[rank].id, std::move(message));
  }
  bool credit(uint32_t rank) const override { return port_.credit(descriptor_.members[rank].id); }

  const GroupDescriptor& descriptor() const { return descriptor_; }
  const GroupId& id() const { return descriptor_.id; }
  MoshpitRound& round() { return *round_; }
  const MoshpitRound& round() const { return *round_; }
  // Makes the round. The constructor cannot make it, because this object is the port of the round.
  Status open(RoundRequest request) {
    auto made = MoshpitRound::make(std::move(request), *this);
    if (!made.ok()) return made.status();
    round_ = std::move(*made);
    return {};
  }

 private:
  GroupDescriptor descriptor_;
  ElasticPort& port_;
  std::unique_ptr<MoshpitRound> round_;
};

}  // namespace unisono
