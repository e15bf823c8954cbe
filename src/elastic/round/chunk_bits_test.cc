#include "elastic/round/chunk_bits.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

TEST(ChunkBits, are_clear_at_first_and_count_what_is_set) {
  for (const size_t size : {0, 1, 63, 64, 65, 1000}) {
    ChunkBits bits(size);
    EXPECT_TRUE(bits.none());
    EXPECT_EQ(bits.all(), size == 0);
    for (size_t i = 0; i < size; ++i) {
      bits.set(i);
      EXPECT_EQ(bits.count(), i + 1);
    }
    EXPECT_TRUE(bits.all());
    if (size == 0) continue;
    bits.reset(size - 1);
    EXPECT_FALSE(bits.test(size - 1));
    EXPECT_FALSE(bits.all());
    EXPECT_EQ(bits.none(), size == 1);
  }
}

TEST(ChunkBits, support_intersection_and_union) {
  ChunkBits a(70), b(70);
  a.set(3), a.set(69), b.set(69), b.set(5);
  auto both = a;
  both &= b;
  auto either = a;
  either |= b;
  EXPECT_EQ(both.count(), 1u);
  EXPECT_TRUE(both.test(69));
  EXPECT_EQ(either.count(), 3u);
  EXPECT_NE(a, b);
}

TEST(ChunkBits, travel_as_bytes_lowest_bit_first) {
  ChunkBits bits(11);
  bits.set(0), bits.set(9);
  ByteWriter writer;
  bits.write(writer);
  const Bytes expected{std::byte{11}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{1}, std::byte{2}};
  EXPECT_EQ(Bytes(writer.view().begin(), writer.view().end()), expected);
  ByteReader reader(writer.view());
  ChunkBits read;
  ASSERT_TRUE(read.read(reader, 11).ok());
  EXPECT_EQ(read, bits);
  EXPECT_TRUE(reader.done());
}

TEST(ChunkBits, that_are_cut_or_too_many_or_too_few_are_corrupt) {
  ByteWriter writer;
  ChunkBits(11).write(writer);
  ChunkBits read(3);
  for (size_t size = 0; size < writer.view().size(); ++size) {
    ByteReader reader(writer.view().first(size));
    EXPECT_EQ(read.read(reader, 11).code(), Code::corrupt);
  }
  for (const size_t expected : {0, 10, 12}) {
    ByteReader reader(writer.view());
    EXPECT_EQ(read.read(reader, expected).code(), Code::corrupt);
  }
  EXPECT_EQ(read.size(), 3u);
}

TEST(ChunkBits, with_an_unused_bit_set_are_corrupt) {
  for (const size_t size : {11, 61, 65}) {
    ByteWriter writer;
    ChunkBits(size).write(writer);
    auto bytes = std::move(writer).take();
    bytes.back() |= std::byte{0x80};
    ByteReader reader(bytes);
    ChunkBits read;
    EXPECT_EQ(read.read(reader, size).code(), Code::corrupt) << size;
  }
}

}  // namespace
}  // namespace unisono
