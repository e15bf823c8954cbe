// The test suite for all implementations of src/net/stream_socket.h. Each promise of that header is a test.
//
// The _test.cc file of an implementation registers the suite:
//   INSTANTIATE_TEST_SUITE_P(Kernel, StreamPromise, testing::Values([] { return …; }));
// The function returns a StreamPlace: two processes, or one process twice, that can reach each other.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cerrno>

#include "stream_pair.h"

namespace unisono::conformance {

TEST_P(StreamPromise, parts_arrive_in_order_and_the_end_comes_after_them) {
  connect();
  std::array<std::byte, 3> first{std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 2> second{std::byte{4}, std::byte{5}};
  const iovec out[] = {{first.data(), first.size()}, {second.data(), second.size()}};
  EXPECT_EQ(dialled->write(out, 2), 5);
  dialled->shut_down();
  std::array<std::byte, 5> all{};
  const iovec in[] = {{all.data(), 4}, {all.data() + 4, 1}};
  ptrdiff_t count = 0;
  ASSERT_TRUE(until([&] { return (count = accepted->read(in, 2, ended)) != 0 || ended; }));
  EXPECT_EQ(count, 5);
  EXPECT_FALSE(ended);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], std::byte(i + 1));
  EXPECT_EQ(read(*accepted, 1), 0u);
  EXPECT_TRUE(ended);
  // The other direction still works.
  EXPECT_EQ(write_some(*accepted, first), 3);
  EXPECT_EQ(read(*dialled, 3), 3u);
}

TEST_P(StreamPromise, an_empty_connection_has_nothing_to_read_and_no_end) {
  connect();
  std::byte one{};
  ended = true;
  EXPECT_EQ(read_some(*accepted, std::span(&one, 1), ended), 0);
  EXPECT_FALSE(ended);
  ended = true;
  EXPECT_EQ(accepted->peek(std::span(&one, 1), ended), 0);
  EXPECT_FALSE(ended);
}

TEST_P(StreamPromise, bytes_that_were_peeked_at_stay) {
  connect();
  const std::array<std::byte, 2> bytes{std::byte{7}, std::byte{8}};
  ASSERT_EQ(write_some(*dialled, bytes), 2);
  std::byte one{};
  ASSERT_TRUE(until([&] { return accepted->peek(std::span(&one, 1), ended) == 1; }));
  EXPECT_EQ(one, std::byte{7});
  EXPECT_EQ(read(*accepted, 2), 2u);
  dialled.reset();
  ASSERT_TRUE(until([&] { return accepted->peek(std::span(&one, 1), ended) != 0 || ended; }));
  EXPECT_TRUE(ended);
}

TEST_P(StreamPromise, a_port_without_listener_refuses) {
  connect();
  const auto port = listener->port();
  listener.reset();
  int error = 0;
  auto to = place->address().address;
  to.set_port(port);
  const auto socket = place->dialling().connect(to, {}, error);
  if (socket) {
    ASSERT_TRUE(until([&] { return (error = socket->connected().value_or(0)) != 0; }));
  }
  EXPECT_EQ(error, ECONNREFUSED);
}

TEST_P(StreamPromise, both_sides_know_both_addresses_even_after_the_end) {
  connect();
  EXPECT_EQ(dialled->remote().to_string(), accepted->local().to_string());
  EXPECT_EQ(dialled->local().to_string(), accepted->remote().to_string());
  EXPECT_EQ(accepted->local().port(), listener->port());
  const auto from = dialled->local().to_string();
  const std::byte one{};
  ASSERT_EQ(write_some(*accepted, std::span(&one, 1)), 1);
  bool peeked = false;
  ASSERT_TRUE(until([&] {
    std::byte ahead{};
    return dialled->peek(std::span(&ahead, 1), peeked) == 1;
  }));
  dialled.reset();  // with a byte that nobody has read, which the kernel answers with a reset
  ASSERT_TRUE(until([&] {
    std::byte ahead{};
    return accepted->peek(std::span(&ahead, 1), ended) < 0 || ended;
  }));
  EXPECT_EQ(accepted->remote().to_string(), from);
}

TEST_P(StreamPromise, a_full_connection_takes_nothing_until_the_peer_reads) {
  connect();
  size_t sent = 0;
  // A connection may take more when the peer's side has moved what came first.
  for (size_t more = 1; more > 0; sent += more) more = fill(*dialled), place->pass();
  ASSERT_GT(sent, 0u);
  ASSERT_TRUE(dialled->watch(*far_watcher, false, true, dialled_tag));
  EXPECT_FALSE(reports(*far_watcher, dialled_tag));
  EXPECT_EQ(read(*accepted, sent), sent);
  EXPECT_TRUE(until([&] { return reports(*far_watcher, dialled_tag); }));
  EXPECT_TRUE(until([&] { return dialled->unacknowledged_bytes() == 0; }));
  EXPECT_EQ(dialled->unacknowledged().repeats, 0u);
  EXPECT_FALSE(dialled->host_is_silent(second));
}

TEST_P(StreamPromise, an_aborted_connection_ends_with_an_error_behind_the_bytes_that_its_peer_has_acknowledged) {
  connect();
  const std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, std::byte{3}};
  EXPECT_EQ(write_some(*dialled, bytes), 3);
  ASSERT_TRUE(until([&] { return dialled->unacknowledged_bytes() == 0; }));
  dialled->abort();
  dialled.reset();
  place->pass();
  EXPECT_EQ(read(*accepted, 3), 3u);
  std::array<std::byte, 1> more{};
  ptrdiff_t count = 0;
  ASSERT_TRUE(until([&] { return (count = read_some(*accepted, more, ended)) != 0 || ended; }));
  EXPECT_FALSE(ended);
  EXPECT_EQ(count, -ECONNRESET);
}

TEST_P(StreamPromise, tags_are_reported_until_their_cause_is_gone) {
  auto made = listen();
  ASSERT_TRUE(made.ok());
  listener = std::move(*made);
  EXPECT_FALSE(reports(*watcher, listener_tag));
  dialled = dial(listener->port());
  ASSERT_TRUE(until([&] { return reports(*watcher, listener_tag); }));
  EXPECT_TRUE(reports(*watcher, listener_tag));
  accepted = listener->accept().socket;
  ASSERT_NE(accepted, nullptr);
  EXPECT_FALSE(reports(*watcher, listener_tag));
  EXPECT_EQ(listener->accept().socket, nullptr);
  ASSERT_TRUE(accepted->watch(*watcher, true, false, accepted_tag));
  EXPECT_FALSE(reports(*watcher, accepted_tag));
  const std::byte one{};
  ASSERT_TRUE(until([&] { return dialled->connected() == 0; }));
  ASSERT_EQ(write_some(*dialled, std::span(&one, 1)), 1);
  ASSERT_TRUE(until([&] { return reports(*watcher, accepted_tag); }));
  EXPECT_TRUE(reports(*watcher, accepted_tag));
  EXPECT_EQ(read(*accepted, 1), 1u);
  EXPECT_FALSE(reports(*watcher, accepted_tag));
}

TEST_P(StreamPromise, few_tags_at_a_time_do_not_hide_the_others) {
  connect();
  const auto second = dial(listener->port());
  ASSERT_TRUE(accepted->watch(*watcher, false, true, accepted_tag));
  bool seen_listener = false, seen_accepted = false;
  EXPECT_TRUE(until([&] {
    uint64_t tag = 0;
    if (watcher->ready(std::span(&tag, 1)) == 0) return false;
    seen_listener |= tag == listener_tag;
    seen_accepted |= tag == accepted_tag;
    return seen_listener && seen_accepted;
  }));
}

TEST_P(StreamPromise, a_watcher_without_events_forgets_even_the_end) {
  connect();
  ASSERT_TRUE(accepted->watch(*watcher, true, true, accepted_tag));
  ASSERT_TRUE(reports(*watcher, accepted_tag));
  ASSERT_TRUE(accepted->watch(*watcher, false, false, accepted_tag));
  dialled.reset();
  std::byte ahead{};
  ASSERT_TRUE(until([&] { return accepted->peek(std::span(&ahead, 1), ended) < 0 || ended; }));
  EXPECT_FALSE(reports(*watcher, accepted_tag));
  ASSERT_TRUE(accepted->watch(*watcher, true, false, accepted_tag));
  EXPECT_TRUE(reports(*watcher, accepted_tag));
}

TEST_P(StreamPromise, a_socket_has_one_watcher_and_one_tag) {
  connect();
  const auto other = make_watcher(place->listening());
  ASSERT_TRUE(accepted->watch(*watcher, false, true, accepted_tag));
  ASSERT_TRUE(accepted->watch(*other, false, true, accepted_tag));
  EXPECT_FALSE(reports(*watcher, accepted_tag));
  EXPECT_TRUE(reports(*other, accepted_tag));
  ASSERT_TRUE(accepted->watch(*other, false, true, inner_tag));
  EXPECT_FALSE(reports(*other, accepted_tag));
  EXPECT_TRUE(reports(*other, inner_tag));
  accepted.reset();
  EXPECT_FALSE(reports(*other, inner_tag));
}

TEST_P(StreamPromise, an_outer_watcher_reports_an_inner_one_while_it_has_events) {
  connect();
  const auto inner = make_watcher(place->listening(), watcher.get(), inner_tag);
  ASSERT_NE(inner, nullptr);
  EXPECT_FALSE(reports(*watcher, inner_tag));
  ASSERT_TRUE(accepted->watch(*inner, false, true, 0));
  EXPECT_TRUE(reports(*watcher, inner_tag));
  ASSERT_TRUE(accepted->watch(*inner, false, false, 0));
  EXPECT_FALSE(reports(*watcher, inner_tag));
}

TEST_P(StreamPromise, a_taken_port_is_refused_by_name_until_its_listener_is_gone) {
  connect();
  const auto port = listener->port();
  const auto again = listen(port);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), Code::unavailable);
  auto where = place->address().address;
  where.set_port(port);
  EXPECT_NE(again.status().message().find(where.to_string()), std::string::npos) << again.status().message();
  listener.reset();
  EXPECT_TRUE(listen(port).ok());
}

}  // namespace unisono::conformance
