// A broken or hostile process writes arbitrary bytes into its arena. The bytes must not harm the transport that reads them.
#include <gtest/gtest.h>

#include <sys/socket.h>

#include "base/concat.h"
#include "transports/shm/shm_fake_peer.h"

namespace unisono::shm {
namespace {

FrameHeader with_payload(uint32_t bytes) { return data_header(1, bytes); }

TEST(ShmHostile, a_valid_frame_of_the_fake_peer_is_accepted) {
  Attack attack;
  attack.push(with_payload(100), CellType::whole, make_ref(SlotKind::small, 63));
  attack.push(with_payload(1 << 20), CellType::whole, make_ref(SlotKind::large, 63));
  EXPECT_TRUE(run_until({&attack.victim}, [&] { return attack.victim.arrived.size() == 2; }));
  EXPECT_TRUE(attack.victim.losses.empty());
}
TEST(ShmHostile, a_peer_that_gives_up_the_link_lives) {
  Attack attack;
  ASSERT_EQ(::send(attack.fake.socket.get(), &given_up_byte, 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(run_until({&attack.victim}, [&] { return !attack.victim.losses.empty(); }));
  EXPECT_EQ(attack.victim.fates[fake_index], PeerFate::unknown);
  EXPECT_EQ(attack.victim.losses[fake_index].code(), Code::peer_lost);
}
TEST(ShmHostile, a_peer_is_told_that_its_link_is_given_up_because_of_invalid_data) {
  Attack attack;
  attack.push({}, static_cast<CellType>(200), 0);
  attack.expect_corrupt(FrameFault::kind);
  char byte = 0;  // the last message; the first is the victim's hello
  while (::recv(attack.fake.socket.get(), &byte, 1, MSG_DONTWAIT) == 1) {}
  EXPECT_EQ(byte, given_up_byte);
}
TEST(ShmHostile, a_missing_small_slot_ends_the_link) {
  Attack attack;
  attack.push(with_payload(10), CellType::whole, make_ref(SlotKind::small, 64));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_missing_large_slot_ends_the_link) {
  Attack attack;
  attack.push(with_payload(10), CellType::whole, make_ref(SlotKind::large, (1 << ref_index_bits) - 1));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, an_unknown_slot_kind_ends_the_link) {
  Attack attack;
  attack.push(with_payload(10), CellType::whole, 15u << ref_index_bits);
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_payload_larger_than_its_slot_ends_the_link) {
  Attack attack;
  attack.push(with_payload(4097), CellType::whole, make_ref(SlotKind::small, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_payload_beyond_the_limit_ends_the_link) {
  Attack attack;
  attack.push(with_payload(payload_bytes_max + 1), CellType::first, make_ref(SlotKind::large, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_payload_without_a_slot_ends_the_link) {
  Attack attack;
  attack.push(with_payload(10), CellType::whole, 0);
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, a_slot_without_payload_ends_the_link) {
  Attack attack;
  attack.push(with_payload(0), CellType::whole, make_ref(SlotKind::small, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, another_frame_version_ends_the_link) {
  Attack attack;
  FrameHeader header;
  header.version = 99;
  attack.push(header, CellType::whole, 0);
  attack.expect_corrupt(FrameFault::version);
}
// Each cell below has the expected header, but its payload cannot be read. next() must return `other`, so that poll() handles
// the cell and ends the link.
TEST(ShmHostile, next_refuses_an_expected_frame_with_an_impossible_payload) {
  const struct {
    uint32_t bytes;
    CellType type;
    uint32_t ref;
  } cells[] = {{10, CellType::whole, make_ref(SlotKind::small, 64)},
               {10, CellType::whole, make_ref(SlotKind::large, (1 << ref_index_bits) - 1)},
               {10, CellType::whole, 15u << ref_index_bits},
               {4097, CellType::whole, make_ref(SlotKind::small, 0)},
               {10, CellType::whole, 0},
               {0, CellType::whole, make_ref(SlotKind::small, 0)},
               {10, CellType::next, make_ref(SlotKind::large, 0)},
               {10, static_cast<CellType>(9), make_ref(SlotKind::small, 0)}};
  for (const auto& cell : cells) {
    SCOPED_TRACE(concat(cell.bytes, " bytes at ", cell.ref));
    Attack attack;
    attack.push(with_payload(cell.bytes), cell.type, cell.ref);
    const std::byte* payload = nullptr;
    EXPECT_EQ(attack.victim.transport->next(fake_index, with_payload(cell.bytes), payload), Next::other);
    EXPECT_TRUE(run_until({&attack.victim}, [&] { return !attack.victim.losses.empty(); }));
    EXPECT_TRUE(attack.victim.arrived.empty());
  }
}
TEST(ShmHostile, an_unknown_frame_kind_ends_the_link) {
  Attack attack;
  FrameHeader header;
  header.kind = static_cast<FrameKind>(77);
  attack.push(header, CellType::whole, 0);
  attack.expect_corrupt(FrameFault::kind);
}
TEST(ShmHostile, an_unknown_cell_type_ends_the_link) {
  Attack attack;
  attack.push({}, static_cast<CellType>(200), 0);
  attack.expect_corrupt(FrameFault::kind);
}
TEST(ShmHostile, a_next_piece_without_a_first_ends_the_link) {
  Attack attack;
  attack.push(with_payload(1 << 20), CellType::next, make_ref(SlotKind::large, 0));
  attack.expect_corrupt(FrameFault::kind);
}
TEST(ShmHostile, a_first_piece_inside_a_frame_ends_the_link) {
  Attack attack;
  attack.push(with_payload(1 << 20), CellType::first, make_ref(SlotKind::large, 0));
  attack.push(with_payload(1 << 20), CellType::first, make_ref(SlotKind::large, 1));
  attack.expect_corrupt(FrameFault::kind);
}
TEST(ShmHostile, an_abort_without_a_frame_ends_the_link) {
  Attack attack;
  attack.push(with_payload(1 << 20), CellType::abort, 0);
  attack.expect_corrupt(FrameFault::kind);
}
TEST(ShmHostile, a_piece_in_a_small_slot_ends_the_link) {
  Attack attack;
  attack.push(with_payload(1 << 20), CellType::first, make_ref(SlotKind::small, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, pieces_of_an_empty_payload_end_the_link) {
  Attack attack;
  attack.push(with_payload(0), CellType::first, make_ref(SlotKind::large, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
}
TEST(ShmHostile, one_slot_sent_again_and_again_ends_the_link) {
  Attack attack;
  attack.victim.keep_views = true;
  for (int i = 0; i < 400; ++i) attack.push(with_payload(10), CellType::whole, make_ref(SlotKind::small, 0));
  attack.expect_corrupt(FrameFault::payload_bytes);
  for (const View& view : attack.victim.views) attack.victim.transport->release(view);
}
TEST(ShmHostile, memory_of_frames_in_pieces_is_bounded) {
  Attack attack;
  attack.victim.keep_views = true;
  attack.victim.keep_payloads = false;
  for (int frame = 0; frame < 6; ++frame) {
    for (int piece = 0; piece < 128; ++piece) {
      attack.push(with_payload(16 << 20), piece == 0 ? CellType::first : CellType::next, make_ref(SlotKind::large, 0));
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
TEST(ShmHostile, the_release_of_an_unsent_slot_ends_the_link) {
  Attack attack;
  attack.fake.releases.push(make_ref(SlotKind::large, 0));
  (void)attack.victim.transport->credit(fake_index);
  const PeerIndex to[] = {fake_index};
  (void)attack.victim.transport->acquire(to, 100'000, false);
  attack.expect_corrupt();
}
TEST(ShmHostile, the_release_of_another_peers_slot_ends_the_link) {
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
TEST(ShmHostile, the_release_of_a_missing_slot_ends_the_link) {
  Attack attack;
  attack.fake.releases.push(ref_mask);
  const PeerIndex to[] = {fake_index};
  (void)attack.victim.transport->acquire(to, 100'000, false);
  attack.expect_corrupt();
}
TEST(ShmHostile, a_ring_index_out_of_range_ends_the_link) {
  Attack attack;
  attack.fake.arena.region(2).head.store(12345);
  for (int i = 0; i < 2000; ++i) attack.victim.transport->send(fake_index, {}, {}, 0);
  attack.expect_corrupt();
}
TEST(ShmHostile, a_peer_that_never_reads_is_lost) {
  Attack attack;
  for (size_t i = 0; i < 70'000; ++i) attack.victim.transport->send(fake_index, {}, {}, 0);
  attack.expect_corrupt();
}
TEST(ShmHostile, random_bytes_in_the_peers_memory_do_no_harm) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Attack attack;
    attack.victim.keep_payloads = false;
    Random random(seed);
    const Geometry& geometry = attack.fake.hello.geometry;
    std::byte* region = reinterpret_cast<std::byte*>(&attack.fake.arena.region(2));
    const PeerIndex to[] = {fake_index};
    for (int round = 0; round < 30; ++round) {
      for (int i = 0; i < 200; ++i) region[random.below(geometry.region_bytes())] = static_cast<std::byte>(random.below(4));
      // push() below writes the right sequence number, so that the victim examines the random cell.
      FrameHeader header;
      for (size_t i = 5; i < 60; ++i) {
        if (random.chance(0.1)) reinterpret_cast<std::byte*>(&header)[i] = static_cast<std::byte>(random.next());
      }
      header.payload_bytes = static_cast<uint32_t>(random.below(2 << 20));
      if (random.chance(0.8)) header.kind = FrameKind::data;
      attack.push(header, static_cast<CellType>(random.below(4)),
                  make_ref(static_cast<SlotKind>(random.below(4)), static_cast<uint32_t>(random.below(70))));
      attack.fake.releases.push(static_cast<uint32_t>(random.below(1 << 22)));
      for (int i = 0; i < 10; ++i) attack.victim.transport->send(fake_index, {}, {}, 0);
      const Slot slot = attack.victim.transport->acquire(to, 5000, true);
      if (slot) attack.victim.transport->commit(slot, with_payload(5000));
      attack.victim.poll();
    }
    attack.expect_friend_works();
  }
}

}  // namespace
}  // namespace unisono::shm
