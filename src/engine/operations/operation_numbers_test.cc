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

TEST(OperationNumbers, every_number_of_32_bits_is_a_tag_of_its_own) {
  OperationNumbers sender, receiver;
  for (const uint32_t tag : {0u, 1u, 0x7FFFu, 0x8000u, 99'999u, 0x7FFFFFFFu, 0x80000000u, UINT32_MAX}) {
    const auto number = sender.assign(request_of(Collective::send, 2), tag, 1);
    EXPECT_FALSE(is_in_order(number));
    EXPECT_EQ(number & user_id_bit, 0u) << "tag " << tag;
    EXPECT_EQ(message_sequence(number), 0u) << "tag " << tag;
    EXPECT_FALSE(receiver.has_begun(number, 2, 1)) << "tag " << tag;
    EXPECT_EQ(receiver.assign(request_of(Collective::recv, 1), tag, 2), number) << "tag " << tag;
    EXPECT_TRUE(receiver.has_begun(number, 2, 1)) << "tag " << tag;
  }
}

TEST(OperationNumbers, messages_in_both_directions_have_different_numbers) {
  for (const Rank self : {0u, 5u}) {
    OperationNumbers numbers;
    const Rank other = 3;
    const auto sent = numbers.assign(request_of(Collective::send, other), 7, self);
    EXPECT_FALSE(numbers.has_begun(numbers.next_message(other, self, 7), self, other));
    const auto received = numbers.assign(request_of(Collective::recv, other), 7, self);
    EXPECT_NE(sent, received);
    EXPECT_TRUE(numbers.has_begun(sent, self, other));
    EXPECT_TRUE(numbers.has_begun(received, self, other));
  }
}

TEST(OperationNumbers, message_numbers_start_again_after_their_last) {
  constexpr MessageSeries series{.source = 1, .destination = 2, .tag = UINT32_MAX};
  constexpr uint32_t last = (1u << message_sequence_bits) - 1;
  EXPECT_EQ(message_sequence(message_id(series, last)), last);
  EXPECT_EQ(message_id(series, last + 1), message_id(series, 0));
  EXPECT_EQ(message_series(message_id(series, last), 2, 1), series);
  EXPECT_NE(message_id(series, last), all_operations);
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
