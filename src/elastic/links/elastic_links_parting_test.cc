// Links that end in order: closed by the caller, idle, or ended by both sides at once. No message is lost.
#include <gtest/gtest.h>

#include "tests/conformance/elastic_crowd.h"

namespace unisono {
namespace {

using ElasticParting = ElasticLinksCluster;

TEST_F(ElasticParting, queued_messages_are_sent_before_a_close_and_neither_side_reports_a_loss) {
  add(), add();
  introduce_all();
  for (int i = 0; i < 20; ++i) send_message(0, 1, message_of(1u << 20, static_cast<uint64_t>(i)));
  links(0).close(id(1));
  EXPECT_FALSE(links(0).send(id(1), message_of(1, 1), now));
  ASSERT_TRUE(has_received(1, 20));
  ASSERT_TRUE(within(1 * second, [&] { return is_drained(); }));
  EXPECT_FALSE(links(0).linked(id(1)));
  EXPECT_FALSE(links(1).linked(id(0)));
  EXPECT_EQ(links(0).describe(id(1)), "not known");
  EXPECT_EQ(links(1).describe(id(0)), "tcp, no link");
  EXPECT_TRUE(no_losses());
}

TEST_F(ElasticParting, a_leaving_process_closes_all_links_and_drains_until_everything_is_sent) {
  for (int i = 0; i < 5; ++i) add();
  introduce_all();
  for (size_t i = 1; i < 5; ++i) send_message(0, i, message_of(100'000, i));
  links(0).close_all();
  ASSERT_TRUE(within(1 * second, [&] { return !links(0).draining(); }));
  kill(0);
  for (size_t i = 1; i < 5; ++i) EXPECT_TRUE(has_received(i, 1));
  EXPECT_TRUE(no_losses());
}

TEST_F(ElasticParting, a_leaving_process_does_not_drain_for_an_address_that_has_not_answered) {
  add(), add();
  members[1]->asleep = true;
  ASSERT_TRUE(links(0).send_to_address(address(1), message_of(10, 1), now));
  settle();
  ASSERT_TRUE(links(0).draining());
  links(0).close_all();
  EXPECT_TRUE(within(10 * millisecond, [&] { return !links(0).draining(); }));
  members[1]->asleep = false;
  EXPECT_FALSE(within(1 * second, [&] { return !handler(1).messages.empty() || !handler(0).failures.empty(); }));
}

TEST_F(ElasticParting, idle_links_are_closed_down_to_links_kept_max_and_redialled_when_needed) {
  for (int i = 0; i < 6; ++i) add({.idle_close = 10 * second, .links_kept_max = i == 0 ? size_t{2} : size_t{256}});
  introduce_all();
  for (size_t i = 1; i < 6; ++i) send_message(0, i, message_of(10, i));
  for (size_t i = 1; i < 6; ++i) ASSERT_TRUE(has_received(i, 1));
  ASSERT_FALSE(within(5 * second, [&] { return links(0).counters().links_idled > 0; }));
  for (size_t i = 3; i < 6; ++i) send_message(0, i, message_of(10, i));  // only the links to members 3, 4 and 5 stay in use
  ASSERT_TRUE(within(7 * second, [&] { return links(0).counters().links_idled == 2; }));
  EXPECT_FALSE(within(2 * second, [&] { return links(0).counters().links_idled > 2; }));
  for (size_t i = 1; i < 6; ++i) EXPECT_EQ(links(0).linked(id(i)), i >= 3) << i;
  ASSERT_TRUE(within(15 * second, [&] { return links(0).counters().links_idled == 3; }));
  EXPECT_FALSE(within(15 * second, [&] { return links(0).counters().links_idled > 3; }));
  for (size_t i = 1; i < 6; ++i) send_message(i, 0, message_of(10, i));
  ASSERT_TRUE(has_received(0, 5));
  EXPECT_TRUE(no_losses());
}

TEST_F(ElasticParting, messages_that_cross_the_end_of_an_idle_link_arrive_once_and_in_order) {
  // One side ends the idle link while the other side sends over it. The order of these two events differs from pass to pass.
  for (int lead = 0; lead < 12; ++lead) {
    SCOPED_TRACE(lead);
    members.clear();
    add({.idle_close = 10 * second, .links_kept_max = 0}), add();
    introduce_all();
    send_message(0, 1, message_of(1, 0));
    ASSERT_TRUE(has_received(1, 1));
    now += 11 * second;
    for (int i = 0; i < lead % 4; ++i) links(0).poll(now, handler(0));
    for (uint64_t i = 0; i < 5; ++i) send_message(1, 0, message_of(100, i));
    for (int i = 0; i < lead / 4; ++i) links(1).poll(now, handler(1));
    for (uint64_t i = 0; i < 5; ++i) send_message(0, 1, message_of(100, i));
    ASSERT_TRUE(has_received(0, 5));
    ASSERT_TRUE(has_received(1, 6));
    for (uint64_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(conformance::same(handler(0).messages[i].second.view(), message_of(100, i).view()));
      EXPECT_TRUE(conformance::same(handler(1).messages[i + 1].second.view(), message_of(100, i).view()));
    }
    EXPECT_TRUE(no_losses());
  }
}

TEST_F(ElasticParting, both_sides_may_close_at_once) {
  for (const auto* key : {"", "secret"}) {
    members.clear();
    add({.tls = key_of(key)}), add({.tls = key_of(key)});
    introduce_all();
    send_message(0, 1, message_of(10, 1)), send_message(1, 0, message_of(10, 1));
    ASSERT_TRUE(has_received(0, 1));
    ASSERT_TRUE(has_received(1, 1));
    links(0).close(id(1)), links(1).close(id(0));
    ASSERT_TRUE(within(1 * second, [&] { return is_drained(); }));
    EXPECT_TRUE(no_losses());
  }
}

TEST_F(ElasticParting, a_peer_that_does_not_confirm_the_close_is_waited_for_a_limited_time) {
  add(), add();
  introduce_all();
  send_message(0, 1, message_of(10, 1));
  ASSERT_TRUE(has_received(1, 1));
  members[1]->asleep = true;
  links(0).close(id(1));
  EXPECT_FALSE(within(4 * second, [&] { return !links(0).draining(); }));
  EXPECT_TRUE(within(5 * second, [&] { return links(0).describe(id(1)) == "not known"; }));
  EXPECT_TRUE(handler(0).losses.empty()) << "it was closed";
}

TEST_F(ElasticParting, an_unknown_peer_is_forgotten_with_its_link) {
  add({.peers_max = 2}), add(), add(), add();
  for (size_t i = 1; i < 4; ++i) introduce(i, 0);
  for (size_t i = 1; i < 3; ++i) send_message(i, 0, message_of(10, i));
  ASSERT_TRUE(has_received(0, 2));
  send_message(3, 0, message_of(10, 3));
  EXPECT_FALSE(within(1 * second, [&] { return handler(0).messages.size() > 2; })) << "a third peer exceeds peers_max";
  kill(1);
  ASSERT_TRUE(within(5 * second, [&] { return handler(0).messages.size() == 3; }));
  EXPECT_EQ(handler(0).losses.size(), 1u);
}

}  // namespace
}  // namespace unisono
