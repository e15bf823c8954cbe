// Tests blocks: the layout byte by byte, digests of whole blocks, and error bounds.
#include "kernels/blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "base/concat.h"
#include "base/random.h"
#include "kernels/blocks_group.h"
#include "kernels/blocks_test_support.h"
#include "kernels/dispatch.h"
#include "kernels/golden_test_support.h"
#include "kernels/test_support.h"

namespace unisono::kernels {
namespace {

Floats decode(const BlockFormat& format, const BlockBytes& block, size_t count) {
  BlockCounts counts;
  Floats values(count, -77.0f);
  decode_block_reference(format, block.data(), count, DType::f32, values.data(), counts);
  return values;
}

std::string hex(const BlockBytes& bytes) {
  std::string text;
  char two[4];
  for (const auto byte : bytes) {
    std::snprintf(two, sizeof(two), "%02x ", byte);
    text += two;
  }
  return text.empty() ? text : text.substr(0, text.size() - 1);
}

TEST(Blocks, every_width_has_its_planes_byte_by_byte) {
  const std::pair<int, const char*> expected[] = {{2, "8c 5a 00 00 00 38 00 c4"},
                                                  {3, "8c 5a 52 00 00 38 00 c4"},
                                                  {4, "f0 20 ae 15 00 38 00 c4"},
                                                  {5, "f0 20 ae 15 52 00 00 00 00 38 00 c4"},
                                                  {6, "f0 20 ae 15 0c 1b 00 00 00 38 00 c4"},
                                                  {7, "f0 20 ae 15 0c 1b 52 00 00 38 00 c4"},
                                                  {8, "00 ff 00 02 fe aa 55 01 00 38 00 c4"}};
  for (const auto& [bits, bytes] : expected) {
    const auto top = static_cast<float>((1 << bits) - 1);
    const auto a = static_cast<float>(0xAA & ((1 << bits) - 1)), b = static_cast<float>(0x55 & ((1 << bits) - 1));
    Floats values;
    for (const float t : {0.0f, top, 0.5f, 1.5f, top - 0.5f, a, b, 1.0f}) values.push_back(-4 + 0.5f * t);
    const auto f = format(bits, 32, Metadata::f16);
    EXPECT_EQ(hex(encode(f, values)), bytes) << bits << " bits";
    // 0.5, 1.5 and top - 0.5 are halfway between two codes and round to the even one
    const Floats codes = {0, top, 0, 2, top - 1, a, b, 1};
    const auto back = decode(f, encode(f, values), 8);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(back[i], -4 + 0.5f * codes[i]) << bits << " bits, element " << i;
  }
}

TEST(Blocks, worked_examples) {
  Floats count(34);
  for (size_t i = 0; i < 34; ++i) count[i] = static_cast<float>(i);
  const Floats spiky = {1, -100, 2, 3, 100, 1.5f, 2.75f, 1};
  EXPECT_EQ(hex(encode(format(3, 32, Metadata::f16), {-1, 2.5f, .25f, 0, -.5f, 1, .75f, 2, 1.5f, -.25f})),
            "ac 81 09 00 e2 01 00 00 00 38 00 bc");
  EXPECT_EQ(hex(encode(format(5, 32, Metadata::f16), count)),
            "10 32 54 76 98 ba dc fe 10 32 54 76 98 ba dc fe f0 00 00 00 00 00 ff ff 02 00 00 00 00 3c 00 00 22 28 00 50");
  EXPECT_EQ(hex(encode(format(2, 32, Metadata::bf16, true), spiky)), "d0 34 00 00 2b 3f 80 3f c8 c2 c8 42 01 04");
  EXPECT_EQ(hex(encode(format(2, 32, Metadata::f32, true), spiky)),
            "e0 34 00 00 ab aa 2a 3f 00 00 80 3f 00 00 c8 c2 00 00 c8 42 01 04");
  EXPECT_EQ(hex(encode(format(4, 32, Metadata::f16), {.1f, .2f, .3f})), "80 0f 00 00 d4 22 66 2e");
  EXPECT_EQ(hex(encode(format(4, 32, Metadata::bf16), {.1f, .2f, .3f})), "80 0f 00 00 5b 3c cc 3d");
  EXPECT_EQ(hex(encode(format(4, 32, Metadata::f16), {.1f, .1f, .1f, .1f})), "ff ff 00 00 1c 00 66 2e");
  EXPECT_EQ(hex(encode(format(4, 32, Metadata::f16, true), {5, 1})), "00 00 00 00 00 00 00 00 00 3c 00 45 01 00");
  BlockCounts counts;
  EXPECT_EQ(hex(encode(format(4, 32, Metadata::f16), {1, inf, 0, 2}, &counts)), "00 00 00 00 00 7e 00 7e");
  EXPECT_EQ(counts.nonfinite_groups, 1u);
  EXPECT_EQ(hex(encode(format(4, 32, Metadata::f16), {1e6f, -1e6f, 0, 1}, &counts)), "0f 77 00 00 44 70 ff fb");
  EXPECT_EQ(counts.saturated, 2u);
  for (const float value : decode(format(4, 32, Metadata::f16), encode(format(4, 32, Metadata::f16), {1, inf, 0, 2}), 4)) {
    EXPECT_EQ(std::bit_cast<uint32_t>(value), 0x7FC00000u);
  }
}

struct Digest {
  size_t count;
  uint32_t seed;
  BlockFormat format;
  size_t bytes;
  uint32_t block, values;
};

TEST(Blocks, digests) {
  const auto plain = [](int bits) { return format(bits, 128, Metadata::f16); };
  const auto spiky = [](int bits) { return format(bits, 32, Metadata::bf16, true); };
  const auto wide = [](int bits) { return format(bits, 64, Metadata::f32); };
  const Digest digests[] = {{1000, 1, plain(2), 284, 0xf1b118b4, 0x005ad56b},
                            {1000, 1, plain(3), 408, 0x4ecca4b9, 0x2b03c80c},
                            {1000, 1, plain(4), 532, 0x85712b42, 0x9e89f191},
                            {1000, 1, plain(5), 660, 0x5de9f09b, 0x96eb42b8},
                            {1000, 1, plain(6), 784, 0xb9b586a0, 0xc2ae2569},
                            {1000, 1, plain(7), 908, 0x320329e0, 0x3ae23e0c},
                            {1000, 1, plain(8), 1032, 0x1eb55f3f, 0x119172e9},
                            {1000, 1, spiky(2), 572, 0xc7fc21ab, 0xbc323b20},
                            {1000, 1, spiky(3), 696, 0x16fe8a8a, 0x23a48c57},
                            {1000, 1, spiky(4), 820, 0x665086d6, 0x58bf7d9a},
                            {1000, 1, spiky(5), 948, 0xf8cf1b82, 0x5f23c915},
                            {1000, 1, spiky(6), 1072, 0x0c258c46, 0x218b0253},
                            {1000, 1, spiky(7), 1196, 0x626daad1, 0xb6ffb6b3},
                            {1000, 1, spiky(8), 1320, 0xc3507a68, 0x1980cb7c},
                            {1000, 1, wide(2), 380, 0xa9533597, 0xd243d1da},
                            {1000, 1, wide(5), 756, 0x9c0cb4bd, 0xec912f4c},
                            {1000, 1, wide(8), 1128, 0x0061158c, 0x3ea2d817},
                            {77, 9, format(3, 64, Metadata::f16, true), 52, 0xc5b2c53a, 0x3c0e9d2b},
                            {1, 9, format(7, 32, Metadata::f16), 12, 0x4806fe39, 0xce35f4fe}};
  EXPECT_EQ(crc32("123456789", 9), 0xcbf43926u);
  for (const auto& d : digests) {
    const auto what = concat(d.format.bits, " bits, group ", d.format.group);
    const auto block = encode(d.format, gold(d.count, d.seed));
    EXPECT_EQ(block.size(), d.bytes) << what;
    EXPECT_EQ(crc32(block.data(), block.size()), d.block) << what;
    EXPECT_TRUE(is_block(d.format, block.data(), block.size(), d.count)) << what;
    const auto values = decode(d.format, block, d.count);
    EXPECT_EQ(crc32(values.data(), values.size() * sizeof(float)), d.values) << what;
  }
}

TEST(Blocks, sizes) {
  for (int bits = 2; bits <= 8; ++bits) {
    for (const int group : {32, 64, 128, 256}) {
      for (const bool spikes : {false, true}) {
        const auto f = format(bits, group, Metadata::f16, spikes);
        EXPECT_EQ(block_bytes(f, 0), 0u);
        const size_t meta = spikes ? 10 : 4;
        EXPECT_EQ(block_bytes(f, 1024), 1024u * bits / 8 + 1024u / group * meta);
        EXPECT_EQ(block_bytes(f, 1024) + block_bytes(f, 777), block_bytes(f, 1024 + 777)) << "additive over whole groups";
        EXPECT_EQ(block_bytes(f, 1), (bits + 3u) / 4 * 4 + meta);
      }
    }
  }
}

TEST(Blocks, metadata_are_rounded_to_the_requested_neighbour) {
  Random random(1);
  for (const auto type : {Metadata::f16, Metadata::bf16}) {
    const auto as = type == Metadata::f16 ? DType::f16 : DType::bf16;
    for (int i = 0; i < 200'000; ++i) {
      auto value = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
      if (i % 4 == 0)
        value = std::ldexp(static_cast<float>(random.below(4097)) - 2048, static_cast<int>(random.below(20)) - 30);
      if (!(std::fabs(value) <= largest(type))) continue;
      value = comparable(value);
      uint16_t near = 0;
      convert_reference(as, &near, DType::f32, &value, 1);
      const auto widened = [&](uint16_t bits) {
        float wide = 0;
        convert_reference(DType::f32, &wide, as, &bits, 1);
        return wide;
      };
      const float down = rounded(type, value, Rounding::down), up = rounded(type, value, Rounding::up);
      EXPECT_EQ(rounded(type, value, Rounding::near), widened(near)) << value;
      ASSERT_LE(down, value);
      ASSERT_GE(up, value);
      EXPECT_TRUE(down == widened(near) || up == widened(near)) << value;
      EXPECT_EQ(down == up, widened(near) == value) << value;
      for (const float bound : {down, up}) {
        uint16_t bits = 0;
        convert_reference(as, &bits, DType::f32, &bound, 1);
        EXPECT_EQ(widened(bits), bound) << "is of the type";
        EXPECT_FALSE(bound == 0 && std::signbit(bound));
      }
      if (down != up) {
        const float between = std::nextafter(down, inf);
        EXPECT_EQ(rounded(type, between, Rounding::up), up) << "nothing of the type lies between";
      }
    }
  }
}

TEST(Blocks, every_code_survives_at_every_length) {
  for (int bits = 2; bits <= 8; ++bits) {
    const int codes = 1 << bits;
    for (size_t count = 1; count <= 70; ++count) {
      for (int shift = 0; shift < codes; shift += codes / 4) {
        Floats values(count);
        // Every whole group holds 0 and the largest code. So the scale is 1, and each value is its own code.
        for (size_t i = 0; i < count; ++i)
          values[i] = i % 32 == 0   ? 0
                      : i % 32 == 1 ? static_cast<float>(codes - 1)
                                    : static_cast<float>((i * 7 + shift) % codes);
        if (count % 32 == 1) values[count - 1] = 5;  // the only element of its group
        const auto f = format(bits, 32, Metadata::f16);
        const auto block = encode(f, values);
        EXPECT_TRUE(is_block(f, block.data(), block.size(), count));
        EXPECT_EQ(decode(f, block, count), values) << bits << " bits, " << count;
      }
    }
  }
}

// All combinations of bits, group, metadata and spikes.
std::vector<BlockFormat> all_formats() {
  std::vector<BlockFormat> formats;
  for (int bits = 2; bits <= 8; ++bits) {
    for (const int group : {32, 64, 128, 256}) {
      for (const auto metadata : {Metadata::f16, Metadata::bf16, Metadata::f32}) {
        for (const bool spikes : {false, true}) formats.push_back(format(bits, group, metadata, spikes));
      }
    }
  }
  return formats;
}

// Values of different kinds: of one magnitude, of all magnitudes, constant, zero, tiny, too large, NaN and infinity.
Floats mixed_values(Random& random, size_t count) {
  Floats values(count);
  const auto uniform = [&] { return static_cast<float>(random.below(1u << 24)) / (1u << 23) - 1; };
  uint64_t kind = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % 32 == 0 && random.below(3) == 0) kind = random.below(9);
    const float u = uniform();
    switch (kind) {
      case 0: values[i] = std::bit_cast<float>(static_cast<uint32_t>(random.next())); break;
      case 1: values[i] = 3.25f; break;
      case 2: values[i] = random.below(2) == 0 ? 0.0f : -0.0f; break;
      case 3: values[i] = u * 1e-41f; break;
      case 4: values[i] = u * 1e-28f; break;
      case 5: values[i] = u * 1e6f; break;
      case 6: values[i] = u + 1000; break;
      case 7: values[i] = std::ldexp(u, static_cast<int>(random.below(40)) - 20); break;
      default: values[i] = u;
    }
  }
  return values;
}

TEST(Blocks, the_error_stays_within_its_bound) {
  Random random(7);
  for (const auto& f : all_formats()) {
    const size_t count = 1 + random.below(700);
    const auto values = mixed_values(random, count);
    const auto block = encode(f, values);
    const auto back = decode(f, block, count);
    const auto layout = layout_of(f, count);
    for (size_t i = 0; i < count; ++i) {
      const auto header = load_header(f, layout, i / f.group, reinterpret_cast<const std::byte*>(block.data()));
      if (header.poisoned()) {
        EXPECT_TRUE(std::isnan(back[i]));
        continue;
      }
      const float limit = largest(f.metadata), x = std::min(std::max(values[i], -limit), limit);
      const bool spike = header.is_spike(static_cast<uint32_t>(i % f.group));
      const double half_unit = f.metadata == Metadata::f16 ? std::max(std::fabs(x) * 0x1p-11, 0x1p-25)
                                                           : std::fabs(x) * (f.metadata == Metadata::bf16 ? 0x1p-8 : 0);
      const double bound = (spike ? half_unit : 0.5001 * header.scale + std::fabs(x) * 0x1p-23) + 0x1p-100;
      EXPECT_LE(std::fabs(double(back[i]) - x), bound) << i << ": " << x << ", scale " << header.scale;
    }
  }
}

// Calls f for each target of this machine, and then restores the best target.
template <typename F>
void on_each_target(F&& f) {
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    SCOPED_TRACE(target);
    f();
  }
  force_target("");
}

// Encodes and decodes a block in parts. Bytes and values must equal those of the whole block.
void check_parts(const BlockFormat& f, DType type, std::span<const uint8_t> elements, const BlockBytes& wanted,
                 Random& random) {
  const size_t z = element_bytes(type), count = elements.size() / z;
  const auto layout = layout_of(f, count);
  BlockBytes block(wanted.size(), 0xEE), values(elements.size()), whole(elements.size());
  Floats sums(count, 1), whole_sums(count, 1);
  BlockCounts counts;
  for (size_t first = 0; first < count;) {
    const BlockPart part{first, std::min<size_t>(count - first, f.group * (1 + random.below(3)))};
    encode_part(f, layout, part, type, elements.data() + first * z, block.data(), counts);
    first += part.count;
  }
  EXPECT_EQ(block, wanted);
  for (size_t first = 0; first < count;) {
    const BlockPart part{first, std::min<size_t>(count - first, f.group * (1 + random.below(3)))};
    decode_part(f, layout, part, block.data(), type, values.data() + first * z, counts);
    decode_add_part(f, layout, part, block.data(), sums.data() + first);
    first += part.count;
  }
  decode_block(f, wanted.data(), count, type, whole.data(), counts);
  decode_add_block(f, wanted.data(), count, whole_sums.data());
  EXPECT_EQ(values, whole);
  EXPECT_EQ(std::memcmp(sums.data(), whole_sums.data(), count * sizeof(float)), 0);
}

TEST(BlockKernels, equal_the_reference_for_all_values_lengths_and_alignments) {
  Random random(11);
  for (const auto& plain : all_formats()) {
    auto f = plain;
    f.poison = random.below(4) == 0;
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      const size_t count = random.below(3) == 0 ? random.below(70) : random.below(1500), z = element_bytes(type);
      const auto wide = mixed_values(random, count);
      const size_t shift = random.below(5), offset = random.below(5);
      BlockBytes elements(count * z + shift), wanted(block_bytes(f, count), 0xEE);
      if (count == 0) {
        BlockCounts counts;
        encode_block(f, type, nullptr, 0, nullptr, counts);
        decode_block(f, nullptr, 0, type, nullptr, counts);
        EXPECT_TRUE(is_block(f, nullptr, 0, 0));
        continue;
      }
      if (type == DType::f32) std::memcpy(elements.data() + shift, wide.data(), count * z);
      else convert_reference(type, elements.data() + shift, DType::f32, wide.data(), count);
      BlockCounts counted, decoded_counts;
      encode_block_reference(f, type, elements.data() + shift, count, wanted.data(), counted);
      EXPECT_TRUE(is_block(f, wanted.data(), wanted.size(), count));
      BlockBytes wanted_values(count * z);
      Floats wanted_sums(wide);
      decode_block_reference(f, wanted.data(), count, type, wanted_values.data(), decoded_counts);
      decode_add_block_reference(f, wanted.data(), count, wanted_sums.data());
      on_each_target([&] {
        BlockBytes block(wanted.size() + offset, 0xEE), values(count * z + shift, 0xEE);
        BlockCounts counts, decoded;
        encode_block(f, type, elements.data() + shift, count, block.data() + offset, counts);
        EXPECT_EQ(std::memcmp(block.data() + offset, wanted.data(), wanted.size()), 0)
            << int{f.bits} << " bits, group " << f.group << ", " << count << " of " << name(type);
        EXPECT_EQ(counts.saturated, counted.saturated);
        EXPECT_EQ(counts.nonfinite_groups, counted.nonfinite_groups);
        check_parts(f, type, {elements.data() + shift, count * z}, wanted, random);
        decode_block(f, block.data() + offset, count, type, values.data() + shift, decoded);
        EXPECT_EQ(std::memcmp(values.data() + shift, wanted_values.data(), wanted_values.size()), 0)
            << int{f.bits} << " bits, group " << f.group << ", " << count << " of " << name(type);
        EXPECT_EQ(decoded.saturated, decoded_counts.saturated);
        BlockBytes sums(count * 4 + shift);
        std::memcpy(sums.data() + shift, wide.data(), count * 4);
        decode_add_block(f, block.data() + offset, count, sums.data() + shift);
        EXPECT_EQ(std::memcmp(sums.data() + shift, wanted_sums.data(), count * 4), 0);
      });
    }
  }
}

#if defined(__SSE__)
// Sets flush-to-zero and denormals-are-zero until the object is destroyed.
class FlushedDenormals {
 public:
  FlushedDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushedDenormals() { _mm_setcsr(before_); }

 private:
  uint32_t before_;
};

TEST(BlockKernels, flushed_denormals_change_no_byte) {
  Random random(13);
  for (const auto& f : all_formats()) {
    const size_t count = f.group + random.below(600);
    auto values = mixed_values(random, count);
    for (size_t i = 0; i < f.group; ++i) values[i] *= 1e-38f;
    const auto wanted = encode(f, values);
    on_each_target([&] {
      const FlushedDenormals flushed;
      BlockBytes block(wanted.size());
      BlockCounts counts;
      encode_block(f, DType::f32, values.data(), count, block.data(), counts);
      EXPECT_EQ(block, wanted) << int{f.bits} << " bits, group " << f.group;
    });
  }
}
#endif

TEST(BlockKernels, decoding_any_bytes_stays_inside_the_buffers) {
  Random random(17);
  for (const auto& f : all_formats()) {
    const size_t count = random.below(600);
    BlockBytes block(block_bytes(f, count));
    for (auto& byte : block) byte = static_cast<uint8_t>(random.next());
    (void)is_block(f, block.data(), block.size(), count);
    BlockCounts counts;
    Floats values(count);
    on_each_target([&] {
      decode_block(f, block.data(), count, DType::f32, values.data(), counts);
      decode_add_block(f, block.data(), count, values.data());
    });
  }
}

TEST(Blocks, encoding_decoded_groups_again_gives_the_same_bytes) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  for (auto f : all_formats()) {
    if (f.spikes || f.metadata == Metadata::f32 || (f.metadata == Metadata::bf16 && f.bits > 6)) continue;
    Floats values(size_t{f.group} * 7);
    for (auto& value : values) value = normal(engine);
    const auto once = encode(f, values);
    EXPECT_EQ(encode(f, decode(f, once, values.size())), once) << int{f.bits} << " bits, group " << f.group;
  }
}

// Returns the signal-to-noise ratio of encoding and decoding once, in dB: mean(value²) / mean(error²).
double snr(const BlockFormat& f, const Floats& values) {
  BlockBytes block(block_bytes(f, values.size()));
  Floats back(values.size());
  BlockCounts counts;
  encode_block(f, DType::f32, values.data(), values.size(), block.data(), counts);
  decode_block(f, block.data(), values.size(), DType::f32, back.data(), counts);
  double signal = 0, noise = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    signal += double(values[i]) * values[i];
    noise += (double(values[i]) - back[i]) * (double(values[i]) - back[i]);
  }
  return 10 * std::log10(signal / noise);
}

TEST(Blocks, signal_to_noise_of_one_pass) {
  Floats normal(1u << 20), uniform(1u << 20);
  std::mt19937 engine(3);
  std::normal_distribution<float> gauss;
  std::uniform_real_distribution<float> even(-1, 1);
  for (auto& value : normal) value = gauss(engine);
  for (auto& value : uniform) value = even(engine);
  const double g32[] = {46.7, 40.7, 34.6, 28.4, 22.1, 15.5, 8.1}, g128[] = {44.6, 38.6, 32.5, 26.3, 20.0, 13.4, 6.0},
               spiky[] = {46.0, 39.9, 33.8, 27.7, 21.4, 14.7, 7.4};
  for (int bits = 8; bits >= 2; --bits) {
    const double tolerance = bits >= 4 ? 0.15 : 0.3;
    EXPECT_NEAR(snr(format(bits, 32, Metadata::f16), normal), g32[8 - bits], tolerance) << bits;
    EXPECT_NEAR(snr(format(bits, 128, Metadata::f16), normal), g128[8 - bits], tolerance) << bits;
    EXPECT_NEAR(snr(format(bits, 128, Metadata::f16, true), normal), spiky[8 - bits], tolerance) << bits;
    for (const double g : {32.0, 64.0, 128.0, 256.0}) {
      const double levels = std::pow(2.0, bits) - 1, rho = g * (g - 1) / ((g + 1) * (g + 2)),
                   rest = (g - 2) * (g - 3) / ((g + 1) * (g + 2));
      const int group = static_cast<int>(g);
      EXPECT_NEAR(snr(format(bits, group, Metadata::f16), uniform),
                  20 * std::log10(levels) - 10 * std::log10((1 - 2 / g) * rho), 0.1)
          << bits << " bits, group " << g;
      EXPECT_NEAR(snr(format(bits, group, Metadata::f16, true), uniform),
                  20 * std::log10(levels) - 10 * std::log10((1 - 4 / g) * rest), 0.1)
          << bits << " bits, group " << g << ", spikes";
    }
  }
}

}  // namespace
}  // namespace unisono::kernels
