// What a broken or hostile process can do with its own memory and with a connection. Nothing of it may do harm.
#include <gtest/gtest.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string_view>

#include "transports/shm_handshake.h"
#include "transports/shm_ring.h"
#include "transports/shm_test_support.h"

namespace unisono::shm {
namespace {

constexpr PeerIndex fake_index = 9;

// Speaks the handshake, then writes what it likes. Its victim waits for it as peer 9.
struct FakePeer {
  explicit FakePeer(TestNode& node) : victim(node) {
    hello.key = test_key();
    hello.from = fresh_id();
    hello.to = node.id;
    hello.geometry = {.regions = 4, .ring_cells = 512, .release_entries = 256, .small_slots = 64, .small_bytes = 4096,
                      .large_slots = 64, .large_bytes = 1 << 20, .piece_bytes = 128 << 10};
    hello.region = 2;
    arena = std::move(Arena::make(hello.geometry)).value();
    bell = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  }
  void expect_me(Nanos wait = 10 * second) {
    const std::string endpoint = victim.transport->endpoints()[0];
    const LinkRequest request{.peer = fake_index, .id = hello.from, .label = "the fake",
                              .endpoints = {endpoint.substr(0, endpoint.rfind('/') + 1) + "nowhere"}, .dial = false,
                              .deadline = test_now() + wait};
    ASSERT_TRUE(victim.transport->add_peer(request).ok());
  }
  std::string victims_name() const {
    const std::string endpoint = victim.transport->endpoints()[0];
    return endpoint.substr(endpoint.rfind('/') + 1);
  }
  void call() { socket = std::move(dial(victims_name()).value()); }
  void greet() {
    seal_hello(hello);
    ASSERT_TRUE(send_hello(socket.get(), hello, arena.memfd(), bell.get()).ok());
  }
  void come_up() {
    expect_me();
    call();
    greet();
    ASSERT_TRUE(run_until({&victim}, [&] { return victim.transport->state(fake_index) == LinkState::up; }));
    writer = RingWriter(arena.cells(2), 512, &head_of_victim);
    releases = ReleaseWriter(arena.releases(2), 256);
  }
  // Until the victim has answered and hung up; the reason it gave.
  Refusal refusal() {
    Arrival answer;
    answer.socket = UniqueFd(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
    Refusal malformed = Refusal::none;
    Incoming state = Incoming::waiting;
    run_until({&victim}, [&] { return (state = receive_hello(answer, malformed)) != Incoming::waiting; });
    return state == Incoming::refused ? answer.hello.refusal : Refusal::none;
  }

  TestNode& victim;
  Hello hello;
  Arena arena;
  UniqueFd bell;
  UniqueFd socket;
  std::atomic<uint32_t> head_of_victim{0};  // never full
  RingWriter writer;
  ReleaseWriter releases;
};

struct Attack {
  Attack() {
    connect(victim, 0, friend_node, 1);
    fake.come_up();
  }
  // The link to the fake ends as corrupt, and the other link works.
  void expect_corrupt(FrameFault counted = FrameFault::none) {
    ASSERT_TRUE(run_until({&victim}, [&] { return victim.losses.count(fake_index) == 1; }));
    EXPECT_EQ(victim.losses[fake_index].code(), Code::corrupt) << victim.losses[fake_index].to_string();
    EXPECT_NE(victim.losses[fake_index].message().find("the fake"), std::string::npos);
    EXPECT_EQ(victim.transport->counters().refused_frames[static_cast<int>(counted)], counted == FrameFault::none ? 0u : 1u);
    expect_friend_works();
  }
  void expect_friend_works() {
    const Bytes payload = pattern(300'000, 1);
    const size_t before = friend_node.arrived.size();
    victim.transport->send(1, data_header(1), payload, 1);
    EXPECT_TRUE(run_until({&victim, &friend_node}, [&] { return friend_node.arrived.size() == before + 1; }));
    EXPECT_EQ(victim.losses.count(1), 0u);
  }
  void push(const FrameHeader& header, CellType type, uint32_t ref) { fake.writer.push(header, type, ref); }

  TestNode victim;
  TestNode friend_node;
  FakePeer fake{victim};
};

FrameHeader with_payload(uint32_t bytes) { return data_header(1, bytes); }

TEST(ShmHostile, an_honest_fake_is_believed) {
  Attack attack;
  attack.push(with_payload(100), CellType::whole, make_ref(Place::small, 63));
  attack.push(with_payload(1 << 20), CellType::whole, make_ref(Place::large, 63));
  EXPECT_TRUE(run_until({&attack.victim}, [&] { return attack.victim.arrived.size() == 2; }));
  EXPECT_TRUE(attack.victim.losses.empty());
}
TEST(ShmHostile, a_small_slot_that_does_not_exist) {
  Attack attack;
  attack.push(with_payload(10), CellType::whole, make_ref(Place::small, 64));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_large_slot_that_does_not_exist) {
  Attack attack;
  attack.push(with_payload(10), CellType::whole, make_ref(Place::large, (1 << ref_index_bits) - 1));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_place_that_does_not_exist) {
  Attack attack;
  attack.push(with_payload(10), CellType::whole, 15u << ref_index_bits);
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_payload_larger_than_its_slot) {
  Attack attack;
  attack.push(with_payload(4097), CellType::whole, make_ref(Place::small, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_payload_beyond_the_bound) {
  Attack attack;
  attack.push(with_payload(payload_bytes_max + 1), CellType::first, make_ref(Place::large, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_payload_without_a_place) {
  Attack attack;
  attack.push(with_payload(10), CellType::whole, 0);
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_slot_without_payload) {
  Attack attack;
  attack.push(with_payload(0), CellType::whole, make_ref(Place::small, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, another_frame_version) {
  Attack attack;
  FrameHeader header;
  header.version = 99;
  attack.push(header, CellType::whole, 0);
  attack.expect_corrupt(FrameFault::version);
}
TEST(ShmHostile, a_kind_that_does_not_exist) {
  Attack attack;
  FrameHeader header;
  header.kind = static_cast<FrameKind>(77);
  attack.push(header, CellType::whole, 0);
  attack.expect_corrupt(FrameFault::kind);
}
TEST(ShmHostile, a_cell_type_that_does_not_exist) {
  Attack attack;
  attack.push({}, static_cast<CellType>(200), 0);
  attack.expect_corrupt(FrameFault::kind);
}
TEST(ShmHostile, a_next_piece_of_nothing) {
  Attack attack;
  attack.push(with_payload(1 << 20), CellType::next, make_ref(Place::large, 0));
  attack.expect_corrupt(FrameFault::kind);
}
TEST(ShmHostile, a_first_piece_inside_a_frame) {
  Attack attack;
  attack.push(with_payload(1 << 20), CellType::first, make_ref(Place::large, 0));
  attack.push(with_payload(1 << 20), CellType::first, make_ref(Place::large, 1));
  attack.expect_corrupt(FrameFault::kind);
}
TEST(ShmHostile, the_end_of_a_frame_that_had_not_begun) {
  Attack attack;
  attack.push(with_payload(1 << 20), CellType::abort, 0);
  attack.expect_corrupt(FrameFault::kind);
}
TEST(ShmHostile, a_piece_in_a_small_slot) {
  Attack attack;
  attack.push(with_payload(1 << 20), CellType::first, make_ref(Place::small, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, pieces_of_nothing) {
  Attack attack;
  attack.push(with_payload(0), CellType::first, make_ref(Place::large, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, one_slot_lent_without_end) {
  Attack attack;
  attack.victim.keep_views = true;
  for (int i = 0; i < 400; ++i) attack.push(with_payload(10), CellType::whole, make_ref(Place::small, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
  for (const View& view : attack.victim.views) attack.victim.transport->release(view);
}
TEST(ShmHostile, frames_put_together_are_held_within_a_bound) {
  Attack attack;
  attack.victim.keep_views = true;
  attack.victim.keep_payloads = false;
  for (int frame = 0; frame < 6; ++frame) {
    for (int piece = 0; piece < 128; ++piece) {
      attack.push(with_payload(16 << 20), piece == 0 ? CellType::first : CellType::next, make_ref(Place::large, 0));
      attack.victim.poll();
    }
  }
  for (int i = 0; i < 100; ++i) attack.victim.poll();
  EXPECT_EQ(attack.victim.views.size(), 4u);
  attack.expect_friend_works();
  for (const View& view : attack.victim.views) attack.victim.transport->release(view);
  attack.victim.keep_views = false;
  EXPECT_TRUE(run_until({&attack.victim}, [&] { return attack.victim.received_count >= 5; }));
}
TEST(ShmHostile, a_release_of_a_slot_that_was_never_sent) {
  Attack attack;
  attack.fake.releases.push(make_ref(Place::large, 0));
  (void)attack.victim.transport->room(fake_index);
  const PeerIndex to[] = {fake_index};
  (void)attack.victim.transport->acquire(to, 100'000, false);
  attack.expect_corrupt();
}
TEST(ShmHostile, a_release_of_a_slot_that_another_peer_holds) {
  Attack attack;
  attack.friend_node.keep_views = true;
  const PeerIndex to[] = {1};
  const Slot slot = attack.victim.transport->acquire(to, 100'000, false);
  attack.victim.transport->commit(slot, with_payload(100'000));
  ASSERT_TRUE(run_until({&attack.friend_node}, [&] { return attack.friend_node.views.size() == 1; }));
  attack.fake.releases.push(static_cast<uint32_t>(slot.handle));
  const PeerIndex fake[] = {fake_index};
  (void)attack.victim.transport->acquire(fake, 100'000, false);
  attack.expect_corrupt();
}
TEST(ShmHostile, a_release_of_a_slot_that_does_not_exist) {
  Attack attack;
  attack.fake.releases.push(ref_mask);
  const PeerIndex to[] = {fake_index};
  (void)attack.victim.transport->acquire(to, 100'000, false);
  attack.expect_corrupt();
}
TEST(ShmHostile, a_ring_index_out_of_range) {
  Attack attack;
  attack.fake.arena.region(2).head.store(12345);
  for (int i = 0; i < 2000; ++i) attack.victim.transport->send(fake_index, {}, {}, 0);
  attack.expect_corrupt();
}
TEST(ShmHostile, a_peer_that_never_reads_is_given_up) {
  Attack attack;
  for (size_t i = 0; i < 70'000; ++i) attack.victim.transport->send(fake_index, {}, {}, 0);
  attack.expect_corrupt();
}
TEST(ShmHostile, random_bytes_all_over_its_memory) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Attack attack;
    attack.victim.keep_payloads = false;
    Random random(seed);
    const Geometry& geometry = attack.fake.hello.geometry;
    std::byte* region = reinterpret_cast<std::byte*>(&attack.fake.arena.region(2));
    const PeerIndex to[] = {fake_index};
    for (int round = 0; round < 30; ++round) {
      for (int i = 0; i < 200; ++i) region[random.below(geometry.region_bytes())] = static_cast<std::byte>(random.below(4));
      // Some of it with a right sequence number, so that it is looked at.
      FrameHeader header;
      for (size_t i = 5; i < 60; ++i) {
        if (random.chance(0.1)) reinterpret_cast<std::byte*>(&header)[i] = static_cast<std::byte>(random.next());
      }
      header.payload_bytes = static_cast<uint32_t>(random.below(2 << 20));
      if (random.chance(0.8)) header.kind = FrameKind::data;
      attack.push(header, static_cast<CellType>(random.below(4)), make_ref(static_cast<Place>(random.below(4)), static_cast<uint32_t>(random.below(70))));
      attack.fake.releases.push(static_cast<uint32_t>(random.below(1 << 22)));
      for (int i = 0; i < 10; ++i) attack.victim.transport->send(fake_index, {}, {}, 0);
      const Slot slot = attack.victim.transport->acquire(to, 5000, true);
      if (slot) attack.victim.transport->commit(slot, with_payload(5000));
      attack.victim.poll();
    }
    attack.expect_friend_works();
  }
}

// The connection.

TEST(ShmHandshake, strangers_are_refused_and_counted) {
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

TEST(ShmHandshake, silent_strangers_are_sent_away_and_their_number_is_bounded) {
  TestNode victim;
  TestNode friend_node;
  connect(victim, 0, friend_node, 1);
  FakePeer fake(victim);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 300; ++i) {
    auto one = dial(fake.victims_name());
    if (one && *one) strangers.push_back(std::move(*one));
    (void)victim.transport->poll(test_now() + i * millisecond, victim);
  }
  for (int i = 0; i < 40; ++i) (void)victim.transport->poll(test_now() + second + i * millisecond, victim);
  EXPECT_EQ(victim.transport->counters().refused_connections, strangers.size() - strangers_max);
  EXPECT_LT(victim.transport->next_deadline(), test_now() + 6 * second);
  (void)victim.transport->poll(test_now() + 8 * second, victim);
  EXPECT_EQ(victim.transport->counters().refused_connections, strangers.size());
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
  LinkRequest to_waiter{.peer = 1, .id = options.self, .label = "waiter", .endpoints = waiter->endpoints(), .dial = true, .deadline = test_now() + 10 * second};
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

TEST(ShmHandshake, another_jobs_process_is_told_so) {
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
  ASSERT_TRUE(run_until({&a}, [&] { return a.losses.count(1) == 1; }, second));
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
