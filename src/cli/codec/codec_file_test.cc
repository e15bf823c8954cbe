// Tests files of messages. All elements come back. A file that is cut off, damaged or of another format is refused, with the
// reason.
#include "cli/codec/codec_file.h"

#include "cli/codec/codec_test_support.h"

namespace unisono::cli {
namespace {

const WireCodec int4{.kind = StepCodec::Kind::quantize,
                     .block = {.bits = 4, .group = 128, .metadata = kernels::Metadata::bf16}};
const WireCodec int3_spikes{.kind = StepCodec::Kind::quantize,
                            .block = {.bits = 3, .group = 64, .metadata = kernels::Metadata::f16, .spikes = true}};
constexpr size_t big = file_message_elements;

struct ReadBack {
  std::vector<float> values;
  Status status;
  WireCodec codec;
  MessageTally tally;
};

ReadBack read_back(std::span<const std::byte> bytes, std::optional<WireCodec> raw = std::nullopt) {
  const MemoryFile file(bytes);
  auto source = ByteSource::open(file.path());
  EXPECT_TRUE(source.ok());
  MessageReader reader(*source, raw, DType::f32, false);
  static std::vector<float> chunk(big);  // static, because the tests read thousands of files
  kernels::BlockCounts counts;
  ReadBack all;
  while (true) {
    const auto count = reader.next(std::as_writable_bytes(std::span(chunk)), counts);
    all.status = count.status();
    if (!count.ok() || *count == 0) break;
    all.values.insert(all.values.end(), chunk.begin(), chunk.begin() + static_cast<ptrdiff_t>(*count));
  }
  all.codec = reader.codec();
  all.tally = reader.tally();
  return all;
}

void expect_refused(std::span<const std::byte> bytes, const std::string& why) {
  const auto back = read_back(bytes);
  EXPECT_EQ(back.status.code(), Code::corrupt);
  EXPECT_NE(back.status.message().find(why), std::string::npos) << back.status.message();
}

TEST(CodecFile, elements_come_back_as_a_receiver_has_them_whatever_their_number) {
  for (const auto& codec : {int4, int3_spikes}) {
    for (const size_t count : {size_t{1}, size_t{127}, size_t{1000}, big - 1, big, big + 1, 2 * big}) {
      const auto values = some_values(count);
      const auto back = read_back(file_of(codec, values));
      ASSERT_TRUE(back.status.ok()) << back.status.message();
      ASSERT_EQ(back.values.size(), count);
      EXPECT_EQ(back.codec, codec);
      EXPECT_EQ(back.tally.header_bytes, (count + big - 1) / big * quantized_header_bytes);
      // Messages end at group borders, so encoding all elements as one message must give the same values.
      std::vector<std::byte> message(codec.message_bytes(count));
      std::vector<float> expected(count);
      kernels::BlockCounts counts;
      encode({.codec = codec, .elements = values.data(), .count = count, .message = message.data(), .decoded = expected.data()},
             counts);
      EXPECT_EQ(std::memcmp(back.values.data(), expected.data(), count * sizeof(float)), 0) << count;
    }
  }
}

TEST(CodecFile, an_empty_input_is_encoded_as_one_header) {
  const auto file = file_of(int4, {});
  EXPECT_EQ(file.size(), quantized_header_bytes);
  const auto back = read_back(file);
  EXPECT_TRUE(back.status.ok()) << back.status.message();
  EXPECT_TRUE(back.values.empty());
  EXPECT_EQ(back.codec, int4);
}

TEST(CodecFile, elements_without_headers_are_read_as_the_given_type) {
  const WireCodec bf16{.kind = StepCodec::Kind::bf16, .dtype = DType::bf16, .block = {}};
  const std::vector<float> values{1.0f, -2.5f, 0.0f};
  const auto file = file_of(bf16, values);
  EXPECT_EQ(file.size(), 6u);
  EXPECT_EQ(read_back(file, bf16).values, values);
  const auto cut = read_back(std::span(file).first(5), bf16);
  EXPECT_EQ(cut.status.code(), Code::corrupt);
  EXPECT_NE(cut.status.message().find("5 bytes, no multiple of the 2"), std::string::npos) << cut.status.message();
}

TEST(CodecFile, a_file_that_ends_anywhere_too_early_is_refused) {
  const auto file = file_of(int3_spikes, some_values(1000));
  for (size_t length = 0; length < file.size(); ++length) {
    const auto back = read_back(std::span(file).first(length));
    ASSERT_EQ(back.status.code(), Code::corrupt) << length;
    ASSERT_TRUE(back.values.empty()) << length;
  }
  expect_refused({}, "empty");
  expect_refused(std::span(file).first(7), "7 bytes, less than the header");
  expect_refused(std::span(file).first(100), "cut off: ends after 100 bytes, inside message 1, which lacks");
}

TEST(CodecFile, a_file_that_ends_between_messages_is_refused) {
  auto file = file_of(int4, some_values(big));
  expect_refused(std::span(file).first(file.size() - quantized_header_bytes),
                 "cut off: ends after 557064 bytes, behind message 1");
  file = file_of(int4, some_values(big + 1));
  expect_refused(std::span(file).first(557064), "cut off: ends after 557064 bytes, behind message 1");
  expect_refused(std::span(file).first(557070), "cut off: ends after 557070 bytes, inside the header of message 2");
}

TEST(CodecFile, bytes_behind_the_end_are_refused) {
  auto file = file_of(int4, some_values(128));
  const auto twice = [&] {
    auto two = file;
    two.insert(two.end(), file.begin(), file.end());
    return two;
  }();
  expect_refused(twice, "should end after 76 bytes, behind message 1, but goes on");
  file = file_of(int4, {});
  file.push_back(std::byte{0});
  expect_refused(file, "but goes on");
}

TEST(CodecFile, a_file_of_another_format_is_refused_with_its_first_bytes) {
  expect_refused(bytes_of(std::vector<float>{1.0f, 2.0f, 3.0f}),
                 "no file of quantised messages: begins with bytes 00 00 80 3f 00 00 00 40");
  auto file = file_of(int4, some_values(128));
  file[0] = std::byte{2};
  expect_refused(file, "blocks of version 2");
  file[0] = std::byte{1};
  file[1] = std::byte{9};
  expect_refused(file, "blocks of an unknown kind");
}

TEST(CodecFile, a_header_of_the_first_message_that_asks_for_too_much_is_refused) {
  auto file = file_of(int4, some_values(128));
  file[7] = std::byte{0x7f};
  expect_refused(file, "says that it has 2130706560 elements; at most 1048576 can be");
}

TEST(CodecFile, a_damaged_later_header_is_reported_with_its_position) {
  const auto good = file_of(int4, some_values(big + 128));
  auto file = good;
  file[557064] = std::byte{0};
  expect_refused(file, "no header of a message at byte 557064, where message 2 should begin");
  file = good;
  file[557064 + 1] = std::byte{5};
  expect_refused(file,
                 "message 2, at byte 557064, is int5:group=128,metadata=bf16, those before it int4:group=128,metadata=bf16");
}

TEST(CodecFile, an_invalid_block_is_reported_with_its_position) {
  auto file = file_of(int4, some_values(128));
  // Sets the scale of the first group to +infinity (bf16 0x7f80), which no encoder writes.
  file[quantized_header_bytes + 64] = std::byte{0x80};
  file[quantized_header_bytes + 65] = std::byte{0x7f};
  expect_refused(file, "message 1, at byte 0: a damaged block of 128 elements");
}

TEST(CodecFile, damage_causes_nothing_worse_than_an_error) {
  const auto good = file_of(int3_spikes, some_values(300));
  uint32_t state = 7;
  const auto random = [&](size_t below) { return (state = 1664525 * state + 1013904223) / 256 % static_cast<uint32_t>(below); };
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    auto file = good;
    for (int flips = 0; flips < 3; ++flips)
      file[random(flips == 0 ? 8 : file.size())] ^= static_cast<std::byte>(1u << random(8));
    const auto back = read_back(std::span(file).first(i % 2 == 0 ? file.size() : random(file.size())));
    if (!back.status.ok()) ++refused;
    ASSERT_TRUE(back.status.ok() || back.status.code() == Code::corrupt) << back.status.to_string();
  }
  EXPECT_GT(refused, 2000);
}

TEST(CodecFile, headers_are_read_as_they_are_written) {
  for (uint8_t bits = 2; bits <= 8; ++bits) {
    for (const uint16_t group : {uint16_t{32}, uint16_t{64}, uint16_t{128}, uint16_t{256}}) {
      const WireCodec codec{
          .kind = StepCodec::Kind::quantize,
          .block = {.bits = bits, .group = group, .metadata = kernels::Metadata::f32, .spikes = bits % 2 == 0}};
      std::array<std::byte, quantized_header_bytes> bytes;
      write_message_header({codec, 77u * bits}, bytes);
      const auto header = read_message_header(bytes);
      ASSERT_TRUE(header.ok());
      EXPECT_EQ(header->codec, codec);
      EXPECT_EQ(header->count, 77u * bits);
    }
  }
  EXPECT_EQ(read_message_header({}).status().code(), Code::corrupt);
}

}  // namespace
}  // namespace unisono::cli
