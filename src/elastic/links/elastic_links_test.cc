// Messages between peers that come and go, sent by id or by address. Links break, become idle, part, or have full queues.
#include "elastic/links/elastic_links.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "base/concat.h"
#include "tests/conformance/elastic_crowd.h"

namespace unisono {
namespace {

using conformance::pattern;
using conformance::same;
using conformance::test_seed;
using ElasticLinksTest = ElasticLinksCluster;

TEST_F(ElasticLinksTest, messages_of_all_sizes_arrive_whole_and_in_order_with_and_without_a_key) {
  for (const auto* key : {"", "secret"}) {
    SCOPED_TRACE(key);
    members.clear();
    add({.tls = key_of(key)}), add({.tls = key_of(key)});
    introduce_all();
    const size_t sizes[] = {0, 1, 31, 4096, 4097, 65536, 1'000'003, ElasticLinks::message_bytes_max};
    for (const auto bytes : sizes) send_message(0, 1, message_of(bytes, bytes + test_seed()));
    send_message(1, 0, message_of(5, 5));
    ASSERT_TRUE(has_received(1, std::size(sizes)));
    ASSERT_TRUE(has_received(0, 1));
    for (size_t i = 0; i < std::size(sizes); ++i) {
      EXPECT_EQ(handler(1).messages[i].first, id(0));
      EXPECT_TRUE(same(handler(1).messages[i].second.view(), pattern(sizes[i], sizes[i] + test_seed())))
          << sizes[i] << ", seed " << test_seed();
    }
    EXPECT_FALSE(links(0).send(id(1), SharedBuffer::make(ElasticLinks::message_bytes_max + 1), now));
    EXPECT_TRUE(no_losses());
    EXPECT_EQ(links(1).counters().received_messages, std::size(sizes));
    EXPECT_EQ(links(0).counters().sent_bytes, links(1).counters().received_bytes);
  }
}

TEST_F(ElasticLinksTest, a_message_in_two_pieces_arrives_as_one) {
  for (const auto* key : {"", "secret"}) {
    SCOPED_TRACE(key);
    members.clear();
    add({.tls = key_of(key)}), add({.tls = key_of(key)});
    introduce_all();
    const auto whole = message_of(1'000'003, test_seed());
    const size_t cuts[] = {1, 64, first_piece_bytes_max};
    for (const auto cut : cuts) {
      EXPECT_TRUE(links(0).send(id(1), SharedMessage(whole.slice(0, cut), whole.slice(cut, whole.size() - cut)), now));
      send_message(0, 1, message_of(10, cut));
    }
    EXPECT_TRUE(links(0).send(id(1), SharedMessage(whole.slice(0, 64), whole.slice(64, 1)), now));
    ASSERT_TRUE(has_received(1, 2 * std::size(cuts) + 1));
    for (size_t i = 0; i < std::size(cuts); ++i) {
      EXPECT_TRUE(same(handler(1).messages[2 * i].second.view(), pattern(whole.size(), test_seed())))
          << cuts[i] << ", seed " << test_seed();
      EXPECT_TRUE(same(handler(1).messages[2 * i + 1].second.view(), pattern(10, cuts[i]))) << cuts[i];
    }
    EXPECT_EQ(handler(1).messages.back().second.size(), 65u);
    EXPECT_TRUE(no_losses());
    EXPECT_EQ(links(0).counters().sent_bytes, links(1).counters().received_bytes);
  }
}

// TCP lends a payload that has arrived as a whole, at an aligned place, without asking for a buffer.
TEST_F(ElasticLinksTest, messages_that_the_transport_lends_arrive_whole) {
  for (const auto* key : {"", "secret"}) {
    SCOPED_TRACE(key);
    members.clear();
    add({.tls = key_of(key)}), add({.tls = key_of(key)});
    introduce_all();
    const auto whole = message_of(8192 + 64, test_seed());
    for (int i = 0; i < 20; ++i) {
      send_message(0, 1, message_of(4096 + 64 * static_cast<size_t>(i), static_cast<uint64_t>(i)));
      EXPECT_TRUE(links(0).send(id(1), SharedMessage(whole.slice(0, 64), whole.slice(64, 8192)), now));
    }
    ASSERT_TRUE(has_received(1, 40));
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_TRUE(same(handler(1).messages[2 * i].second.view(), pattern(4096 + 64 * i, i))) << i;
      EXPECT_TRUE(same(handler(1).messages[2 * i + 1].second.view(), pattern(whole.size(), test_seed()))) << i;
    }
    EXPECT_TRUE(no_losses());
    EXPECT_EQ(links(0).counters().sent_bytes, links(1).counters().received_bytes);
  }
}

TEST_F(ElasticLinksTest, many_peers_that_all_dial_each_other_at_once_have_one_link_per_pair) {
  constexpr size_t count = 10;
  for (size_t i = 0; i < count; ++i) add();
  introduce_all();
  for (size_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < count; ++j) {
        if (i != j) send_message(i, j, message_of(1000 + round, i * 100 + j));
      }
    }
    for (size_t i = 0; i < count; ++i) ASSERT_TRUE(has_received(i, (count - 1) * (round + 1)));
  }
  EXPECT_FALSE(within(2 * second, [&] { return !no_losses(); }));
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(links(i).counters().links_made, count - 1);
}

TEST_F(ElasticLinksTest, a_peer_is_found_by_its_address_and_answers_unknown_peers) {
  add(), add();
  ASSERT_TRUE(links(0).send_to_address(address(1), message_of(10, 1), now));
  ASSERT_TRUE(links(0).send_to_address(address(1), message_of(20, 2), now));
  ASSERT_TRUE(has_received(1, 2));
  EXPECT_EQ(handler(1).messages[0].first, id(0));
  send_message(1, 0, message_of(30, 3));
  ASSERT_TRUE(has_received(0, 1));
  EXPECT_EQ(handler(0).messages[0].first, id(1));
  // A further message to the address uses the link that exists now.
  ASSERT_TRUE(links(0).send_to_address(address(1), message_of(40, 4), now));
  ASSERT_TRUE(has_received(1, 3));
  EXPECT_EQ(links(0).counters().links_made, 1u);
  EXPECT_TRUE(no_losses());
}

TEST_F(ElasticLinksTest, two_peers_that_send_to_each_others_addresses_at_once_lose_nothing) {
  add(), add();
  introduce(0, 1);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(links(0).send_to_address(address(1), message_of(10, 1), now));
    ASSERT_TRUE(links(1).send_to_address(address(0), message_of(10, 1), now));
    send_message(0, 1, message_of(11, 1));
  }
  ASSERT_TRUE(has_received(0, 5));
  ASSERT_TRUE(has_received(1, 10));
  EXPECT_FALSE(within(2 * second, [&] { return !no_losses() || links(0).counters().links_made > 1; }));
}

TEST_F(ElasticLinksTest, a_failed_address_is_reported_with_the_reason) {
  add(), add(), add({.run_id = "another"});
  const auto nobody = address(1);
  kill(1);
  for (const auto& there : {nobody, address(0), address(2)})
    ASSERT_TRUE(links(0).send_to_address(there, message_of(10, 1), now));
  EXPECT_FALSE(links(0).send_to_address("tcp://nonsense", message_of(10, 1), now));
  ASSERT_TRUE(within(300 * millisecond, [&] { return handler(0).failures.size() == 3; }));
  std::map<std::string, Status> failures(handler(0).failures.begin(), handler(0).failures.end());
  EXPECT_EQ(failures[nobody].code(), Code::unavailable);
  EXPECT_NE(failures[nobody].message().find("connection refused"), std::string::npos) << failures[nobody].message();
  EXPECT_EQ(failures[address(0)].code(), Code::unavailable);
  EXPECT_NE(failures[address(0)].message().find("this process itself"), std::string::npos) << failures[address(0)].message();
  EXPECT_EQ(failures[address(2)].code(), Code::invalid);
  EXPECT_NE(failures[address(2)].message().find("another job"), std::string::npos) << failures[address(2)].message();
  EXPECT_TRUE(no_losses());
  EXPECT_EQ(links(0).counters().dropped_messages, 3u);
}

TEST_F(ElasticLinksTest, asks_a_limited_number_of_addresses_at_a_time) {
  add();
  for (size_t i = 0; i < ElasticLinks::addresses_max; ++i) {
    EXPECT_TRUE(links(0).send_to_address(concat("tcp://127.0.0.1:", i + 1), message_of(1, 1), now));
  }
  EXPECT_FALSE(links(0).send_to_address("tcp://127.0.0.1:1000", message_of(1, 1), now));
}

TEST_F(ElasticLinksTest, a_peer_that_is_killed_is_lost_as_dead_at_once) {
  add(), add();
  introduce_all();
  send_message(0, 1, message_of(10, 1));
  ASSERT_TRUE(has_received(1, 1));
  kill(1);
  ASSERT_TRUE(within(100 * millisecond, [&] { return !handler(0).losses.empty(); }));
  EXPECT_EQ(handler(0).losses[0].peer, id(1));
  EXPECT_TRUE(handler(0).losses[0].refused);
  EXPECT_EQ(handler(0).losses[0].why.code(), Code::peer_lost);
  EXPECT_NE(handler(0).losses[0].why.message().find("connection refused"), std::string::npos)
      << handler(0).losses[0].why.message();
  // Another message is reported as lost, too. No link has been made since the first loss.
  send_message(0, 1, message_of(10, 1));
  ASSERT_TRUE(within(100 * millisecond, [&] { return handler(0).losses.size() == 2; }));
  EXPECT_TRUE(handler(0).losses[1].refused);
  EXPECT_FALSE(links(0).linked(id(1)));
}

TEST_F(ElasticLinksTest, another_process_at_a_peers_address_proves_the_peer_dead) {
  add(), add();
  introduce_all();
  send_message(0, 1, message_of(10, 1));
  ASSERT_TRUE(has_received(1, 1));
  const auto port = links(1).port();
  kill(1);
  add({.port = port});
  ASSERT_TRUE(within(100 * millisecond, [&] { return !handler(0).losses.empty(); }));
  EXPECT_TRUE(handler(0).losses[0].refused);
  EXPECT_NE(handler(0).losses[0].why.message().find("another process"), std::string::npos)
      << handler(0).losses[0].why.message();
}

TEST_F(ElasticLinksTest, a_link_whose_connection_breaks_loses_no_message_and_is_not_reported) {
  add(), add();
  Proxy proxy(address(1));
  others.push_back([&] { proxy.turn(); });
  links(0).know(id(1), {proxy.endpoint()}, true);
  send_message(0, 1, message_of(10, 1));
  ASSERT_TRUE(has_received(1, 1));
  send_message(0, 1, message_of(3'000'000, 2));
  send_message(1, 0, message_of(2'000'000, 3));
  settle(1);
  proxy.cut();
  send_message(0, 1, message_of(10, 4));
  ASSERT_TRUE(has_received(1, 3));
  ASSERT_TRUE(has_received(0, 1));
  EXPECT_TRUE(same(handler(1).messages[1].second.view(), message_of(3'000'000, 2).view()));
  EXPECT_TRUE(same(handler(1).messages[2].second.view(), message_of(10, 4).view()));
  EXPECT_TRUE(same(handler(0).messages[0].second.view(), message_of(2'000'000, 3).view()));
  EXPECT_TRUE(no_losses());
}

TEST_F(ElasticLinksTest, queued_messages_are_dropped_when_a_loss_is_reported_despite_a_new_link) {
  add(), add();
  Proxy proxy(address(1));
  links(0).know(id(1), {proxy.endpoint()}, true);
  others.push_back([&] { proxy.turn(); });
  send_message(0, 1, message_of(10, 1));
  ASSERT_TRUE(has_received(1, 1));
  // A frame that is damaged on its way ends the link.
  proxy.change = [&](Bytes frame) { return Proxy::Frames{handler(1).losses.empty() ? Bytes(frame.size()) : std::move(frame)}; };
  send_message(0, 1, message_of(10, 2));
  const auto deadline = now + 5 * second;
  while (links(0).linked(id(1)) && now < deadline) {
    now += millisecond;
    proxy.turn();
    links(1).poll(now, handler(1));
    links(0).poll(now, handler(0));
  }
  ASSERT_FALSE(links(0).linked(id(1)));
  ASSERT_TRUE(handler(0).losses.empty());
  send_message(0, 1, message_of(11, 1));
  ASSERT_TRUE(within(100 * millisecond, [&] { return handler(0).losses.size() == 1; }));
  send_message(0, 1, message_of(12, 1));
  ASSERT_TRUE(has_received(1, 2));
  EXPECT_EQ(handler(1).messages[1].second.size(), 12u);
  EXPECT_EQ(links(0).counters().dropped_messages, 1u);
}

TEST_F(ElasticLinksTest, a_client_makes_its_links_itself) {
  add(), add();
  introduce(0, 1, false);
  EXPECT_FALSE(links(0).send(id(1), message_of(10, 1), now));
  introduce(1, 0);
  send_message(1, 0, message_of(10, 1));
  ASSERT_TRUE(has_received(0, 1));
  send_message(0, 1, message_of(10, 1));
  ASSERT_TRUE(has_received(1, 1));
  kill(1);
  ASSERT_TRUE(within(100 * millisecond, [&] { return !handler(0).losses.empty(); }));
  EXPECT_FALSE(handler(0).losses[0].refused);
  EXPECT_EQ(links(0).counters().dials, 0u);
}

// A peer that has dialled is dialled back as soon as it is known that it may be. Then its death is proven by the first refusal.
TEST_F(ElasticLinksTest, the_death_of_a_peer_that_has_dialled_is_told_soon_unless_it_is_a_client) {
  enum class Known { before, after, as_client };
  for (const auto known : {Known::before, Known::after, Known::as_client}) {
    SCOPED_TRACE(static_cast<int>(known));
    members.clear();
    add({.interface = "all"}), add();
    // They seem to be on different hosts.
    links(1).know(id(0), {concat("tcp://127.0.0.2:", links(0).port())}, true);
    if (known == Known::before) introduce(0, 1);
    send_message(1, 0, message_of(10, 1));
    ASSERT_TRUE(has_received(0, 1));
    if (known != Known::before) introduce(0, 1, known == Known::after);
    EXPECT_FALSE(within(100 * millisecond, [&] { return !no_losses(); }));
    EXPECT_EQ(links(0).counters().dials, 0u);
    EXPECT_EQ(links(1).counters().refused_connections, 0u);
    kill(1);
    const bool soon = within(100 * millisecond, [&] { return !handler(0).losses.empty(); });
    EXPECT_EQ(soon, known != Known::as_client);
    ASSERT_TRUE(within(300 * millisecond, [&] { return !handler(0).losses.empty(); }));
    EXPECT_EQ(handler(0).losses[0].refused, known != Known::as_client);
  }
}

TEST_F(ElasticLinksTest, the_queue_of_a_peer_that_reads_nothing_is_limited) {
  add({.queue_bytes_max = 32u << 20, .bulk_bytes = 4u << 20}), add();
  introduce_all();
  send_message(0, 1, message_of(1, 1));
  ASSERT_TRUE(has_received(1, 1));
  members[1]->asleep = true;
  EXPECT_TRUE(links(0).credit(id(1)));
  const auto message = message_of(1u << 20, test_seed());
  size_t sent = 0;
  for (; links(0).send(id(1), message, now); ++sent) settle(1);
  EXPECT_GE(sent, 31u);
  EXPECT_LE(sent, 64u) << "the kernel's share included";
  EXPECT_FALSE(links(0).credit(id(1)));
  EXPECT_EQ(handler(0).credits[id(1)], 0);
  members[1]->asleep = false;
  ASSERT_TRUE(has_received(1, sent + 1));
  EXPECT_EQ(handler(0).credits[id(1)], 1);
  EXPECT_TRUE(links(0).credit(id(1)));
  for (size_t i = 1; i <= sent; ++i) EXPECT_TRUE(same(handler(1).messages[i].second.view(), message.view()));
}

TEST_F(ElasticLinksTest, small_messages_are_limited_too) {
  add({.queue_bytes_max = 1u << 20}), add();
  introduce_all();
  members[1]->asleep = true;
  size_t sent = 0;
  while (sent < 100'000 && links(0).send(id(1), SharedBuffer(), now)) ++sent;
  EXPECT_EQ(sent, (1u << 20) / 256);
}

TEST_F(ElasticLinksTest, one_buffer_goes_to_several_peers_without_a_copy) {
  for (int i = 0; i < 4; ++i) add({.tls = key_of("secret")});
  introduce_all();
  const auto message = message_of(4u << 20, test_seed());
  for (size_t i = 1; i < 4; ++i) {
    members[i]->asleep = true;
    send_message(0, i, message);
  }
  settle();
  for (size_t i = 1; i < 4; ++i) members[i]->asleep = false;
  for (size_t i = 1; i < 4; ++i) {
    ASSERT_TRUE(has_received(i, 1));
    EXPECT_TRUE(same(handler(i).messages[0].second.view(), message.view()));
  }
}

TEST_F(ElasticLinksTest, a_message_may_be_sent_and_a_peer_closed_from_inside_an_upcall) {
  add(), add(), add();
  introduce_all();
  handler(1).on_received = [&](const PeerId& from) {
    EXPECT_TRUE(links(1).send(id(2), message_of(20, 2), now));
    EXPECT_TRUE(links(1).send(from, message_of(21, 2), now));
    links(1).close(from);
  };
  send_message(0, 1, message_of(10, 1));
  ASSERT_TRUE(has_received(2, 1));
  ASSERT_TRUE(has_received(0, 1));
  ASSERT_TRUE(within(1 * second, [&] { return is_drained(); }));
  EXPECT_FALSE(links(1).linked(id(0)));
  EXPECT_TRUE(no_losses());
}

TEST_F(ElasticLinksTest, a_message_wakes_a_waiting_process) {
  add(), add();
  introduce_all();
  send_message(0, 1, message_of(10, 1));
  ASSERT_TRUE(has_received(1, 1));
  send_message(0, 1, message_of(10, 1));
  settle(0);
  links(0).poll(now, handler(0));
  for (int turn = 0; turn < 100 && handler(1).messages.size() == 1; ++turn) {
    if (links(1).arm()) {
      pollfd ready{links(1).wait_handle(), POLLIN, 0};
      const timespec timeout{30, 0};
      ASSERT_EQ(::ppoll(&ready, 1, &timeout, nullptr), 1);
      links(1).disarm();
    }
    links(1).poll(now, handler(1));
  }
  EXPECT_EQ(handler(1).messages.size(), 2u);
}

TEST(ElasticMake, names_a_port_that_is_taken) {
  auto first = ElasticLinks::make({.self = {1, 1}, .interface = "127.0.0.1"});
  ASSERT_TRUE(first.ok());
  const auto second = ElasticLinks::make({.self = {2, 2}, .interface = "127.0.0.1", .port = (*first)->port()});
  EXPECT_EQ(second.status().code(), Code::unavailable);
  EXPECT_NE(second.status().message().find("address already in use"), std::string::npos) << second.status().message();
}

}  // namespace
}  // namespace unisono
