#include "elastic/round/chunk_table.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

// The numbers specified by check A22 of docs/design/methods/moshpit.md.
TEST(ChunkTableA22, a_million_elements_are_128_chunks_of_7872) {
  const ChunkTable table(1'000'000, 32);
  EXPECT_EQ(table.chunk_elements(), 7872u);
  EXPECT_EQ(table.chunks(), 128u);
}

TEST(ChunkTable, large_vectors_have_chunks_of_65536) {
  EXPECT_EQ(ChunkTable(16u << 20, 32).chunk_elements(), 65536u);
  EXPECT_EQ(ChunkTable(16u << 20, 32).chunks(), 256u);
  // With max_group 32 there must be at least 128 chunks. 127 full chunks and one element make 128 chunks. Without this element,
  // the chunks must be smaller.
  EXPECT_EQ(ChunkTable(127 * 65536 + 1, 32).chunk_elements(), 65536u);
  EXPECT_EQ(ChunkTable(127 * 65536, 32).chunk_elements(), 65024u);
}

TEST(ChunkTable, small_vectors_have_chunks_of_at_least_256) {
  EXPECT_EQ(ChunkTable(1, 32).chunk_elements(), 256u);
  EXPECT_EQ(ChunkTable(1, 32).chunks(), 1u);
  EXPECT_EQ(ChunkTable(1, 32).count(0), 1u);
  EXPECT_EQ(ChunkTable(0, 32).chunks(), 0u);
}

TEST(ChunkTable, chunks_cover_the_vector) {
  for (const size_t elements : {1u, 255u, 256u, 257u, 40'000u, 1'000'000u, 9'000'001u}) {
    const ChunkTable table(elements, 8);
    size_t next = 0;
    for (uint32_t chunk = 0; chunk < table.chunks(); ++chunk) {
      EXPECT_EQ(table.first(chunk), next);
      EXPECT_GT(table.count(chunk), 0u);
      next += table.count(chunk);
    }
    EXPECT_EQ(next, elements);
  }
}

TEST(ChunkTable, the_window_is_four_chunks_or_64_kib) {
  EXPECT_EQ(ChunkTable(16u << 20, 32).window(), 4u);
  EXPECT_EQ(ChunkTable(1, 32).window(), 64u);
}

}  // namespace
}  // namespace unisono
