// Which connections are accepted, which are refused, and what both sides learn.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string_view>
#include <vector>

#include "transports/shm/shm_fake_peer.h"

namespace unisono::shm {
namespace {

TEST(ShmHandshake, unauthenticated_are_refused_and_counted) {
  struct Case {
    const char* what;
    std::function<void(FakePeer&)> change;
    Refusal answer;
  };
  const Case cases[] = {
      {"another job", [](FakePeer& fake) { fake.hello.key = test_key(8); }, Refusal::other_job},
      {"another version", [](FakePeer& fake) { fake.hello.version = 2; }, Refusal::version},
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

TEST(ShmHandshake, a_flipped_bit_in_the_hello_is_found) {
  TestNode victim;
  FakePeer fake(victim);
  fake.call();
  seal_hello(fake.hello);
  fake.hello.geometry.large_slots ^= 1;
  ASSERT_TRUE(send_hello(fake.socket.get(), fake.hello, fake.arena.memfd(), fake.bell.get()).ok());
  EXPECT_EQ(fake.refusal(), Refusal::malformed);
}

TEST(ShmHandshake, a_hello_without_descriptors_is_refused) {
  TestNode victim;
  FakePeer fake(victim);
  fake.call();
  seal_hello(fake.hello);
  ASSERT_EQ(::send(fake.socket.get(), &fake.hello, sizeof(fake.hello), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(fake.hello)));
  EXPECT_EQ(fake.refusal(), Refusal::malformed);
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
    ASSERT_TRUE(send_hello(fake.socket.get(), fake.hello, memory.get(), fake.bell.get()).ok());
    EXPECT_EQ(fake.refusal(), Refusal::memory);
    EXPECT_EQ(victim.losses[fake_index].code(), Code::corrupt) << victim.losses[fake_index].to_string();
  }
}

TEST(ShmHandshake, a_bell_that_could_block_is_refused) {
  TestNode victim;
  FakePeer fake(victim);
  fake.expect_me();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  fake.bell = UniqueFd(ends[1]);
  const UniqueFd other(ends[0]);
  fake.call();
  fake.greet();
  EXPECT_EQ(fake.refusal(), Refusal::memory);
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

TEST(ShmHandshake, a_process_of_another_job_learns_that) {
  TestNode a;
  TestNode b;
  b.transport->set_job(test_key(99));
  ASSERT_TRUE(a.transport->add_peer(request_for(1, b, true)).ok());
  ASSERT_TRUE(run_until({&a, &b}, [&] { return a.losses.count(1) == 1; }));
  EXPECT_EQ(a.losses[1].code(), Code::unavailable);
  EXPECT_NE(a.losses[1].message().find("another job"), std::string::npos) << a.losses[1].message();
  EXPECT_EQ(b.transport->counters().refused_connections, 1u);
}

TEST(ShmHandshake, dialling_nobody_fails_at_once_and_says_where) {
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

TEST(ShmHandshake, a_process_elsewhere_is_refused_at_once) {
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
