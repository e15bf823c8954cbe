#include "tests/conformance/transport_conformance.h"

#include "base/concat.h"
#include "transports/testing/faulty.h"
#include "transports/testing/loopback.h"

namespace unisono::conformance {
namespace {

class LoopbackCluster final : public Cluster {
 public:
  static std::unique_ptr<Cluster> make(size_t count, bool faulty) {
    LoopbackOptions options{.count = count};
    options.label = [](size_t i) { return concat("rank ", i, " (host here)"); };
    auto hub = LoopbackHub::make(options);
    if (!hub.ok()) return nullptr;
    auto cluster = std::unique_ptr<LoopbackCluster>(new LoopbackCluster);
    cluster->hub_ = std::move(*hub);
    cluster->alive_.assign(count, true);
    for (size_t i = 0; faulty && i < count; ++i) {
      cluster->wraps_.push_back(std::make_unique<FaultyTransport>(cluster->hub_->at(i), FaultPlan{}));
    }
    return cluster;
  }
  size_t size() const override { return alive_.size(); }
  Transport& at(size_t i) override {
    if (wraps_.empty()) return hub_->at(i);
    return *wraps_[i];
  }
  void destroy(size_t i) override {
    alive_[i] = false;
    hub_->kill(i);
  }
  bool alive(size_t i) const override { return alive_[i]; }
  std::string label(size_t i) const override { return concat("rank ", i, " (host here)"); }
  Connector* connector(size_t) override { return nullptr; }
  LinkRequest request(size_t, size_t) override { return {}; }

 private:
  std::unique_ptr<LoopbackHub> hub_;
  std::vector<std::unique_ptr<FaultyTransport>> wraps_;
  std::vector<bool> alive_;
};

[[maybe_unused]] const bool loopback =
    test_transport("LoopbackTransport", [](size_t count) { return LoopbackCluster::make(count, false); });
[[maybe_unused]] const bool faulty_without_faults =
    test_transport("FaultyWithoutFaults", [](size_t count) { return LoopbackCluster::make(count, true); });

TEST(Loopback, refuses_options_that_leave_no_slot_for_contributions) {
  EXPECT_EQ(LoopbackHub::make({.count = 2, .slots = 8, .result_slots = 8}).status().code(), Code::invalid);
  EXPECT_EQ(LoopbackHub::make({.count = 0}).status().code(), Code::invalid);
}

TEST(Loopback, slots_are_reserved_for_results) {
  auto hub = LoopbackHub::make({.count = 2, .slots = 10, .result_slots = 4});
  ASSERT_TRUE(hub.ok());
  const std::vector<PeerIndex> peers = {1};
  std::vector<Slot> slots;
  while (const auto slot = (*hub)->at(0).acquire(peers, 100, false)) slots.push_back(slot);
  EXPECT_EQ(slots.size(), 6u);
  while (const auto slot = (*hub)->at(0).acquire(peers, 100, true)) slots.push_back(slot);
  EXPECT_EQ(slots.size(), 10u);
}

TEST(Loopback, a_freed_slot_gives_credit) {
  auto hub = LoopbackHub::make({.count = 2, .slots = 2, .result_slots = 1});
  ASSERT_TRUE(hub.ok());
  auto& transport = (*hub)->at(0);
  Recorder sender(&transport), receiver(&(*hub)->at(1));
  const std::vector<PeerIndex> peers = {1};
  const auto slot = transport.acquire(peers, 10, false);
  ASSERT_TRUE(slot);
  ASSERT_FALSE(transport.acquire(peers, 10, false));
  transport.commit(slot, data_header(1, 10));
  (*hub)->at(1).poll(0, receiver);
  transport.poll(0, sender);
  EXPECT_EQ(sender.credits[1], 1);
  EXPECT_TRUE(transport.acquire(peers, 10, false));
}

TEST(Loopback, frames_of_a_dead_endpoint_arrive_before_its_loss) {
  auto hub = LoopbackHub::make({.count = 2});
  ASSERT_TRUE(hub.ok());
  Recorder recorder(&(*hub)->at(1));
  const auto payload = pattern(100, test_seed());
  (*hub)->at(0).send(1, data_header(1, 100), payload, 1);
  (*hub)->kill(0);
  recorder.on_received = [&](PeerIndex, const FrameHeader&) { EXPECT_TRUE(recorder.losses.empty()); };
  (*hub)->at(1).poll(0, recorder);
  EXPECT_EQ(recorder.frames.size(), 1u);
  EXPECT_EQ(recorder.losses[0].size(), 1u);
}

}  // namespace
}  // namespace unisono::conformance
