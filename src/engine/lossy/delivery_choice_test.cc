#include "engine/lossy/delivery_choice.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace unisono {
namespace {

constexpr uint64_t datagrams = 10'000;

DeliveryOutcome outcome(double loss, Nanos duration = 10 * millisecond) {
  return {.phase_duration = duration,
          .size_class = 20,
          .expected = datagrams,
          .missing = static_cast<uint64_t>(loss * datagrams + 0.5)};
}

// Runs operations from `first` on until there is a decision. One in ten takes three times as long as the others.
std::optional<DeliveryDecision> decide(DeliveryChoice& choice, Delivery asked, double loss, uint32_t first,
                                       uint32_t count = 300) {
  for (auto op = first; op != first + count; ++op) {
    choice.begin(op, asked);
    auto decision = choice.ended(op, asked, {}, outcome(loss, (op % 10 == 0 ? 30 : 10) * millisecond));
    if (decision) return decision;
  }
  return {};
}

TEST(DeliveryChoice, without_a_decision_calls_use_their_initial_delivery) {
  DeliveryChoice choice;
  EXPECT_EQ(choice.begin(0, Delivery::lossy), Delivery::lossy);
  EXPECT_EQ(choice.begin(1, Delivery::automatic), Delivery::reliable);
  EXPECT_EQ(choice.note(Delivery::lossy) + choice.note(Delivery::automatic), "");
}

TEST(DeliveryChoice, a_decision_of_rank_0_takes_effect_two_operations_later) {
  DeliveryChoice choice;
  const auto decision = decide(choice, Delivery::lossy, 0.5, 100);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->asked, Delivery::lossy);
  EXPECT_EQ(decision->used, Delivery::reliable);
  EXPECT_EQ(decision->from, 121u);  // operations 100 to 119 are the 20 measured ones; 119 + 2 = 121
  EXPECT_EQ(decision->note,
            "loss of 50.0 % over 20 operations is above loss_off, 40.0 %: reliable delivery from now on (rank 0, from "
            "operation 121)");
  EXPECT_EQ(choice.begin(120, Delivery::lossy), Delivery::lossy);
  EXPECT_EQ(choice.note(Delivery::lossy), "");
  EXPECT_EQ(choice.begin(121, Delivery::lossy), Delivery::reliable);
  EXPECT_EQ(choice.note(Delivery::lossy), decision->note);
}

TEST(DeliveryChoice, lossy_and_automatic_calls_have_separate_decisions) {
  DeliveryChoice choice;
  ASSERT_TRUE(decide(choice, Delivery::lossy, 0.5, 0));
  EXPECT_EQ(choice.begin(100, Delivery::lossy), Delivery::reliable);
  EXPECT_EQ(choice.begin(101, Delivery::automatic), Delivery::reliable);
  EXPECT_EQ(choice.note(Delivery::automatic), "");
  const auto decision = decide(choice, Delivery::automatic, 0.01, 102);
  ASSERT_TRUE(decision);
  EXPECT_EQ(choice.begin(decision->from, Delivery::automatic), Delivery::lossy);
  EXPECT_EQ(choice.begin(decision->from + 1, Delivery::lossy), Delivery::reliable);
}

TEST(DeliveryChoice, operations_before_a_change_do_not_count_for_the_next_decision) {
  DeliveryChoice choice;
  const auto first = decide(choice, Delivery::automatic, 0.01, 0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->from, 65u);
  // Operation 64 began before the change to lossy, so it does not count. The next 20 are 65 to 84; 84 + 2 = 86.
  choice.begin(64, Delivery::automatic);
  EXPECT_FALSE(choice.ended(64, Delivery::automatic, {}, outcome(1)));
  const auto back = decide(choice, Delivery::automatic, 0.5, 65);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->from, 86u);
  EXPECT_EQ(back->used, Delivery::reliable);
}

TEST(DeliveryChoice, other_ranks_apply_a_received_decision_at_its_operation_or_at_once_if_it_is_late) {
  DeliveryChoice choice;
  choice.begin(10, Delivery::automatic);
  choice.on_decision({.asked = Delivery::automatic, .used = Delivery::lossy, .from = 12, .note = "why"});
  EXPECT_EQ(choice.begin(11, Delivery::automatic), Delivery::reliable);
  EXPECT_EQ(choice.begin(12, Delivery::automatic), Delivery::lossy);
  EXPECT_EQ(choice.note(Delivery::automatic), "why");
  choice.on_decision({.asked = Delivery::automatic, .used = Delivery::reliable, .from = 5, .note = "over"});
  EXPECT_EQ(choice.begin(13, Delivery::automatic), Delivery::reliable);
}

TEST(DeliveryChoice, numbers_of_operations_wrap_around) {
  DeliveryChoice choice;
  choice.on_decision({.asked = Delivery::lossy, .used = Delivery::reliable, .from = 1, .note = {}});
  EXPECT_EQ(choice.begin(0xFFFFFFFF, Delivery::lossy), Delivery::lossy);
  EXPECT_EQ(choice.begin(0, Delivery::lossy), Delivery::lossy);
  EXPECT_EQ(choice.begin(1, Delivery::lossy), Delivery::reliable);
}

TEST(DeliveryDecision, decodes_to_what_was_encoded) {
  const DeliveryDecision decision{
      .asked = Delivery::automatic, .used = Delivery::lossy, .from = 4'000'000'000, .note = "loss of 1 %"};
  const auto read = DeliveryDecision::decode(decision.encode());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(*read, decision);
}

TEST(DeliveryDecision, a_truncated_or_too_long_message_is_corrupt) {
  const auto bytes = DeliveryDecision{.note = "loss of 1 %"}.encode();
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(DeliveryDecision::decode(ByteView(bytes).first(size)).status().code(), Code::corrupt) << size;
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(DeliveryDecision::decode(longer).status().code(), Code::corrupt);
  const auto huge = std::move(ByteWriter()
                                  .write(DeliveryDecision::kind)
                                  .write(uint8_t{2})
                                  .write(uint8_t{0})
                                  .write(uint32_t{0})
                                  .write_string(std::string(1025, 'x')))
                        .take();
  EXPECT_EQ(DeliveryDecision::decode(huge).status().code(), Code::corrupt);
}

TEST(DeliveryDecision, another_message_kind_is_corrupt) {
  auto bytes = DeliveryDecision{}.encode();
  bytes[0] = std::byte{9};
  EXPECT_EQ(DeliveryDecision::decode(bytes).status().code(), Code::corrupt);
}

TEST(DeliveryDecision, an_unknown_delivery_is_corrupt) {
  for (const auto& [asked, used] : {std::pair<uint8_t, uint8_t>{0, 0}, {3, 0}, {1, 2}, {2, 3}}) {
    const auto bytes =
        std::move(ByteWriter().write(DeliveryDecision::kind).write(asked).write(used).write(uint32_t{0}).write_string(""))
            .take();
    EXPECT_EQ(DeliveryDecision::decode(bytes).status().code(), Code::corrupt) << int{asked} << " " << int{used};
  }
}

}  // namespace
}  // namespace unisono
