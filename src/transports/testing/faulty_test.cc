#include "transports/testing/faulty.h"

#include <gtest/gtest.h>

#include "tests/conformance/transport_promises_data.h"
#include "transports/testing/loopback.h"

namespace unisono::conformance {
namespace {

// Endpoint 0 sends, and endpoint 1 receives through a faulty transport. The test chooses the time that it passes to poll().
class Faulty : public testing::Test {
 protected:
  void start(FaultPlan plan, bool payload_checksum = false) {
    plan.seed = test_seed();
    RecordProperty("seed", std::to_string(plan.seed));
    hub = std::move(*LoopbackHub::make({.count = 2, .queue_frames_max = 10'000, .payload_checksum = payload_checksum}));
    faulty = std::make_unique<FaultyTransport>(hub->at(1), plan);
    recorder = std::make_unique<Recorder>(faulty.get());
  }
  void send(uint64_t count, size_t bytes = 100) {
    for (uint64_t i = 0; i < count; ++i) {
      const auto payload = pattern(bytes, i);
      hub->at(0).send(1, data_header(i, bytes), payload, i);
    }
  }
  void poll(Nanos now) { faulty->poll(now, *recorder); }
  uint64_t refused(FrameFault fault) const { return faulty->counters().refused_frames[static_cast<size_t>(fault)]; }
  std::vector<uint64_t> order() const {
    std::vector<uint64_t> result;
    for (const auto& frame : recorder->frames) result.push_back(frame.header.operation);
    return result;
  }

  std::unique_ptr<LoopbackHub> hub;
  std::unique_ptr<FaultyTransport> faulty;
  std::unique_ptr<Recorder> recorder;
};

TEST_F(Faulty, delayed_frames_arrive_when_due_and_not_before) {
  start({.delay = 1, .delay_max = 1000});
  send(100);
  poll(0);
  EXPECT_LT(recorder->frames.size(), 20u);
  EXPECT_LE(faulty->next_deadline(), 1000);
  EXPECT_GT(faulty->next_deadline(), 0);
  poll(1000);
  ASSERT_EQ(recorder->frames.size(), 100u);
  for (const auto& frame : recorder->frames) EXPECT_EQ(frame.payload, pattern(100, frame.header.operation));
  EXPECT_EQ(faulty->next_deadline(), never);
}

TEST_F(Faulty, reordered_frames_all_arrive_in_another_order) {
  start({.reorder = 0.3});
  send(200);
  for (Nanos now = 0; now < 10 * millisecond; now += millisecond) poll(now);
  auto got = order();
  EXPECT_FALSE(std::ranges::is_sorted(got));
  std::ranges::sort(got);
  ASSERT_EQ(got.size(), 200u);
  for (uint64_t i = 0; i < 200; ++i) EXPECT_EQ(got[i], i);
}

TEST_F(Faulty, the_same_seed_makes_the_same_faults) {
  std::vector<uint64_t> orders[2];
  for (auto& each : orders) {
    start({.delay = 0.2, .reorder = 0.2, .duplicate = 0.2, .delay_max = 1000});
    send(300);
    for (Nanos now = 0; now <= 2000; now += 10) poll(now);
    each = order();
  }
  EXPECT_EQ(orders[0], orders[1]);
}

TEST_F(Faulty, duplicated_frames_arrive_twice_and_whole) {
  start({.duplicate = 1});
  send(10);
  poll(0);
  ASSERT_EQ(recorder->frames.size(), 20u);
  for (const auto& frame : recorder->frames) EXPECT_EQ(frame.payload, pattern(100, frame.header.operation));
}

TEST_F(Faulty, cut_frames_announce_their_new_length) {
  start({.cut = 1}, true);
  send(10);
  poll(0);
  ASSERT_EQ(recorder->frames.size(), 10u);
  for (const auto& frame : recorder->frames) {
    EXPECT_LT(frame.payload.size(), 100u);
    EXPECT_EQ(frame.header.payload_bytes, frame.payload.size());
    auto sealed = frame.header;  // header_checksum may be 0 (see Sink::received), so compute it before the check
    seal_frame(sealed);
    EXPECT_EQ(check_frame(sealed), FrameFault::none);
  }
}

TEST_F(Faulty, a_damaged_header_is_refused_counted_and_ends_the_link) {
  start({.corrupt_header = 1});
  send(3);
  for (int i = 0; i < 3; ++i) poll(0);
  EXPECT_TRUE(recorder->frames.empty());
  ASSERT_EQ(recorder->losses[0].size(), 1u);
  EXPECT_EQ(recorder->losses[0][0].code(), Code::corrupt);
  uint64_t sum = 0;
  for (int fault = 1; fault < frame_fault_count; ++fault) sum += refused(static_cast<FrameFault>(fault));
  EXPECT_EQ(sum, 1u);
  EXPECT_EQ(faulty->credit(0), 0u);
}

TEST_F(Faulty, a_damaged_payload_with_checksum_is_refused) {
  start({.corrupt_payload = 1}, true);
  send(1);
  for (int i = 0; i < 3; ++i) poll(0);
  EXPECT_TRUE(recorder->frames.empty());
  EXPECT_EQ(refused(FrameFault::payload_checksum), 1u);
  ASSERT_EQ(recorder->losses[0].size(), 1u);
  EXPECT_EQ(recorder->losses[0][0].code(), Code::corrupt);
}

TEST_F(Faulty, a_damaged_payload_without_checksum_goes_unnoticed) {
  start({.corrupt_payload = 1});
  send(1);
  poll(0);
  ASSERT_EQ(recorder->frames.size(), 1u);
  EXPECT_NE(recorder->frames[0].payload, pattern(100, 0));
}

TEST_F(Faulty, a_disconnect_is_lost_once_on_both_sides) {
  start({.disconnect = 1});
  send(5);
  for (int i = 0; i < 5; ++i) poll(0);
  EXPECT_TRUE(recorder->frames.empty());
  ASSERT_EQ(recorder->losses[0].size(), 1u);
  EXPECT_EQ(recorder->losses[0][0].code(), Code::peer_lost);
  Recorder other(&hub->at(0));
  hub->at(0).poll(0, other);
  EXPECT_EQ(other.losses[1].size(), 1u);
}

TEST_F(Faulty, the_nth_receive_fails) {
  start({.fail_receive = 4});
  send(10);
  for (int i = 0; i < 3; ++i) poll(0);
  EXPECT_EQ(recorder->frames.size(), 3u);
  EXPECT_EQ(recorder->losses[0].size(), 1u);
}

TEST_F(Faulty, the_nth_send_fails) {
  start({.fail_send = 3});
  const auto payload = pattern(10, 1);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(faulty->send(0, data_header(i, 10), payload, i));
  EXPECT_EQ(faulty->credit(0), 0u);
  EXPECT_FALSE(faulty->arm());
  for (int i = 0; i < 3; ++i) poll(0);
  EXPECT_EQ(recorder->losses[0].size(), 1u);
  Recorder other(&hub->at(0));
  hub->at(0).poll(0, other);
  EXPECT_EQ(other.frames.size(), 2u);
}

TEST_F(Faulty, the_nth_commit_fails) {
  start({.fail_send = 1});
  const std::vector<PeerIndex> peers = {0};
  const auto slot = faulty->acquire(peers, 10, true);
  ASSERT_TRUE(slot);
  faulty->commit(slot, data_header(1, 10));
  for (int i = 0; i < 3; ++i) poll(0);
  EXPECT_EQ(recorder->losses[0].size(), 1u);
}

TEST_F(Faulty, copies_given_out_stay_until_released) {
  start({.duplicate = 1});
  recorder->keep_views = true;
  send(20);
  poll(0);
  ASSERT_EQ(recorder->views.size(), 40u);
  for (size_t i = 0; i < 40; ++i) {
    const auto meant = pattern(100, recorder->frames[i].header.operation);
    EXPECT_TRUE(same(std::span(recorder->views[i].data, recorder->views[i].bytes), meant));
  }
  for (const auto& view : recorder->views) faulty->release(view);
}

TEST_F(Faulty, faulty_frames_land_in_the_receive_buffer) {
  start({.delay = 1, .delay_max = 10});
  Bytes target(100);
  recorder->on_receive_buffer = [&](PeerIndex, const FrameHeader&) { return target.data(); };
  send(1);
  poll(0);
  poll(10);
  ASSERT_EQ(recorder->frames.size(), 1u);
  EXPECT_TRUE(recorder->frames[0].placed);
  EXPECT_EQ(target, pattern(100, 0));
  EXPECT_EQ(recorder->buffer_requests, 1u);
}

}  // namespace
}  // namespace unisono::conformance
