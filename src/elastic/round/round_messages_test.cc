#include "elastic/round/round_messages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/random.h"
#include "wire/digest.h"

namespace unisono {
namespace {

constexpr GroupId group{0x1122334455667788, 0x99};

RoundFormat plain_format() {
  return {.group = group, .members = 5, .table = ChunkTable(700, 32), .contribute = {}, .result = {}};
}
RoundFormat encoded_format() {
  auto format = plain_format();
  format.contribute = format.result = wire_codec({.kind = StepCodec::Kind::quantize, .bits = 8}, DType::f32, DType::f32, false);
  return format;
}

SharedBuffer contribution(const RoundFormat& format, const Contribution& head) {
  auto message = contribution_message(format, head);
  std::vector<float> x(format.table.count(head.chunk), 1.5f);
  kernels::BlockCounts counts;
  if (head.weight > 0)
    encode({.codec = format.contribute,
            .elements = x.data(),
            .count = x.size(),
            .message = message.data() + contribution_head_bytes},
           counts);
  return message;
}

ChunkResult result_head() {
  ChunkResult head;
  head.chunk = 2;
  head.author = 3;
  head.contributors = 0b10110;
  head.refused = 0b01000;
  head.total = 2.5;
  head.variance = 0.25;
  head.full = true;
  return head;
}

SharedBuffer result(const RoundFormat& format, const ChunkResult& head) {
  auto message = result_message(format, head);
  std::vector<float> x(format.table.count(head.chunk), 1.5f);
  kernels::BlockCounts counts;
  if (!head.is_void())
    encode({.codec = format.result, .elements = x.data(), .count = x.size(), .message = message.data() + result_head_bytes},
           counts);
  return message;
}

Code code_of(const RoundFormat& format, ByteView bytes) {
  RoundMessage message;
  return read_round_message(format, bytes, message).code();
}
template <typename T>
SharedBuffer with(SharedBuffer message, size_t at, T value) {
  auto copy = SharedBuffer::copy(message.view());
  std::memcpy(copy.data() + at, &value, sizeof value);
  return copy;
}
SharedBuffer cut(const SharedBuffer& message, size_t bytes) { return SharedBuffer::copy(message.view().first(bytes)); }
SharedBuffer longer(const SharedBuffer& message) {
  auto copy = SharedBuffer::make(message.size() + 4);
  std::memset(copy.data(), 0, copy.size());
  std::memcpy(copy.data(), message.data(), message.size());
  return copy;
}

TEST(RoundMessages, a_contribution_survives_encoding) {
  for (const auto& format : {plain_format(), encoded_format()}) {
    const auto bytes = contribution(format, {.chunk = 2, .author = 4, .weight = 0.75, .full = true, .sharers = 2});
    RoundMessage read;
    ASSERT_TRUE(read_round_message(format, bytes.view(), read).ok());
    const auto& got = std::get<Contribution>(read);
    EXPECT_EQ(got.chunk, 2u);
    EXPECT_EQ(got.author, 4u);
    EXPECT_EQ(got.weight, 0.75);
    EXPECT_TRUE(got.full);
    EXPECT_EQ(got.sharers, 2u);
    EXPECT_EQ(contribution_elements(bytes).size(), format.contribute.message_bytes(188));
    EXPECT_EQ(round_group(bytes.view()), group);
  }
}

TEST(RoundMessages, a_contribution_without_weight_has_no_elements) {
  const auto bytes = contribution(plain_format(), {.chunk = 0, .author = 1});
  EXPECT_EQ(bytes.size(), contribution_head_bytes);
  EXPECT_EQ(code_of(plain_format(), bytes.view()), Code::ok);
}

TEST(RoundMessages, a_result_survives_encoding) {
  for (const auto& format : {plain_format(), encoded_format()}) {
    auto head = result_head();
    auto bytes = result(format, head);
    head.digest = digest64(result_elements(bytes));
    write_result_head(format, head, bytes);
    RoundMessage read;
    ASSERT_TRUE(read_round_message(format, bytes.view(), read).ok());
    const auto& got = std::get<ChunkResult>(read);
    EXPECT_EQ(got.chunk, 2u);
    EXPECT_EQ(got.author, 3u);
    EXPECT_EQ(got.contributors, RankSet(0b10110));
    EXPECT_EQ(got.refused, RankSet(0b01000));
    EXPECT_EQ(got.total, 2.5);
    EXPECT_EQ(got.variance, 0.25);
    EXPECT_TRUE(got.full);
    EXPECT_EQ(got.digest, head.digest);
    EXPECT_FALSE(got.is_void());
  }
}

TEST(RoundMessages, void_results_have_no_elements) {
  auto alone = result_head(), weightless = result_head();
  alone.contributors = 0b10;
  weightless.total = 0;
  for (const auto& head : {alone, weightless}) {
    EXPECT_TRUE(head.is_void());
    EXPECT_EQ(result(plain_format(), head).size(), result_head_bytes);
    EXPECT_EQ(code_of(plain_format(), result(plain_format(), head).view()), Code::ok);
  }
}

TEST(RoundMessages, all_other_kinds_survive_encoding) {
  RoundMessage read;
  const auto back = [&](const RoundMessage& message) {
    return read_round_message(plain_format(), round_message(group, message).view(), read).ok();
  };
  ASSERT_TRUE(back(KeepAlive{.ended = true}));
  EXPECT_TRUE(std::get<KeepAlive>(read).ended);
  ASSERT_TRUE(back(Abandon{}));
  EXPECT_TRUE(std::holds_alternative<Abandon>(read));
  ASSERT_TRUE(back(Fetch{2}));
  EXPECT_EQ(std::get<Fetch>(read).chunk, 2u);
  ASSERT_TRUE(back(FetchMiss{1}));
  EXPECT_EQ(std::get<FetchMiss>(read).chunk, 1u);
  ChunkBits bits(3);
  bits.set(1);
  ASSERT_TRUE(back(VerdictMessage{VerdictAccept{.ballot = 7, .value = bits}}));
  EXPECT_EQ(std::get<VerdictAccept>(std::get<VerdictMessage>(read)), (VerdictAccept{.ballot = 7, .value = bits}));
}

TEST(RoundMessages, every_cut_is_refused) {
  const auto format = plain_format();
  const SharedBuffer messages[] = {contribution(format, {.chunk = 2, .author = 4, .weight = 1}), result(format, result_head()),
                                   round_message(group, Fetch{1}),
                                   round_message(group, VerdictMessage{VerdictDecided{ChunkBits(3)}})};
  for (const auto& message : messages) {
    for (size_t bytes = 0; bytes < message.size(); ++bytes)
      ASSERT_NE(code_of(format, cut(message, bytes).view()), Code::ok) << bytes;
    EXPECT_NE(code_of(format, longer(message).view()), Code::ok);
  }
}

TEST(RoundMessages, a_message_without_a_whole_group_id_is_refused) {
  EXPECT_EQ(round_group(cut(round_message(group, Abandon{}), 23).view()), std::nullopt);
}
TEST(RoundMessages, another_channel_is_refused) {
  EXPECT_EQ(code_of(plain_format(), with(round_message(group, Abandon{}), 0, uint8_t{2}).view()), Code::corrupt);
}
TEST(RoundMessages, an_unknown_kind_is_refused) {
  EXPECT_EQ(code_of(plain_format(), with(round_message(group, Abandon{}), 1, uint8_t{9}).view()), Code::corrupt);
}
TEST(RoundMessages, another_group_is_refused) {
  EXPECT_EQ(code_of(plain_format(), round_message({1, 2}, Abandon{}).view()), Code::corrupt);
}
TEST(RoundMessages, a_chunk_beyond_the_table_is_refused) {
  EXPECT_EQ(code_of(plain_format(), round_message(group, Fetch{3}).view()), Code::corrupt);
}

TEST(RoundMessages, impossible_contributions_are_refused) {
  const auto format = plain_format();
  const auto good = contribution(format, {.chunk = 0, .author = 1, .weight = 1});
  EXPECT_EQ(code_of(format, good.view()), Code::ok);
  EXPECT_EQ(code_of(format, with(good, 2, uint8_t{1}).view()), Code::corrupt) << "codec";
  EXPECT_EQ(code_of(format, with(good, 24, -1.0).view()), Code::corrupt) << "weight below 0";
  EXPECT_EQ(code_of(format, with(good, 24, std::numeric_limits<double>::quiet_NaN()).view()), Code::corrupt) << "no weight";
  EXPECT_EQ(code_of(format, with(good, 24, 1e300).view()), Code::corrupt) << "weight whose sum could overflow";
  EXPECT_EQ(code_of(format, with(good, 24, 0.0).view()), Code::corrupt) << "elements without weight";
  EXPECT_EQ(code_of(format, with(good, 32, uint16_t{0}).view()), Code::corrupt) << "no sharers";
  EXPECT_EQ(code_of(format, with(good, 32, uint16_t{257}).view()), Code::corrupt) << "too many sharers";
  EXPECT_EQ(code_of(format, with(good, 34, uint16_t{5}).view()), Code::corrupt) << "author";
}

TEST(RoundMessages, impossible_results_are_refused) {
  const auto format = plain_format();
  const auto good = result(format, result_head());
  EXPECT_EQ(code_of(format, good.view()), Code::ok);
  EXPECT_EQ(code_of(format, with(good, 2, uint8_t{1}).view()), Code::corrupt) << "codec";
  EXPECT_EQ(code_of(format, with(good, 24, -1.0).view()), Code::corrupt) << "total below 0";
  EXPECT_EQ(code_of(format, with(good, 24, 1e103).view()), Code::corrupt) << "more than all members can give";
  EXPECT_EQ(code_of(format, with(good, 24, std::numeric_limits<double>::infinity()).view()), Code::corrupt) << "total";
  EXPECT_EQ(code_of(format, with(good, 48, uint64_t{0b100110}).view()), Code::corrupt) << "a contributor beyond the group";
  EXPECT_EQ(code_of(format, with(good, 72, uint64_t{1}).view()), Code::corrupt) << "a contributor far beyond the group";
  EXPECT_EQ(code_of(format, with(good, 80, uint16_t{5}).view()), Code::corrupt) << "author";
  EXPECT_EQ(code_of(format, with(good, 88, uint64_t{0b100000}).view()), Code::corrupt) << "a refused member beyond the group";
  EXPECT_EQ(code_of(format, with(good, 112, uint64_t{1}).view()), Code::corrupt) << "a refused member far beyond the group";
  EXPECT_EQ(code_of(format, with(good, 88, uint64_t{0b10}).view()), Code::corrupt) << "a contributor that was refused";
  EXPECT_EQ(code_of(format, with(good, 48, uint64_t{0b10}).view()), Code::corrupt) << "elements in a void result";
}

TEST(RoundMessages, unused_fields_must_be_zero) {
  const auto format = plain_format();
  const auto contributed = contribution(format, {.chunk = 0, .author = 1, .weight = 1}),
             averaged = result(format, result_head());
  for (size_t at = 36; at < contribution_head_bytes; ++at)
    EXPECT_EQ(code_of(format, with(contributed, at, uint8_t{1}).view()), Code::corrupt) << at;
  for (size_t at = 82; at < result_head_bytes; ++at) {
    if (at == 88) at = 120;  // between them are the refused members
    EXPECT_EQ(code_of(format, with(averaged, at, uint8_t{1}).view()), Code::corrupt) << at;
  }
  for (const auto& message : {contributed, averaged, round_message(group, KeepAlive{})}) {
    EXPECT_EQ(code_of(format, with(message, 3, uint8_t{2}).view()), Code::corrupt) << "flags";
  }
  for (const auto& message : {round_message(group, Abandon{}), round_message(group, Fetch{1}),
                              round_message(group, VerdictMessage{VerdictPrepare{7}})}) {
    EXPECT_EQ(code_of(format, with(message, 3, uint8_t{1}).view()), Code::corrupt) << "flags";
    EXPECT_EQ(code_of(format, with(message, 2, uint8_t{1}).view()), Code::corrupt) << "codec";
  }
  EXPECT_EQ(code_of(format, with(round_message(group, KeepAlive{}), 4, uint32_t{1}).view()), Code::corrupt) << "chunk";
}

TEST(RoundMessages, quantised_elements_that_cannot_be_decoded_are_refused) {
  const auto format = encoded_format();
  const auto good = contribution(format, {.chunk = 0, .author = 1, .weight = 1});
  EXPECT_NE(code_of(format, with(good, contribution_head_bytes, uint8_t{99}).view()), Code::ok);
}

TEST(RoundMessages, random_bytes_are_read_or_refused) {
  const uint64_t seed = 11;
  Random random(seed);
  const auto format = encoded_format();
  const SharedBuffer messages[] = {contribution(format, {.chunk = 2, .author = 4, .weight = 1}), result(format, result_head()),
                                   round_message(group, Fetch{1}),
                                   round_message(group, VerdictMessage{VerdictAccept{.ballot = 1, .value = ChunkBits(3)}})};
  for (int i = 0; i < 20'000; ++i) {
    auto bytes = SharedBuffer::copy(messages[random.below(4)].view());
    for (auto changes = random.below(4) + 1; changes > 0; --changes)
      bytes.data()[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    RoundMessage read;
    const auto status = read_round_message(format, bytes.view(), read);
    if (status.ok() || status.code() == Code::corrupt || status.code() == Code::invalid) continue;
    FAIL() << status.to_string() << ", seed " << seed;
  }
}

}  // namespace
}  // namespace unisono
