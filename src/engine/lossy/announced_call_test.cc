#include "engine/lossy/announced_call.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

const AnnouncedCall announced{.op = 7, .call = {.bits = 0x12345678, .amount = 90}, .text = "a call; with an argument"};

TEST(AnnouncedCall, comes_back_from_its_bytes) {
  const auto decoded = AnnouncedCall::decode(announced.encode());
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded->op, 7u);
  EXPECT_TRUE(decoded->equals(announced.call));
  EXPECT_EQ(decoded->text, announced.text);
}

TEST(AnnouncedCall, that_is_cut_or_too_long_is_refused) {
  auto bytes = announced.encode();
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(AnnouncedCall::decode(ByteView(bytes).first(size)).status().code(), Code::corrupt) << size;
  bytes.push_back(std::byte{0});
  EXPECT_EQ(AnnouncedCall::decode(bytes).status().code(), Code::corrupt);
}

TEST(AnnouncedCall, of_another_kind_is_refused) {
  auto bytes = announced.encode();
  bytes[0] = std::byte{AnnouncedCall::kind + 1};
  EXPECT_EQ(AnnouncedCall::decode(bytes).status().code(), Code::corrupt);
}

TEST(AnnouncedCall, with_a_text_beyond_the_limit_is_refused) {
  auto large = announced;
  large.text.assign(call_text_max, 'x');
  EXPECT_TRUE(AnnouncedCall::decode(large.encode()).ok());
  large.text += 'x';
  EXPECT_FALSE(AnnouncedCall::decode(large.encode()).ok());
}

TEST(AnnouncedCall, has_a_hash_of_its_descriptor_that_is_never_0) {
  auto later = announced;
  later.op = 0xFFFFFFFF;
  later.text = "another text";
  EXPECT_EQ(later.mark(), announced.mark());
  size_t equal = 0;
  for (uint32_t i = 0; i < 200'000; ++i) {
    const AnnouncedCall other_bits{.call = {.bits = announced.call.bits + 1 + i, .amount = announced.call.amount}};
    const AnnouncedCall other_amount{.call = {.bits = announced.call.bits, .amount = announced.call.amount + 1 + i}};
    ASSERT_NE(other_bits.mark(), 0) << i;
    ASSERT_NE(other_amount.mark(), 0) << i;
    equal += other_bits.mark() == announced.mark();
    equal += other_amount.mark() == announced.mark();
  }
  EXPECT_LE(equal, 20u) << "about 6 of 400,000 are expected";
}

TEST(AnnouncedCall, whose_hash_differs_is_shown_with_both_values) {
  const AnnouncedCall ours{.op = 7, .call = {.bits = 1, .amount = 90}, .text = "call(90); codec a; no agreement"};
  const AnnouncedCall theirs{.op = 7, .call = {.bits = 2, .amount = 90}, .text = "call(90); codec b; no agreement"};
  EXPECT_EQ(
      announced_difference({.rank = 1, .location = "host b", .call = theirs}, {.rank = 0, .call = ours}),
      "calls differ: rank 1 (host b) calls call(90) with codec b, rank 0 calls call(90) with codec a; all ranks must make "
      "the same call");
}

TEST(AnnouncedCall, without_a_text_leaves_the_descriptors) {
  const AnnouncedCall none{.op = 7, .call = {.bits = 0x12345679, .amount = 90}};
  const auto text = announced_difference({.rank = 1, .location = "host b", .call = none}, {.rank = 0, .call = announced});
  EXPECT_NE(text.find("these two differ in root, block sizes"), std::string::npos) << text;
}

}  // namespace
}  // namespace unisono
