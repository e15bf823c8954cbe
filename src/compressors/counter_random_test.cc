#include "compressors/counter_random.h"

#include <gtest/gtest.h>

#include <vector>

namespace unisono {
namespace {

using Purpose = RandomStream::Purpose;

// Check 1 of docs/design/methods/arc_top_k.md: the test vectors published by the authors of Philox.
TEST(CounterRandom, philox_gives_the_known_answers) {
  constexpr uint32_t ones = 0xFFFFFFFF;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxWords{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}), (PhiloxWords{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
            (PhiloxWords{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

// Check 2 of docs/design/methods/arc_top_k.md: the first numbers of seed 42, step 3, tensor 5.
TEST(CounterRandom, normal_numbers_are_the_documented_ones) {
  const float expected[] = {-.4020554f, 1.0703567f, -.2034344f, -1.3397659f, -.0581091f, -.7919672f, .0474651f, -.1839826f};
  std::vector<float> out(8);
  RandomStream{.seed = 42, .step = 3, .tensor = 5, .purpose = Purpose::sketch}.normals(0, out);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected[i], 1e-6) << i;
}

TEST(CounterRandom, any_part_of_a_stream_equals_that_part_of_the_whole) {
  const RandomStream stream{.seed = 7, .step = 1, .tensor = 2, .purpose = Purpose::test_data};
  std::vector<float> whole(40);
  stream.normals(0, whole);
  for (uint64_t first = 0; first < 12; ++first) {
    for (size_t count = 0; count < 13; ++count) {
      std::vector<float> part(count);
      stream.normals(first, part);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(part[i], whole[first + i]);
    }
  }
}

TEST(CounterRandom, every_stream_parameter_changes_its_numbers) {
  const RandomStream stream{.seed = 1, .step = 2, .tensor = 3, .purpose = Purpose::sketch};
  std::vector<RandomStream> others(6, stream);
  others[0].seed = 2;
  others[1].seed += uint64_t{1} << 32;
  others[2].step = 3;
  others[3].step += uint64_t{1} << 40;
  others[4].tensor = 4;
  others[5].purpose = Purpose::random_k;
  for (const auto& other : others) EXPECT_NE(other.block(0), stream.block(0));
  EXPECT_NE(stream.block(1), stream.block(0));
}

TEST(CounterRandom, normal_numbers_are_normal) {
  std::vector<float> out(1 << 18);
  RandomStream{.seed = 3}.normals(0, out);
  double sum = 0, squares = 0, fourth = 0;
  for (const double x : out) sum += x, squares += x * x, fourth += x * x * x * x;
  const auto n = static_cast<double>(out.size());
  EXPECT_NEAR(sum / n, 0, .01);
  EXPECT_NEAR(squares / n, 1, .015);
  EXPECT_NEAR(fourth / n, 3, .1);
}

}  // namespace
}  // namespace unisono
