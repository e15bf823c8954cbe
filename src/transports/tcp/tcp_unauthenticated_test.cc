// Connections that do not belong to a transport of this job, or only pretend to belong to it. Each is counted and does no harm.
#include <gtest/gtest.h>

#include "testing/descriptor_limit.h"
#include "tests/conformance/tcp_pair.h"

namespace unisono::conformance {
namespace {

class TcpUnauthenticated : public TcpPair {
 protected:
  // Sends the hellos of a member with the id member_id, one for each of the two streams of its link.
  void say_both(Unauthenticated& first, Unauthenticated& second, uint32_t attempt = 1) {
    auto greeting = two_streams();
    greeting.hello.attempt = attempt;
    first.send_bytes(greeting.seal());
    greeting.hello.stream_index = 1;
    second.send_bytes(greeting.seal());
  }
  Greeting two_streams() const {
    auto greeting = hello_from(member_id, id_b);
    greeting.hello.stream_count = 2;
    return greeting.seal();
  }
  // Makes a link that has a stream for each of `members`.
  void connect(std::initializer_list<Unauthenticated*> members) {
    ASSERT_TRUE(b->add_peer(request(member_id, {}, false)).ok());
    auto greeting = hello_from(member_id, id_b);
    greeting.hello.stream_count = static_cast<uint16_t>(members.size());
    for (auto* member : members) {
      greeting.hello.ends = member->ends();
      member->send_bytes(greeting.seal());
      ++greeting.hello.stream_index;
    }
    ASSERT_TRUE(until([&] { return b->state(0) == LinkState::up; }));
    for (auto* member : members) member->send_struct(begin_at(0));
  }
  // Polls without advancing the time, so that no timeout passes.
  void poll_at(Nanos now, int times = 100) {
    for (int i = 0; i < times; ++i) b->poll(now, *sink_b);
  }
  const PeerId member_id{7, 7};
};

TEST_F(TcpUnauthenticated, an_http_client_is_closed_without_an_answer) {
  link();
  Unauthenticated unauthenticated(*b);
  unauthenticated.send_bytes("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(until([&] { return unauthenticated.closed(); }));
  EXPECT_TRUE(unauthenticated.received().empty());
  EXPECT_EQ(b->counters().refused_connections, 1u);
  expect_link_works();
}

TEST_F(TcpUnauthenticated, random_bytes_are_closed) {
  link();
  Random random(test_seed());
  for (int i = 0; i < 50; ++i) {
    Unauthenticated unauthenticated(*b);
    unauthenticated.send_bytes(pattern(1 + random.below(300), random.next()));
    ASSERT_TRUE(until([&] { return unauthenticated.closed(); }));
  }
  EXPECT_EQ(b->counters().refused_connections, 50u);
  expect_link_works();
}

TEST_F(TcpUnauthenticated, half_a_hello_that_ends_is_closed) {
  link();
  const auto greeting = hello_from(PeerId{7, 7}, id_b);
  uint64_t refused = 0;
  for (const size_t count : {sizeof(TcpPreamble) - 1, sizeof(TcpPreamble), sizeof(TcpPreamble) + 60}) {
    Unauthenticated unauthenticated(*b);
    unauthenticated.send_bytes(std::as_bytes(std::span(&greeting, 1)).first(count));
    for (int i = 0; i < 100; ++i) turn();
    EXPECT_EQ(b->counters().refused_connections, refused);
    unauthenticated.disconnect();
    ++refused;
    ASSERT_TRUE(until([&] { return b->counters().refused_connections == refused; })) << count;
  }
  expect_link_works();
}

TEST_F(TcpUnauthenticated, a_silent_connection_is_closed_at_the_hello_timeout) {
  Unauthenticated unauthenticated(*b);
  Nanos now = clock_now();
  ASSERT_TRUE(until([&] {
    b->poll(now, *sink_b);
    return b->next_deadline() != never && b->next_deadline() > now;
  }));
  EXPECT_LE(b->next_deadline(), now + 6 * second);
  b->poll(now + 4 * second, *sink_b);
  EXPECT_FALSE(unauthenticated.closed());
  b->poll(now + 11 * second, *sink_b);
  EXPECT_TRUE(unauthenticated.closed());
  EXPECT_EQ(b->counters().refused_connections, 1u);
}

TEST_F(TcpUnauthenticated, a_wrong_key_version_or_addressee_gets_the_reason) {
  link();
  auto versioned = hello_from(PeerId{7, 7}, id_b);
  versioned.preamble.version = 77;
  auto striped = hello_from(PeerId{7, 7}, id_b);
  striped.hello.stream_index = 5;
  striped.seal();
  auto damaged = hello_from(PeerId{7, 7}, id_b);
  damaged.hello.from.low ^= 1;
  auto resuming = hello_from(PeerId{7, 7}, id_b);
  resuming.hello.resumes = 1;
  resuming.seal();
  auto second_hello = hello_from(id_a, id_b);
  second_hello.hello.attempt = 2;
  second_hello.seal();
  const std::pair<Greeting, TcpRefusal> cases[] = {
      {hello_from(PeerId{7, 7}, id_b, job(1)), TcpRefusal::other_job},
      {versioned, TcpRefusal::version},
      {hello_from(PeerId{7, 7}, PeerId{8, 8}), TcpRefusal::other_process},
      {striped, TcpRefusal::stream},
      {damaged, TcpRefusal::none},  // a damaged hello gets no answer
      {resuming, TcpRefusal::no_session},
      {hello_from(id_a, id_b), TcpRefusal::stale},
      {second_hello, TcpRefusal::duplicate},
  };
  for (const auto& [greeting, why] : cases) {
    Unauthenticated unauthenticated(*b);
    unauthenticated.send_bytes(greeting);
    ASSERT_TRUE(until([&] { return unauthenticated.closed(); }));
    EXPECT_EQ(unauthenticated.refusal(), why) << "attempt " << greeting.hello.attempt << "; " << b->describe(0);
  }
  EXPECT_EQ(b->counters().refused_connections, 6u) << "a duplicate is not an unauthenticated peer";
  expect_link_works();
}

TEST_F(TcpUnauthenticated, both_sides_dialling_is_refused) {
  ASSERT_TRUE(b->add_peer(request(id_a, a->endpoints(), true)).ok());
  Unauthenticated unauthenticated(*b);
  unauthenticated.send_bytes(hello_from(id_a, id_b));
  ASSERT_TRUE(until([&] { return unauthenticated.closed(); }));
  EXPECT_EQ(unauthenticated.refusal(), TcpRefusal::not_expected);
}

TEST_F(TcpUnauthenticated, a_hello_of_a_peer_that_is_never_added_is_refused_after_the_timeout) {
  Unauthenticated unauthenticated(*b);
  unauthenticated.send_bytes(hello_from(PeerId{7, 7}, id_b));
  Nanos now = clock_now();
  for (int i = 0; i < 100; ++i) b->poll(now, *sink_b);
  b->poll(now + 9 * second, *sink_b);
  EXPECT_FALSE(unauthenticated.closed());
  b->poll(now + 21 * second, *sink_b);
  EXPECT_TRUE(unauthenticated.closed());
  EXPECT_EQ(unauthenticated.refusal(), TcpRefusal::unknown_peer);
}

TEST_F(TcpUnauthenticated, a_thousand_connections_do_no_harm) {
  link();
  std::vector<std::unique_ptr<Unauthenticated>> crowd;
  for (int i = 0; i < 1000; ++i) {
    crowd.push_back(std::make_unique<Unauthenticated>(*b));
    ASSERT_TRUE(crowd.back()->connected());
    if (i % 3 == 0) crowd.back()->send_bytes("1UNISONO");
    if (i % 20 == 0) turn();
  }
  ASSERT_TRUE(until([&] { return b->counters().refused_connections >= 1000 - 64; }));
  expect_link_works();
  const auto open = std::ranges::count_if(crowd, [](auto& unauthenticated) { return !unauthenticated->closed(); });
  EXPECT_LE(open, 64);
  // A member can still connect: the oldest unauthenticated peer is closed for it.
  b->close(0);
  ASSERT_TRUE(until([&] { return !sink_a->losses.empty(); }));
  sink_a->losses.clear();
  link();
}

TEST_F(TcpUnauthenticated, connections_are_closed_when_no_descriptor_is_left) {
  link();
  Unauthenticated one(*b), two(*b);
  {
    const test::DescriptorLimit limit(0);
    EXPECT_TRUE(until([&] { return b->counters().refused_connections == 2; }));
  }
  EXPECT_TRUE(one.closed());
  expect_link_works();
}

TEST_F(TcpUnauthenticated, a_dialling_process_without_free_descriptors_says_so_at_once_and_names_the_limit) {
  // Reason: without a free descriptor the sanitizer takes every object for a damaged one (testing/descriptor_limit.h).
  if (test::sanitizer_needs_descriptors) GTEST_SKIP() << test::sanitizer_needs_descriptors_text;
  ASSERT_TRUE(a->add_peer(request(id_b, b->endpoints(), true, 3600 * second)).ok());
  const test::DescriptorLimit limit(0);
  ASSERT_TRUE(until([&] { return !sink_a->losses.empty(); }));
  const auto& why = sink_a->losses[0][0];
  EXPECT_EQ(why.code(), Code::unavailable);
  EXPECT_EQ(why.message(),
            "rank 3 (host b, pid 42): cannot be dialled; tried " + b->endpoints()[0].substr(6) + ": " + limit.text());
}

TEST_F(TcpUnauthenticated, a_listening_process_without_free_descriptors_says_so_at_once_and_names_the_limit) {
  // Reason: without a free descriptor the sanitizer takes every object for a damaged one (testing/descriptor_limit.h).
  if (test::sanitizer_needs_descriptors) GTEST_SKIP() << test::sanitizer_needs_descriptors_text;
  ASSERT_TRUE(b->add_peer(request(id_a, a->endpoints(), false, 3600 * second)).ok());
  Unauthenticated one(*b);
  const test::DescriptorLimit limit(0);
  ASSERT_TRUE(until([&] { return !sink_b->losses.empty(); }));
  const auto& why = sink_b->losses[0][0];
  EXPECT_EQ(why.code(), Code::unavailable);
  EXPECT_NE(why.message().find("rank 3 (host b, pid 42): cannot be accepted; waited for its connection at " +
                               b->endpoints()[0] + "; " + limit.text()),
            std::string::npos)
      << why.message();
}

TEST_F(TcpUnauthenticated, invalid_frames_after_an_accepted_hello_end_the_link_as_corrupt) {
  Unauthenticated member(*b);
  ASSERT_NO_FATAL_FAILURE(connect({&member}));
  member.send_bytes(pattern(64, test_seed()));
  ASSERT_TRUE(until([&] { return !sink_b->losses.empty(); }));
  EXPECT_EQ(sink_b->losses[0][0].code(), Code::corrupt);
  EXPECT_NE(sink_b->losses[0][0].message().find("magic"), std::string::npos) << sink_b->losses[0][0].message();
  EXPECT_EQ(b->counters().refused_frames[static_cast<size_t>(FrameFault::magic)], 1u);
  ASSERT_TRUE(until([&] { return member.closed(); }));
}

TEST_F(TcpUnauthenticated, a_beginning_at_a_position_that_cannot_be_right_ends_the_link_as_corrupt) {
  ASSERT_TRUE(b->add_peer(request(member_id, {}, false)).ok());
  Unauthenticated member(*b);
  member.send_bytes(hello_from(member_id, id_b));
  ASSERT_TRUE(until([&] { return b->state(0) == LinkState::up; }));
  member.send_struct(begin_at(1));
  ASSERT_TRUE(until([&] { return !sink_b->losses.empty(); }));
  EXPECT_EQ(sink_b->losses[0][0].code(), Code::corrupt);
  EXPECT_NE(sink_b->losses[0][0].message().find("has read 1 bytes"), std::string::npos) << sink_b->losses[0][0].message();
}

TEST_F(TcpUnauthenticated, a_link_that_ends_inside_a_frame_says_so) {
  Unauthenticated member(*b);
  ASSERT_NO_FATAL_FAILURE(connect({&member}));
  auto header = data_header(1, 1000);
  seal_frame(header);
  member.send_struct(header);
  for (int i = 0; i < 100; ++i) turn();
  EXPECT_FALSE(member.closed());
  const auto now = clock_now();
  member.disconnect();
  poll_at(now);
  EXPECT_TRUE(sink_b->losses.empty()) << "the peer might connect again";
  b->poll(now + 1 * second, *sink_b);
  ASSERT_FALSE(sink_b->losses.empty());
  EXPECT_NE(sink_b->losses[0][0].message().find("inside a frame"), std::string::npos) << sink_b->losses[0][0].message();
  EXPECT_TRUE(sink_b->frames.empty());
}

TEST_F(TcpUnauthenticated, a_stream_without_a_connection_does_not_hold_up_the_others) {
  Unauthenticated first(*b), second(*b);
  ASSERT_NO_FATAL_FAILURE(connect({&first, &second}));
  EXPECT_FALSE(first.closed());
  EXPECT_FALSE(second.closed());
  const auto now = clock_now();
  second.disconnect();
  poll_at(now);
  auto header = data_header(5, 0);
  seal_frame(header);
  first.send_struct(header);
  poll_at(now);
  EXPECT_EQ(sink_b->frames.size(), 1u);
  EXPECT_TRUE(sink_b->losses.empty());
}

TEST_F(TcpUnauthenticated, the_wait_for_a_stream_that_has_ended_is_bounded) {
  Unauthenticated first(*b), second(*b);
  ASSERT_NO_FATAL_FAILURE(connect({&first, &second}));
  EXPECT_FALSE(second.closed());
  const auto now = clock_now();
  second.disconnect();
  poll_at(now);
  EXPECT_TRUE(sink_b->losses.empty());
  EXPECT_LE(b->next_deadline(), now + 1000 * millisecond);
  b->poll(now + 1000 * millisecond, *sink_b);
  EXPECT_EQ(sink_b->losses[0].size(), 1u);
}

TEST_F(TcpUnauthenticated, a_dialler_that_starts_again_replaces_its_half_made_link) {
  ASSERT_TRUE(b->add_peer(request(member_id, {}, false)).ok());
  auto lost = std::make_unique<Unauthenticated>(*b);
  lost->send_bytes(two_streams());
  ASSERT_TRUE(until([&] {
    lost->closed();
    return lost->reply().has_value();
  }));
  lost.reset();
  Unauthenticated first(*b), second(*b);
  say_both(first, second, 2);
  EXPECT_TRUE(until([&] { return b->state(0) == LinkState::up; }));
}

}  // namespace
}  // namespace unisono::conformance
