#include "engine/operations/operation_numbers.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

OperationRequest request_of(Collective collective, Rank other = 0) {
  OperationRequest request;
  request.collective = collective;
  request.root = other;
  return request;
}

TEST(OperationNumbers, collectives_are_numbered_in_the_order_of_calls_or_by_the_caller) {
  OperationNumbers numbers;
  EXPECT_EQ(numbers.assign(request_of(Collective::all_reduce), 0, 1), 0u);
  EXPECT_EQ(numbers.assign(request_of(Collective::all_reduce), 5, 1), 5 | user_id_bit);
  EXPECT_EQ(numbers.assign(request_of(Collective::barrier), 0, 1), 1u);
  EXPECT_EQ(numbers.next(), 2u);
  EXPECT_TRUE(numbers.has_begun(1, 1, 0));
  EXPECT_FALSE(numbers.has_begun(2, 1, 0));
}

TEST(OperationNumbers, sender_and_receiver_give_a_message_the_same_number) {
  OperationNumbers sender, receiver;
  for (int i = 0; i < 3; ++i) {
    const auto number = sender.assign(request_of(Collective::send, 2), 9, 1);
    EXPECT_EQ(receiver.next_message(1, 2, 9), number);
    EXPECT_FALSE(receiver.has_begun(number, 2, 1));
    EXPECT_EQ(receiver.assign(request_of(Collective::recv, 1), 9, 2), number);
    EXPECT_TRUE(receiver.has_begun(number, 2, 1));
    EXPECT_TRUE(sender.has_begun(number, 1, 2));
  }
  EXPECT_NE(sender.assign(request_of(Collective::send, 2), 8, 1), sender.assign(request_of(Collective::send, 2), 9, 1));
}

TEST(OperationNumbers, the_latest_ended_numbers_of_callers_are_remembered) {
  OperationNumbers numbers;
  const uint64_t count = OperationNumbers::recent_max + 1;
  for (uint64_t id = 1; id <= count; ++id) numbers.ended(id | user_id_bit, true);
  EXPECT_FALSE(numbers.has_begun(1 | user_id_bit, 0, 1)) << "the oldest is forgotten";
  EXPECT_TRUE(numbers.has_begun(2 | user_id_bit, 0, 1));
  EXPECT_TRUE(numbers.has_begun(count | user_id_bit, 0, 1));
}

TEST(OperationNumbers, only_failed_operations_count_as_failed) {
  OperationNumbers numbers;
  numbers.ended(3, true);
  numbers.ended(4, false);
  EXPECT_FALSE(numbers.has_failed(3));
  EXPECT_TRUE(numbers.has_failed(4));
}

}  // namespace
}  // namespace unisono
