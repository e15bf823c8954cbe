#include "transports/shm/shm_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>

#include "transports/shm/shm_arena.h"

namespace unisono::shm {
namespace {

constexpr Geometry small_geometry = {.regions = 2,
                                     .ring_cells = 8,
                                     .release_entries = 8,
                                     .small_slots = 4,
                                     .small_bytes = 4096,
                                     .large_slots = 4,
                                     .large_bytes = 8192,
                                     .piece_bytes = 4096};

struct Rings {
  Rings() : arena(std::move(Arena::make(small_geometry)).value()) {}
  Arena arena;
  RingWriter writer{arena.cells(0), 8, &arena.region(0).head};
  RingReader reader{arena.cells(0), 8, &arena.region(0).head};
  ReleaseWriter release_writer{arena.releases(0), 8};
  ReleaseReader release_reader{arena.releases(0), 8};
};

TEST(ShmRing, headers_survive_the_ring) {
  Rings rings;
  FrameHeader header;
  for (size_t i = 8; i < sizeof(header) - 4; ++i) reinterpret_cast<uint8_t*>(&header)[i] = static_cast<uint8_t>(i * 7);
  header.codec = 3;
  rings.writer.push(header, CellType::next, make_ref(SlotKind::large, 3));
  Entry entry;
  ASSERT_TRUE(rings.reader.ready());
  ASSERT_TRUE(rings.reader.pop(entry));
  EXPECT_EQ(std::memcmp(&entry.header, &header, sizeof(header) - 4), 0);
  EXPECT_EQ(entry.type, CellType::next);
  EXPECT_EQ(entry.ref, make_ref(SlotKind::large, 3));
  EXPECT_FALSE(rings.reader.pop(entry));
}

TEST(ShmRing, a_full_ring_has_space_after_the_reader_has_taken_a_quarter) {
  Rings rings;
  FrameHeader header;
  Entry entry;
  for (uint32_t lap = 0; lap < 1000; ++lap) {
    for (uint32_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(rings.writer.has_credit());
      header.operation = lap * 8 + i;
      rings.writer.push(header, CellType::whole, 0);
    }
    for (uint32_t i = 0; i < 8; ++i) {
      ASSERT_EQ(rings.writer.has_credit(), i >= 2);
      ASSERT_TRUE(rings.reader.pop(entry));
      ASSERT_EQ(entry.header.operation, lap * 8 + i);
    }
    ASSERT_FALSE(rings.reader.ready());
  }
}

TEST(ShmRing, a_head_out_of_range_is_detected) {
  for (const uint32_t nonsense : {9u, 0x80000000u, UINT32_MAX}) {
    Rings rings;
    for (int i = 0; i < 8; ++i) rings.writer.push({}, CellType::whole, 0);
    rings.arena.region(0).head.store(nonsense);
    EXPECT_FALSE(rings.writer.has_credit());
    EXPECT_TRUE(rings.writer.broken()) << nonsense;
  }
}

TEST(ShmRing, releases_arrive_in_order_over_many_laps) {
  Rings rings;
  uint32_t ref = 0;
  for (uint32_t i = 0; i < 8 * 300; ++i) {
    ASSERT_FALSE(rings.release_reader.ready()) << i;
    rings.release_writer.push(make_ref(SlotKind::small, i % 4));
    ASSERT_TRUE(rings.release_reader.ready());
    ASSERT_TRUE(rings.release_reader.pop(ref));
    ASSERT_EQ(ref, make_ref(SlotKind::small, i % 4));
  }
}

TEST(ShmRing, two_threads_see_every_frame_once_with_its_payload) {
  Rings rings;
  constexpr uint64_t total = 200'000;
  std::thread writer([&] {
    for (uint64_t i = 0; i < total; ++i) {
      while (!rings.writer.has_credit()) std::this_thread::yield();
      FrameHeader header;
      header.operation = i;
      header.amount = ~i;
      rings.writer.push(header, CellType::whole, static_cast<uint32_t>(i & 0xFFFF));
    }
  });
  Entry entry;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < total;) {
    if (!rings.reader.pop(entry)) {
      std::this_thread::yield();
      continue;
    }
    wrong += entry.header.operation != i || entry.header.amount != ~i || entry.ref != (i & 0xFFFF);
    ++i;
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(ShmArena, every_part_has_its_own_bytes) {
  const Geometry& g = small_geometry;
  ASSERT_TRUE(g.valid());
  EXPECT_GE(g.region_offset(0), sizeof(ArenaHead));
  EXPECT_GE(g.region_bytes(), sizeof(RegionHead) + 8 * sizeof(Cell) + 8 * 4);
  EXPECT_EQ(g.small_offset(0), g.region_offset(2));
  EXPECT_GE(g.large_offset(0), g.small_offset(3) + g.small_bytes);
  EXPECT_GE(g.large_offset(1), g.large_offset(0) + g.large_bytes);
  EXPECT_GE(g.total_bytes(), g.large_offset(3) + g.large_bytes);
}

TEST(ShmArena, geometries_out_of_range_are_refused) {
  const auto broken = [](auto change) {
    Geometry geometry = small_geometry;
    change(geometry);
    return !geometry.valid();
  };
  EXPECT_TRUE(broken([](Geometry& g) { g.regions = 0; }));
  EXPECT_TRUE(broken([](Geometry& g) { g.regions = 257; }));
  EXPECT_TRUE(broken([](Geometry& g) { g.ring_cells = 24; }));
  EXPECT_TRUE(broken([](Geometry& g) { g.ring_cells = 1u << 31; }));
  EXPECT_TRUE(broken([](Geometry& g) { g.release_entries = 0; }));
  EXPECT_TRUE(broken([](Geometry& g) { g.small_slots = UINT32_MAX; }));
  EXPECT_TRUE(broken([](Geometry& g) { g.small_bytes = 100; }));
  EXPECT_TRUE(broken([](Geometry& g) { g.large_slots = UINT32_MAX; }));
  EXPECT_TRUE(broken([](Geometry& g) { g.large_bytes = UINT32_MAX; }));
  EXPECT_TRUE(broken([](Geometry& g) { g.piece_bytes = 0; }));
  EXPECT_TRUE(broken([](Geometry& g) { g.piece_bytes = 8256; }));
}

TEST(ShmArena, a_peers_mapping_sees_the_memory_and_is_checked_for_its_size) {
  Arena own = std::move(Arena::make(small_geometry)).value();
  auto peer = Arena::map(own.memfd(), small_geometry);
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  std::memset(own.slot(SlotKind::large, 2), 0x5A, 8192);
  EXPECT_EQ(std::memcmp(own.slot(SlotKind::large, 2), peer->slot(SlotKind::large, 2), 8192), 0);
  Geometry other = small_geometry;
  other.large_slots = 5;
  EXPECT_EQ(Arena::map(own.memfd(), other).status().code(), Code::corrupt);
}

}  // namespace
}  // namespace unisono::shm
