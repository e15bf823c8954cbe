// One suite for every codec: messages, sums of messages, rounding errors, error feedback, and messages that must be refused.
// Also tests the text form of codecs.
#include "codecs/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/random.h"
#include "kernels/dispatch.h"
#include "kernels/golden_test_support.h"

namespace unisono {
namespace {

using Kind = StepCodec::Kind;
using Metadata = StepCodec::Metadata;
using Spikes = StepCodec::Spikes;
using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;
using kernels::BlockCounts;

std::vector<WireCodec> all_codecs() {
  std::vector<WireCodec> codecs;
  for (const auto kind : {Kind::plain, Kind::f16, Kind::bf16, Kind::fp8})
    codecs.push_back(wire_codec({.kind = kind}, DType::f32, DType::f32, false));
  for (uint8_t bits = 2; bits <= 8; ++bits) {
    for (const uint16_t group : {32, 128, 256}) {
      for (const auto metadata : {Metadata::f16, Metadata::bf16, Metadata::f32}) {
        for (const auto spikes : {Spikes::off, Spikes::on}) {
          codecs.push_back(
              wire_codec({.kind = Kind::quantize, .bits = bits, .group = group, .metadata = metadata, .spikes = spikes},
                         DType::f32, DType::f32, false));
        }
      }
    }
  }
  // Lossy operations use codecs without headers.
  const auto with_headers = codecs.size();
  for (size_t i = 0; i < with_headers; i += 9) {
    if (!codecs[i].quantizes()) continue;
    codecs.push_back(codecs[i]);
    codecs.back().sends_header = false;
  }
  return codecs;
}

// Upper bound on the difference between an element of gold() and its decoded value. All elements of gold() are below 16 in
// magnitude.
double bound_of(const WireCodec& codec) {
  if (codec.is_plain()) return 0;
  if (!codec.quantizes()) return codec.kind == Kind::f16 ? 16 * 0x1p-11 : 16 * 0x1p-8;
  if (codec.kind == Kind::fp8) return 16 * 1.01 / 28;
  const double steps = (1 << codec.block.bits) - 1;
  return 0.51 * 33 / steps * 1.02 + 16 * 0x1p-8;
}

Bytes encoded(const WireCodec& codec, const Floats& values) {
  Bytes message(codec.message_bytes(values.size()), std::byte{0xEE});
  BlockCounts counts;
  encode({.codec = codec, .elements = values.data(), .count = values.size(), .message = message.data()}, counts);
  return message;
}

Floats decoded(const WireCodec& codec, const Bytes& message, size_t count) {
  Floats values(count, 99);
  BlockCounts counts;
  decode({.codec = codec, .message = message.data(), .elements = values.data(), .count = count}, counts);
  return values;
}

bool same(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr size_t counts_of_elements[] = {1, 31, 128, 700, 2047, 2048, 2049, 5000};

TEST(EveryCodec, error_stays_within_its_bound_and_messages_are_recognized) {
  for (const auto& codec : all_codecs()) {
    SCOPED_TRACE(to_string(codec));
    EXPECT_EQ(codec.message_bytes(0), 0u);
    for (const size_t count : counts_of_elements) {
      const auto values = gold(count, 3);
      const auto message = encoded(codec, values);
      EXPECT_TRUE(check_message(codec, message, count).ok()) << check_message(codec, message, count).to_string();
      const auto back = decoded(codec, message, count);
      for (size_t i = 0; i < count; ++i) ASSERT_LE(std::fabs(back[i] - values[i]), bound_of(codec)) << i << " of " << count;
    }
  }
}

TEST(EveryCodec, without_a_header_a_message_is_the_same_block_and_damage_is_still_found) {
  for (const auto& codec : all_codecs()) {
    SCOPED_TRACE(to_string(codec));
    auto bare = codec;
    if (!std::exchange(bare.sends_header, false)) continue;
    EXPECT_EQ(bare.message_bytes(0), 0u);
    for (const size_t count : counts_of_elements) {
      const auto values = gold(count, 3);
      const auto message = encoded(codec, values), block = encoded(bare, values);
      ASSERT_EQ(message.size() - block.size(), codec.quantizes() ? quantized_header_bytes : 0u);
      EXPECT_TRUE(std::equal(block.begin(), block.end(), message.end() - static_cast<std::ptrdiff_t>(block.size())));
      EXPECT_TRUE(check_message(bare, block, count).ok()) << check_message(bare, block, count).to_string();
      EXPECT_TRUE(same(decoded(bare, block, count), decoded(codec, message, count)));
      EXPECT_EQ(check_message(bare, std::span(block).first(block.size() - 1), count).code(), Code::corrupt);
      EXPECT_EQ(check_message(bare, message, count).ok(), !codec.quantizes()) << "the header is no part of a block";
    }
  }
}

TEST(EveryCodec, encode_reports_decoded_values_and_errors) {
  for (const auto& codec : all_codecs()) {
    SCOPED_TRACE(to_string(codec));
    for (const size_t count : counts_of_elements) {
      auto values = gold(count, 5);
      const auto before = values;
      const auto wanted = decoded(codec, encoded(codec, values), count);
      Floats error(count, 1);
      Bytes message(codec.message_bytes(count));
      BlockCounts block_counts;
      encode({.codec = codec,
              .elements = values.data(),
              .count = count,
              .message = message.data(),
              .decoded = values.data(),
              .error = error.data()},
             block_counts);
      EXPECT_TRUE(same(values, wanted));
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(error[i], 1 + (before[i] - wanted[i])) << i;
    }
  }
}

// Repeats by hand what fold() does tile by tile: decode all, add in order, divide, encode, decode.
TEST(EveryCodec, fold_sums_decoded_values_in_the_given_order) {
  const auto codecs = all_codecs();
  Random random(4);
  for (const auto& from : codecs) {
    const auto& to = codecs[random.below(codecs.size())];
    SCOPED_TRACE(to_string(from) + " to " + to_string(to));
    const size_t count = counts_of_elements[random.below(std::size(counts_of_elements))], own_at = random.below(3);
    const bool exact = random.below(2) == 0, divides = random.below(2) == 0;
    std::vector<Floats> values;
    std::vector<Bytes> messages;
    std::vector<const void*> sources;
    Floats sum;
    for (size_t r = 0; r < 3; ++r) {
      values.push_back(gold(count, static_cast<uint32_t>(r) + 1));
      messages.push_back(encoded(from, values[r]));
      sources.push_back(r == own_at ? nullptr : messages[r].data());
      const auto part = r == own_at && exact ? values[r] : decoded(from, messages[r], count);
      sum.resize(count);
      for (size_t i = 0; i < count; ++i) sum[i] = r == 0 ? part[i] : sum[i] + part[i];
    }
    for (auto& value : sum) value = divides ? value / 3 : value;
    const auto wanted_message = encoded(to, sum);
    const auto wanted = decoded(to, wanted_message, count);
    for (const bool kept : {false, true}) {
      Bytes message(wanted_message.size());
      Floats output = values[own_at], error(count);  // `output` is also `own` below: fold() works in place
      BlockCounts block_counts;
      fold({.from = from,
            .messages = sources,
            .own = output.data(),
            .own_exact = exact,
            .count = count,
            .divisor = divides ? 3u : 1u,
            .to = &to,
            .message = kept ? message.data() : nullptr,
            .output = output.data(),
            .error = error.data()},
           block_counts);
      EXPECT_TRUE(same(output, wanted));
      if (kept) {
        EXPECT_EQ(message, wanted_message);
      }
      const auto own = exact ? values[own_at] : decoded(from, messages[own_at], count);
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(error[i], (values[own_at][i] - own[i]) + (sum[i] - wanted[i]) * (divides ? 3.0f : 1.0f)) << i;
    }
  }
}

TEST(EveryCodec, encodes_and_decodes_16_bit_elements) {
  for (const auto dtype : {DType::f16, DType::bf16}) {
    for (const auto& step : {StepCodec{.kind = Kind::quantize, .bits = 5}, StepCodec{.kind = Kind::plain}}) {
      const auto codec = wire_codec(step, dtype, dtype, false);
      EXPECT_EQ(codec.block.metadata,
                step.kind == Kind::plain || dtype == DType::f16 ? kernels::Metadata::f16 : kernels::Metadata::bf16);
      const size_t count = 3001;
      auto wide = gold(count, 8);
      std::vector<uint16_t> bits(count), back(count), wanted(count);
      kernels::convert(dtype, bits.data(), DType::f32, wide.data(), count);
      kernels::convert(DType::f32, wide.data(), dtype, bits.data(), count);
      Bytes message(codec.message_bytes(count));
      BlockCounts counts;
      encode({.codec = codec, .dtype = dtype, .elements = bits.data(), .count = count, .message = message.data()}, counts);
      decode({.codec = codec, .message = message.data(), .dtype = dtype, .elements = back.data(), .count = count}, counts);
      const auto as_wide = wire_codec({.kind = step.kind, .bits = 5, .metadata = static_cast<Metadata>(codec.block.metadata)},
                                      DType::f32, DType::f32, false);
      kernels::convert(dtype, wanted.data(), DType::f32, decoded(as_wide, encoded(as_wide, wide), count).data(), count);
      EXPECT_EQ(back, wanted);
    }
  }
}

TEST(EveryCodec, handles_nan_and_overflow) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const auto& codec : all_codecs()) {
    SCOPED_TRACE(to_string(codec));
    auto values = gold(600, 2);
    values[300] = nan, values[301] = inf, values[302] = -inf;
    const auto back = decoded(codec, encoded(codec, values), values.size());
    EXPECT_TRUE(std::isnan(back[300]));
    EXPECT_FALSE(std::isfinite(back[301]) || std::isfinite(back[302]));
    const size_t group = codec.unit();
    for (size_t i = 0; i < values.size(); ++i) {
      if (i / group == 300 / group || i == 301 || i == 302) continue;
      ASSERT_TRUE(std::isfinite(back[i])) << i;
    }
    Floats large(200, 1.0f);
    large[7] = 3e38f, large[8] = -3e38f;
    for (const float value : decoded(codec, encoded(codec, large), large.size())) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(EveryCodec, poison_turns_overflow_into_nan) {
  BlockCounts counts;
  for (const auto& step :
       {StepCodec{.kind = Kind::f16}, StepCodec{.kind = Kind::quantize, .bits = 8, .metadata = Metadata::f16}}) {
    const auto codec = wire_codec(step, DType::f32, DType::f32, true);
    const Floats values{1, 1e6f, 2};
    EXPECT_TRUE(std::isnan(decoded(codec, encoded(codec, values), 3)[1]));
  }
}

TEST(EveryCodec, damaged_messages_are_refused_and_foreign_ones_named) {
  for (const auto& codec : all_codecs()) {
    if (codec.header_bytes() == 0) continue;
    SCOPED_TRACE(to_string(codec));
    const size_t count = 300;
    const auto message = encoded(codec, gold(count, 1));
    for (const size_t length : {size_t{0}, size_t{7}, size_t{8}, message.size() - 1}) {
      EXPECT_EQ(check_message(codec, {message.data(), length}, count).code(), Code::corrupt) << length;
    }
    auto longer = message;
    longer.push_back({});
    EXPECT_EQ(check_message(codec, longer, count).code(), Code::corrupt);
    for (size_t at = 0; at < 8; ++at) {
      auto foreign = message;
      foreign[at] ^= std::byte{0x08};
      const auto status = check_message(codec, foreign, count);
      EXPECT_EQ(status.code(), Code::invalid);
      EXPECT_NE(status.message().find("instead of " + to_string(codec) + ", 300 elements"), std::string::npos)
          << status.message();
    }
    EXPECT_EQ(check_message(codec, message, count + 1).code(), Code::invalid);
  }
  const auto codec = wire_codec({.kind = Kind::quantize, .bits = 8, .metadata = Metadata::f16}, DType::f32, DType::f32, false);
  auto message = encoded(codec, gold(300, 1));
  message[message.size() - 11] = std::byte{0x80};  // sets the sign bit of a scale: no scale may be negative
  EXPECT_EQ(check_message(codec, message, 300).code(), Code::corrupt);
}

TEST(EveryCodec, the_header_of_an_fp8_message_is_as_specified) {
  const auto codec = wire_codec({.kind = Kind::fp8}, DType::f32, DType::f32, false);
  const auto message = encoded(codec, gold(1000, 1));
  const uint8_t header[] = {0x01, 0x08, 0x07, 0x09, 0xe8, 0x03, 0x00, 0x00};
  EXPECT_EQ(std::memcmp(message.data(), header, sizeof(header)), 0);
  EXPECT_EQ(message.size(), 8u + 1000u + 16u);
  const auto read = read_message_header(message);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->codec, codec);
}

TEST(EveryCodec, the_header_of_a_message_is_as_specified) {
  const auto codec = wire_codec({.kind = Kind::quantize, .bits = 5, .metadata = Metadata::f16}, DType::f32, DType::f32, false);
  const auto message = encoded(codec, gold(1000, 1));
  const uint8_t header[] = {0x01, 0x05, 0x07, 0x00, 0xe8, 0x03, 0x00, 0x00};
  EXPECT_EQ(std::memcmp(message.data(), header, sizeof(header)), 0);
  EXPECT_EQ(message.size(), 8u + 660u);
}

std::string read_back(std::string_view text) {
  const auto codec = Codec::parse(text);
  return codec.ok() ? codec->to_string() : codec.status().message();
}

// The error of an element does not affect other elements. So the bytes are the same for one call and for one call per part.
TEST(Codec, error_feedback_by_parts_equals_one_call) {
  const size_t count = 3 * part_unit + 77;
  const auto elements = gold(count, 1), before = gold(count, 2);
  auto sums = elements;
  for (size_t i = 0; i < count; ++i) sums[i] += before[i];
  for (const auto& codec : all_codecs()) {
    Bytes by_hand(codec.message_bytes(count)), message(by_hand.size());
    Floats left_by_hand(count), left = before;
    BlockCounts counts;
    encode({.codec = codec, .elements = sums.data(), .count = count, .message = by_hand.data(), .error = left_by_hand.data()},
           counts);
    const EncodeTask task{.codec = codec,
                          .elements = elements.data(),
                          .count = count,
                          .message = message.data(),
                          .error = left.data(),
                          .use = ErrorUse::carried};
    for (const size_t part : {2, 0, 3, 1}) encode(task, counts, {part * part_unit, part_unit});
    ASSERT_EQ(message, by_hand) << to_string(codec);
    ASSERT_EQ(left, left_by_hand) << to_string(codec);
  }
}

TEST(CodecText, parses_and_prints_known_codecs) {
  EXPECT_EQ(read_back("plain"), "plain");
  EXPECT_EQ(read_back("bf16"), "bf16");
  EXPECT_EQ(read_back("fp16"), "f16");
  EXPECT_EQ(read_back("fp8"), "fp8");
  EXPECT_EQ(read_back("e4m3/int4"), "fp8/int4");
  EXPECT_EQ(read_back("int4"), "int4");
  EXPECT_EQ(read_back("auto"), "int8");
  EXPECT_EQ(read_back("quantize"), "int8");
  EXPECT_EQ(read_back("int8/int4"), "int8/int4");
  EXPECT_EQ(read_back("plain/int4/int8"), "plain/int4/int8");
  EXPECT_EQ(read_back("quantize:bits=4,group=128,spikes=on"), "int4:spikes=on");
  EXPECT_EQ(read_back("quantize:bits=8/4,group=32"), "int8/int4:group=32");
  EXPECT_EQ(read_back("quantize:bits=plain/4/8"), "plain/int4/int8");
  EXPECT_EQ(read_back("int3:group=64/128,metadata=fp32,own_exact=on,on_overflow=poison"),
            "int3:group=64/128,metadata=f32,own_exact=on,on_overflow=poison");
  EXPECT_EQ(Codec::parse("int4")->reduce, Codec::quantized(4).reduce);
  EXPECT_EQ(*Codec::parse("int6:group=64"), Codec::quantized(6, 64));
}

TEST(CodecText, round_trips_random_codecs) {
  Random random(5);
  for (int i = 0; i < 2000; ++i) {
    Codec codec;
    for (auto* step : {&codec.reduce, &codec.across, &codec.gather}) {
      step->kind = static_cast<Kind>(random.below(codec_count));
      if (step->kind != Kind::quantize) continue;
      *step = {.kind = Kind::quantize,
               .bits = static_cast<uint8_t>(2 + random.below(7)),
               .group = static_cast<uint16_t>(32u << random.below(4)),
               .metadata = static_cast<Metadata>(random.below(4)),
               .spikes = static_cast<Spikes>(random.below(3))};
    }
    codec.own_exact = random.below(2) == 0;
    codec.poison = random.below(2) == 0;
    const auto text = codec.to_string();
    const auto again = Codec::parse(text);
    ASSERT_TRUE(again.ok()) << text << ": " << again.status().message();
    EXPECT_EQ(again->to_string(), text);
    for (const auto& [a, b] : {std::pair(&codec.reduce, &again->reduce), std::pair(&codec.across, &again->across),
                               std::pair(&codec.gather, &again->gather)}) {
      EXPECT_EQ(a->kind, b->kind) << text;
      EXPECT_TRUE(a->kind != Kind::quantize || *a == *b) << text;
    }
  }
}

TEST(CodecText, names_the_invalid_value_and_the_allowed_ones) {
  const std::pair<const char*, const char*> cases[] = {
      {"int9", "name \"int9\" is none of int2 … int8, auto, plain, quantize, f16, bf16, fp8"},
      {"", "name \"\" is none of"},
      {"int4/", "name \"\""},
      {"int4/int5/int6/int7", "more than three steps"},
      {"int4:group=100", "group \"100\" is none of 32, 64, 128, 256"},
      {"int4:bits=1", "bits \"1\" is none of 2 … 8"},
      {"int4:bits=", "bits \"\""},
      {"int4:", "is not an option"},
      {"int4:spikes", "is not an option"},
      {"int4:spikes=maybe", "spikes \"maybe\" is none of on, off, auto"},
      {"int4:metadata=f64", "metadata \"f64\" is none of f16, bf16, f32, auto"},
      {"int4:own_exact=1", "own_exact \"1\" is none of on, off"},
      {"int4:on_overflow=x", "on_overflow \"x\" is none of saturate, poison"},
      {"int4:colour=red", "option \"colour\" is none of bits, group"}};
  for (const auto& [text, why] : cases) {
    const auto codec = Codec::parse(text);
    ASSERT_FALSE(codec.ok()) << text;
    EXPECT_EQ(codec.status().code(), Code::invalid);
    EXPECT_NE(codec.status().message().find(why), std::string::npos) << text << ": " << codec.status().message();
  }
}

}  // namespace
}  // namespace unisono
