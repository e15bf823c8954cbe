#include "elastic/state/state_donor.h"

#include <gtest/gtest.h>

#include "elastic/state/state_test_support.h"

namespace unisono {
namespace {

const PeerId alice{1, 0}, bert{2, 0}, carla{3, 0};
const std::vector<size_t> donor_sizes(20, 10'000);

class StateDonorServes : public ::testing::Test {
 protected:
  StateDonorServes() : values(test::random_bytes(200'000, 1)), copy(test::state_schema, donor_sizes), donor(options(), copy) {
    test::finish(copy, 7, values, donor_sizes);
  }
  static StateDonorOptions options() {
    StateDonorOptions options;
    options.schema = test::state_schema;
    return options;
  }
  // Returns the donor's messages to one joiner.
  std::vector<StateMessage> said(const PeerId& to) {
    for (const auto& send : donor.take_sends()) sent.push_back({send.to, send.message.whole()});
    std::vector<StateMessage> messages;
    for (const auto& send : sent) {
      if (send.to == to) messages.push_back(*decode_state(send.message.head.view()));
    }
    return messages;
  }
  template <typename Body>
  size_t count(const PeerId& to) {
    const auto messages = said(to);
    return static_cast<size_t>(std::count_if(messages.begin(), messages.end(),
                                             [](const auto& message) { return std::holds_alternative<Body>(message); }));
  }
  void ask(const PeerId& from, Nanos now = 0, uint64_t wanted = 0) {
    EXPECT_TRUE(donor.message(from, StateAsk{test::state_schema, wanted}, now).ok());
  }
  void want(const PeerId& from, std::vector<uint32_t> parts, Nanos now = 0) {
    EXPECT_TRUE(donor.message(from, StateWant{copy.state_digest(), std::move(parts)}, now).ok());
  }
  void expect_refused(const PeerId& joiner, StateRefusal reason) {
    const auto messages = said(joiner);
    ASSERT_FALSE(messages.empty());
    ASSERT_TRUE(std::holds_alternative<StateRefused>(messages.back()));
    EXPECT_EQ(std::get<StateRefused>(messages.back()).reason, reason);
  }

  Bytes values;
  StateCopy copy;
  StateDonor donor;
  std::vector<StateSend> sent;
};

TEST_F(StateDonorServes, two_joiners_and_tells_the_third_to_ask_again) {
  ask(alice), ask(bert), ask(carla);
  EXPECT_EQ(donor.serving(), 2u);
  EXPECT_EQ(count<StateOffer>(alice) + count<StateOffer>(bert), 2u);
  EXPECT_EQ(count<StateBusy>(carla), 1u);
  ASSERT_TRUE(donor.message(alice, StateDone{}, 0).ok());
  ask(carla);
  EXPECT_EQ(count<StateOffer>(carla), 1u);
  EXPECT_EQ(donor.serving(), 2u);
}

TEST_F(StateDonorServes, requested_parts_in_order_and_once) {
  ask(alice);
  want(alice, {3, 1, 3, 19});
  std::vector<uint32_t> parts;
  for (const auto& message : said(alice)) {
    if (const auto* part = std::get_if<StatePart>(&message)) {
      parts.push_back(part->part);
      EXPECT_TRUE(std::equal(part->bytes.begin(), part->bytes.end(), values.begin() + part->part * 10'000));
      EXPECT_EQ(part->bytes.size(), 10'000u);
    }
  }
  EXPECT_EQ(parts, (std::vector<uint32_t>{3, 1, 19}));
}

TEST_F(StateDonorServes, with_a_quarter_of_its_bandwidth_both_joiners_in_turn) {
  donor.set_bandwidth(4e6);  // a quarter is 1e6 bytes/s, so each part of 10 kB takes 10 ms
  ask(alice), ask(bert);
  want(alice, {0, 1, 2, 3, 4, 5}), want(bert, {0, 1, 2, 3, 4, 5});
  for (int milliseconds = 1; milliseconds <= 50; ++milliseconds) {
    const Nanos now = milliseconds * millisecond;
    if (donor.next_deadline() <= now) donor.woke(now);
  }
  // A part has 10000 bytes and a header of 14 bytes, so it takes 10.014 ms. Parts are sent at 0, 10.014, 20.028, 30.042 and
  // 40.056 ms.
  EXPECT_EQ(count<StatePart>(alice) + count<StatePart>(bert), 5u);
  EXPECT_EQ(count<StatePart>(alice), 3u);
  EXPECT_GT(donor.next_deadline(), 50 * millisecond);
  EXPECT_LT(donor.next_deadline(), 51 * millisecond);
}

TEST_F(StateDonorServes, no_joiner_that_is_silent_or_requests_nothing) {
  const Nanos stall = options().times.stall_timeout;
  donor.set_bandwidth(4);  // bytes/s: so slow that only the first part is ever sent
  ask(alice), ask(bert), ask(carla, 0);
  want(alice, {0, 1}), want(bert, {0});
  for (Nanos now = stall / 4; now < 3 * stall; now += stall / 4) {
    want(alice, {}, now);  // a sign of life: alice still waits for part 1
    want(bert, {}, now);   // a sign of life
    while (donor.next_deadline() <= now) donor.woke(now);
  }
  EXPECT_EQ(donor.serving(), 2u) << "bert's part could not be sent: he waits for it";
  want(alice, {}, 3 * stall);
  donor.woke(4 * stall - millisecond);
  EXPECT_EQ(donor.serving(), 1u) << "bert was silent";
  donor.woke(4 * stall);
  EXPECT_EQ(donor.serving(), 0u);
  EXPECT_FALSE(copy.held());
  EXPECT_EQ(donor.next_deadline(), never);
  EXPECT_EQ(donor.counters().stalled, 2u);
}

TEST_F(StateDonorServes, no_joiner_that_keeps_its_slot_without_requests) {
  const Nanos stall = options().times.stall_timeout;
  ask(alice);
  want(alice, {0}, 0);
  for (Nanos now = stall / 4; now < stall; now += stall / 4) want(alice, {}, now);
  donor.woke(stall);
  EXPECT_EQ(donor.serving(), 0u);
  EXPECT_EQ(count<StateBusy>(alice), 1u);
}

TEST_F(StateDonorServes, signs_of_life_while_it_sends_slowly) {
  const Nanos stall = options().times.stall_timeout;
  donor.set_bandwidth(4);
  ask(alice);
  want(alice, {0, 1});
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(donor.next_deadline(), i * stall / 4);
    donor.woke(i * stall / 4);
  }
  EXPECT_EQ(count<StateAlive>(alice), 3u);
}

TEST_F(StateDonorServes, a_joiner_that_lost_its_slot_and_still_requests_the_same_state) {
  const auto state = copy.state_digest();
  want(alice, {});
  EXPECT_EQ(count<StateBusy>(alice), 1u);
  want(alice, {5});
  EXPECT_EQ(count<StatePart>(alice), 1u);
  EXPECT_EQ(donor.serving(), 1u);
  ASSERT_TRUE(donor.message(bert, StateWant{state + 1, {5}}, 0).ok());
  expect_refused(bert, StateRefusal::other_state);
}

TEST_F(StateDonorServes, the_same_state_until_the_last_joiner_is_done) {
  const auto state = copy.state_digest();
  ask(alice);
  values = test::random_bytes(200'000, 2);
  test::finish(copy, 8, values, donor_sizes);
  ask(bert, 0, state);
  EXPECT_EQ(count<StateOffer>(bert), 1u);
  donor.peer_gone(alice);
  donor.peer_gone(bert);
  ask(carla, 0, state);
  expect_refused(carla, StateRefusal::other_state);
  ask(carla);
  EXPECT_EQ(count<StateOffer>(carla), 1u);
}

TEST_F(StateDonorServes, no_joiner_with_other_tensors_and_none_once_it_leaves) {
  ASSERT_TRUE(donor.message(alice, StateAsk{test::state_schema + 1, 0}, 0).ok());
  expect_refused(alice, StateRefusal::other_schema);
  ask(bert);
  donor.leave();
  expect_refused(bert, StateRefusal::leaving);
  EXPECT_EQ(donor.serving(), 0u);
  ask(bert);
  expect_refused(bert, StateRefusal::leaving);
  StateCopy nothing(test::state_schema, donor_sizes);
  StateDonor empty(options(), nothing);
  ASSERT_TRUE(empty.message(alice, StateAsk{test::state_schema, 0}, 0).ok());
  EXPECT_EQ(std::get<StateRefused>(*decode_state(empty.take_sends().at(0).message.head.view())).reason, StateRefusal::no_state);
}

TEST_F(StateDonorServes, no_parts_that_do_not_exist_and_no_answers_to_answers) {
  ask(alice);
  EXPECT_EQ(donor.message(alice, StateWant{copy.state_digest(), {20}}, 0).code(), Code::corrupt);
  EXPECT_EQ(donor.message(alice, StateAlive{}, 0).code(), Code::corrupt);
  EXPECT_EQ(donor.message(bert, StateOffer{}, 0).code(), Code::corrupt);
  EXPECT_EQ(donor.counters().malformed, 3u);
  EXPECT_EQ(count<StatePart>(alice), 0u);
}

}  // namespace
}  // namespace unisono
