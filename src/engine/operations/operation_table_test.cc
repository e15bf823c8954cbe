#include "engine/operations/operation_table.h"

#include <gtest/gtest.h>

#include "engine/inline_compute.h"
#include "engine/recording_transport_test_support.h"

namespace unisono {
namespace {

struct OperationTableTest : testing::Test {
  ActiveOperation& begin(uint64_t number, uint64_t bytes = 10) {
    auto& active = table.take();
    active.group = &group;
    active.number = number;
    active.memory_bytes = bytes;
    active.completion = table.take_completion();
    table.begin(active);
    return active;
  }
  void end(ActiveOperation& active) {
    active.completion.reset();
    table.end(active);
  }
  RecordingTransport transport;
  const std::vector<Transport*> transports{&transport};
  PeerTable peers = peers_over(transport, 1);
  BufferPool pool{1 << 20};
  InlineCompute compute;
  GroupCore group;
  OperationTable table{{peers, transports, pool, compute}};
};

TEST_F(OperationTableTest, a_late_event_of_an_ended_operation_finds_no_operation) {
  auto& first = begin(0);
  const auto id = first.event(7);
  EXPECT_EQ(table.of_event(id), &first);
  end(first);
  EXPECT_EQ(table.of_event(id), nullptr);
  auto& second = begin(1);
  EXPECT_EQ(&second, &first) << "the slot is used again";
  EXPECT_EQ(table.of_event(id), nullptr);
  EXPECT_EQ(table.of_event(second.event(7)), &second);
}

TEST_F(OperationTableTest, the_next_in_order_is_the_oldest_that_is_numbered_by_order_of_calls) {
  begin(5 | user_id_bit);
  auto& first = begin(3);
  auto& second = begin(4);
  EXPECT_EQ(table.next_in_order(group), &first);
  EXPECT_EQ(table.find(group.number, 4, 0), &second);
  EXPECT_EQ(table.in_flight_bytes(), 30u);
  end(first);
  EXPECT_EQ(table.next_in_order(group), &second);
  EXPECT_EQ(table.in_flight_bytes(), 20u);
  GroupCore other;
  EXPECT_EQ(table.next_in_order(other), nullptr);
}

// Messages from several ranks may have equal numbers. A message that has failed must not take the buffer of another one.
TEST_F(OperationTableTest, a_message_cancels_only_the_buffers_for_frames_from_its_own_partner) {
  group.members = {self_peer, 7, 8};
  auto& sum = begin(3);
  sum.cancel_in(transport);
  const MessageSeries series{.source = 2, .destination = 0, .tag = 99'999};
  auto& message = begin(message_id(series, 0));
  message.operation.new_setup().request.root = 2;
  message.cancel_in(transport);
  ASSERT_EQ(transport.cancelled.size(), 2u);
  EXPECT_EQ(transport.cancelled[0].from, std::nullopt);
  EXPECT_EQ(transport.cancelled[1].from, PeerIndex{8});
  EXPECT_EQ(transport.cancelled[1].operation, message.number);
}

TEST_F(OperationTableTest, abandoned_operations_are_not_found) {
  auto& active = begin(0);
  const auto id = active.event(1);
  active.completion.reset();
  table.abandon_all();
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.in_flight_bytes(), 0u);
  EXPECT_EQ(table.of_event(id), nullptr);
}

TEST_F(OperationTableTest, a_completion_is_reused_only_without_other_references) {
  auto kept = table.take_completion();
  const auto* address = kept.get();
  auto elsewhere = kept;
  table.reuse(std::move(kept));
  EXPECT_NE(table.take_completion().get(), address);
  elsewhere->done = true;
  table.reuse(std::move(elsewhere));
  const auto again = table.take_completion();
  EXPECT_EQ(again.get(), address);
  EXPECT_FALSE(again->done);
}

}  // namespace
}  // namespace unisono
