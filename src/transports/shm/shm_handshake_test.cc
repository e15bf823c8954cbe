// Tests which connections are accepted, which are refused, and what both processes learn about a refusal.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string_view>
#include <vector>

#include "testing/descriptor_limit.h"
#include "transports/shm/shm_fake_peer.h"

namespace unisono::shm {
namespace {

TEST(ShmHandshake, unauthenticated_peers_are_refused_and_counted) {
  struct Case {
    const char* what;
    std::function<void(FakePeer&)> change;
    Refusal answer;
  };
  const Case cases[] = {
      {"another job", [](FakePeer& fake) { fake.hello.key = test_key(8); }, Refusal::other_job},
      {"another version", [](FakePeer& fake) { fake.hello.version = hello_version + 1; }, Refusal::version},
      {"another process", [](FakePeer& fake) { fake.hello.to = fresh_id(); }, Refusal::other_process},
      {"magic", [](FakePeer& fake) { fake.hello.magic = 1; }, Refusal::malformed},
      {"geometry", [](FakePeer& fake) { fake.hello.geometry.large_slots = UINT32_MAX; }, Refusal::malformed},
      {"region", [](FakePeer& fake) { fake.hello.region = 4; }, Refusal::malformed},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    TestNode victim;
    FakePeer fake(victim);
    fake.expect_me();
    one.change(fake);
    fake.call();
    fake.greet();
    EXPECT_EQ(fake.refusal(), one.answer);
    EXPECT_EQ(victim.transport->counters().refused_connections, 1u);
    EXPECT_EQ(victim.transport->state(fake_index), LinkState::connecting) << "the right one may still come";
  }
}

TEST(ShmHandshake, bytes_of_other_protocols_are_refused) {
  for (const std::string_view text : {std::string_view("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string_view("\0", 1)}) {
    TestNode victim;
    FakePeer fake(victim);
    fake.call();
    ASSERT_EQ(::send(fake.socket.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(fake.refusal(), Refusal::malformed);
    EXPECT_EQ(victim.transport->counters().refused_connections, 1u);
  }
}

TEST(ShmHandshake, a_hello_with_a_flipped_bit_is_refused) {
  TestNode victim;
  FakePeer fake(victim);
  fake.call();
  seal_hello(fake.hello);
  fake.hello.geometry.large_slots ^= 1;
  ASSERT_TRUE(send_hello(fake.socket.get(), fake.hello, fake.arena.memfd()).ok());
  EXPECT_EQ(fake.refusal(), Refusal::malformed);
}

TEST(ShmHandshake, a_hello_without_a_descriptor_is_refused) {
  TestNode victim;
  FakePeer fake(victim);
  fake.call();
  seal_hello(fake.hello);
  ASSERT_EQ(::send(fake.socket.get(), &fake.hello, sizeof(fake.hello), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(fake.hello)));
  EXPECT_EQ(fake.refusal(), Refusal::malformed);
}

// With no number free, the connection is not accepted. With one, the kernel cuts the descriptor of the memory off.
TEST(ShmHandshake, a_process_without_free_descriptors_says_so_at_once_and_names_the_limit) {
  // Reason: without a free descriptor the sanitizer takes every object for a damaged one (testing/descriptor_limit.h).
  if (test::sanitizer_needs_descriptors) GTEST_SKIP() << test::sanitizer_needs_descriptors_text;
  for (const int free_count : {0, 1}) {
    SCOPED_TRACE(free_count);
    TestNode victim;
    FakePeer fake(victim);
    fake.expect_me(3600 * second);
    fake.call();
    fake.greet();
    {
      const test::DescriptorLimit limit(free_count);
      ASSERT_TRUE(run_until({&victim}, [&] { return victim.losses.contains(fake_index); }));
      const auto& why = victim.losses[fake_index];
      EXPECT_EQ(why.code(), Code::unavailable);
      EXPECT_NE(why.message().find("the fake: "), std::string::npos) << why.message();
      EXPECT_NE(why.message().find(limit.text()), std::string::npos) << why.message();
    }
    if (free_count > 0) {
      EXPECT_EQ(fake.refusal(), Refusal::descriptors);
    }
  }
}

TEST(ShmHandshake, a_connection_that_could_not_be_accepted_is_accepted_later_and_does_not_keep_the_process_awake) {
  // Reason: without a free descriptor the sanitizer takes every object for a damaged one (testing/descriptor_limit.h).
  if (test::sanitizer_needs_descriptors) GTEST_SKIP() << test::sanitizer_needs_descriptors_text;
  TestNode a, b;
  ASSERT_TRUE(a.transport->add_peer(request_for(1, b, true)).ok());
  for (int i = 0; i < 100; ++i) a.poll();  // its hello waits at b, which does not know it yet
  const auto now = test_now();
  {
    const test::DescriptorLimit limit(0);
    b.transport->poll(now, b);
    b.transport->poll(now + millisecond, b);
    pollfd ready{b.transport->wait_handle(), POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, 0), 0);
    EXPECT_LE(b.transport->next_deadline(), now + 100 * millisecond);
  }
  ASSERT_TRUE(b.transport->add_peer(request_for(0, a, false)).ok());
  for (Nanos later = now + 200 * millisecond; later < now + second && b.transport->state(0) != LinkState::up;
       later += millisecond)
    b.transport->poll(later, b);
  EXPECT_EQ(b.transport->state(0), LinkState::up);
}

TEST(ShmHandshake, a_dialling_process_without_free_descriptors_says_so_at_once_and_names_the_limit) {
  // Reason: without a free descriptor the sanitizer takes every object for a damaged one (testing/descriptor_limit.h).
  if (test::sanitizer_needs_descriptors) GTEST_SKIP() << test::sanitizer_needs_descriptors_text;
  TestNode a, b;
  ASSERT_TRUE(a.transport->add_peer(request_for(1, b, true)).ok());
  const test::DescriptorLimit limit(0);
  ASSERT_TRUE(run_until({&a}, [&] { return a.losses.contains(1); }));
  EXPECT_EQ(a.losses[1].code(), Code::unavailable);
  EXPECT_EQ(a.losses[1].message(), "peer 1: shm: unix socket: " + limit.text() + " (shm)");
}

TEST(ShmHandshake, a_peer_without_free_descriptors_is_named_with_its_reason) {
  // Reason: without a free descriptor the sanitizer takes every object for a damaged one (testing/descriptor_limit.h).
  if (test::sanitizer_needs_descriptors) GTEST_SKIP() << test::sanitizer_needs_descriptors_text;
  TestNode a, b;
  ASSERT_TRUE(b.transport->add_peer(request_for(0, a, false)).ok());
  ASSERT_TRUE(a.transport->add_peer(request_for(1, b, true)).ok());
  for (int i = 0; i < 100; ++i) a.poll();
  {
    const test::DescriptorLimit limit(1);
    ASSERT_TRUE(run_until({&b}, [&] { return b.losses.contains(0); }));
  }
  ASSERT_TRUE(run_until({&a}, [&] { return a.losses.contains(1); }));
  EXPECT_NE(a.losses[1].message().find(
                "the peer refused the link: too many open files in its process; raise its limit with ulimit -n"),
            std::string::npos)
      << a.losses[1].message();
}

TEST(ShmHandshake, memory_that_could_shrink_or_is_too_small_is_refused) {
  for (const bool sealed : {false, true}) {
    TestNode victim;
    FakePeer fake(victim);
    fake.expect_me();
    UniqueFd memory(::memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(memory.get(), sealed ? 4096 : static_cast<off_t>(fake.hello.geometry.total_bytes())), 0);
    ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, sealed ? F_SEAL_SHRINK | F_SEAL_GROW : 0), 0);
    fake.call();
    seal_hello(fake.hello);
    ASSERT_TRUE(send_hello(fake.socket.get(), fake.hello, memory.get()).ok());
    EXPECT_EQ(fake.refusal(), Refusal::memory);
    EXPECT_EQ(victim.losses[fake_index].code(), Code::corrupt) << victim.losses[fake_index].to_string();
  }
}

TEST(ShmHandshake, silent_unauthenticated_peers_are_refused_and_their_number_is_bounded) {
  TestNode victim;
  TestNode friend_node;
  connect(victim, 0, friend_node, 1);
  FakePeer fake(victim);
  std::vector<UniqueFd> unauthenticated;
  for (int i = 0; i < 300; ++i) {
    auto one = dial(fake.victims_name());
    if (one && *one) unauthenticated.push_back(std::move(*one));
    (void)victim.transport->poll(test_now() + i * millisecond, victim);
  }
  for (int i = 0; i < 40; ++i) (void)victim.transport->poll(test_now() + second + i * millisecond, victim);
  EXPECT_EQ(victim.transport->counters().refused_connections, unauthenticated.size() - unauthenticated_max);
  EXPECT_LT(victim.transport->next_deadline(), test_now() + 6 * second);
  (void)victim.transport->poll(test_now() + 8 * second, victim);
  EXPECT_EQ(victim.transport->counters().refused_connections, unauthenticated.size());
  EXPECT_EQ(victim.transport->next_deadline(), never);
  victim.transport->send(1, data_header(1), {}, 1);
  EXPECT_TRUE(run_until({&friend_node}, [&] { return friend_node.arrived.size() == 1; }));
}

TEST(ShmHandshake, a_second_hello_of_a_linked_process_is_refused) {
  Attack attack;
  FakePeer again(attack.victim);
  again.hello.from = attack.fake.hello.from;
  again.call();
  again.greet();
  EXPECT_EQ(again.refusal(), Refusal::duplicate);
  attack.expect_friend_works();
  EXPECT_EQ(attack.victim.transport->state(fake_index), LinkState::up);
}

TEST(ShmHandshake, a_hello_waits_for_add_peer_but_not_for_ever) {
  TestNode victim;
  FakePeer fake(victim);
  fake.call();
  fake.greet();
  (void)victim.transport->poll(test_now() + second, victim);
  (void)victim.transport->poll(test_now() + 9 * second, victim);
  EXPECT_EQ(victim.transport->counters().refused_connections, 0u);
  FakePeer late(victim);
  late.call();
  late.greet();
  (void)victim.transport->poll(test_now() + 9 * second, victim);
  fake.expect_me();
  (void)victim.transport->poll(test_now() + 9 * second, victim);
  EXPECT_EQ(victim.transport->state(fake_index), LinkState::up);
  (void)victim.transport->poll(test_now() + 20 * second, victim);
  EXPECT_EQ(late.refusal(), Refusal::unknown_peer);
}

TEST(ShmHandshake, a_hello_waits_for_the_jobs_key) {
  ShmOptions options;
  options.self = fresh_id();
  TestNode dialler;
  auto waiter = std::move(ShmTransport::make(options)).value();
  TestNode sink;
  LinkRequest to_waiter{.peer = 1,
                        .id = options.self,
                        .label = "waiter",
                        .endpoints = waiter->endpoints(),
                        .dial = true,
                        .deadline = test_now() + 10 * second};
  ASSERT_TRUE(dialler.transport->add_peer(to_waiter).ok());
  ASSERT_TRUE(waiter->add_peer(request_for(0, dialler, false)).ok());
  for (int i = 0; i < 10'000; ++i) {
    dialler.poll();
    (void)waiter->poll(test_now(), sink);
  }
  EXPECT_EQ(waiter->state(0), LinkState::connecting);
  waiter->set_job(test_key());
  EXPECT_TRUE(run_until({&dialler}, [&] {
    (void)waiter->poll(test_now(), sink);
    return waiter->state(0) == LinkState::up && dialler.transport->state(1) == LinkState::up;
  }));
}

TEST(ShmHandshake, no_memory_goes_to_a_listener_of_another_user) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to listen as another user";
  for (const bool other_user : {true, false}) {
    TestNode dialler(ShmOptions{.same_user = true});
    TestNode waiter;
    const auto id = fresh_id();
    // The user that counts is the one who calls listen().
    if (other_user) ASSERT_EQ(::seteuid(65534), 0);
    const auto listener = listen_at(socket_name(id, 0));
    ASSERT_EQ(::seteuid(0), 0);
    ASSERT_TRUE(listener.ok());
    auto request = request_for(1, waiter, true);
    request.id = id;
    request.endpoints = {"shm://" + *host_id() + "/" + socket_name(id, 0)};
    ASSERT_TRUE(dialler.transport->add_peer(request).ok());
    for (int i = 0; i < 1000; ++i) dialler.poll();
    EXPECT_EQ(dialler.losses.count(1), other_user ? 1u : 0u);
    if (other_user) {
      EXPECT_NE(dialler.losses[1].message().find("a process of another user listens there"), std::string::npos)
          << dialler.losses[1].message();
    }
    Arrival arrival;
    arrival.socket = UniqueFd(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    ASSERT_TRUE(arrival.socket);
    Refusal refusal = Refusal::none;
    const auto state = receive_hello(arrival, refusal);
    EXPECT_EQ(state, other_user ? HelloState::ended : HelloState::complete);
    EXPECT_EQ(static_cast<bool>(arrival.memory), !other_user);
  }
}

TEST(ShmHandshake, a_process_of_another_job_learns_the_reason) {
  TestNode a;
  TestNode b;
  b.transport->set_job(test_key(99));
  ASSERT_TRUE(a.transport->add_peer(request_for(1, b, true)).ok());
  ASSERT_TRUE(run_until({&a, &b}, [&] { return a.losses.count(1) == 1; }));
  EXPECT_EQ(a.losses[1].code(), Code::unavailable);
  EXPECT_NE(a.losses[1].message().find("another job"), std::string::npos) << a.losses[1].message();
  EXPECT_EQ(b.transport->counters().refused_connections, 1u);
}

TEST(ShmHandshake, a_dial_without_a_listener_fails_at_once_and_names_the_socket) {
  TestNode a;
  auto b = std::make_unique<TestNode>();
  const LinkRequest request = request_for(1, *b, true);
  b.reset();
  ASSERT_TRUE(a.transport->add_peer(request).ok());
  ASSERT_TRUE(run_until(
      {&a}, [&] { return a.losses.count(1) == 1; }, second));
  EXPECT_EQ(a.losses[1].code(), Code::unavailable);
  EXPECT_NE(a.losses[1].message().find("@unisono-"), std::string::npos) << a.losses[1].message();
  EXPECT_NE(a.losses[1].message().find("peer 1"), std::string::npos);
}

TEST(ShmHandshake, a_link_that_does_not_come_up_is_lost_at_its_deadline) {
  TestNode a;
  TestNode b;
  for (const bool dial : {false, true}) {
    a.losses.clear();
    ASSERT_TRUE(a.transport->add_peer(request_for(1, b, dial)).ok());
    a.poll();
    EXPECT_EQ(a.transport->state(1), LinkState::connecting);
    EXPECT_LE(a.transport->next_deadline(), test_now() + 10 * second);
    (void)a.transport->poll(test_now() + 11 * second, a);
    EXPECT_EQ(a.losses[1].code(), Code::unavailable) << a.losses[1].to_string();
    EXPECT_EQ(a.transport->state(1), LinkState::lost);
  }
}

TEST(ShmHandshake, an_endpoint_of_another_host_is_refused_at_once) {
  TestNode a;
  TestNode b;
  LinkRequest request = request_for(1, b, true);
  for (const char* endpoint : {"tcp://127.0.0.1:1", "shm://another-host-1/unisono-1", "shm://", ""}) {
    request.endpoints = {endpoint};
    EXPECT_EQ(a.transport->add_peer(request).code(), Code::unavailable) << endpoint;
  }
  request.endpoints = {};
  EXPECT_EQ(a.transport->add_peer(request).code(), Code::unavailable);
  EXPECT_EQ(a.transport->state(1), LinkState::unknown);
}

TEST(ShmHandshake, quotas_that_differ_are_refused) {
  ShmOptions options;
  options.slots_per_peer = 2;
  TestNode a(options);
  TestNode b;
  ASSERT_TRUE(a.transport->add_peer(request_for(1, b, true)).ok());
  ASSERT_TRUE(b.transport->add_peer(request_for(0, a, false)).ok());
  ASSERT_TRUE(run_until({&a, &b}, [&] { return a.losses.count(1) == 1 && b.losses.count(0) == 1; }));
  EXPECT_EQ(b.losses[0].code(), Code::invalid);
  EXPECT_NE(b.losses[0].message().find("slots_per_peer"), std::string::npos);
}

}  // namespace
}  // namespace unisono::shm
