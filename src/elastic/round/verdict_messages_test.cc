#include "elastic/round/verdict_messages.h"

#include <gtest/gtest.h>

#include "base/concat.h"
#include "base/random.h"
#include "elastic/round/verdict_test_support.h"

namespace unisono {
namespace {

using test::bits;

std::vector<VerdictMessage> one_of_each() {
  return {VerdictHave{bits("1011000001")},
          VerdictPropose{7, bits("0011000001")},
          VerdictAccept{8, bits("1011000000")},
          VerdictPrepare{9},
          VerdictPromise{10, std::nullopt, bits("1111000001")},
          VerdictPromise{10, VerdictAccept{3, bits("1000000001")}, bits("1111000001")},
          VerdictDecided{bits("1111111111")}};
}

Bytes encoded(const VerdictMessage& message) {
  ByteWriter writer;
  write_verdict(writer, message);
  return std::move(writer).take();
}

Status decode(ByteView bytes, size_t chunks, VerdictMessage& message) {
  ByteReader reader(bytes);
  return read_verdict(reader, chunks, message);
}

TEST(VerdictMessages, survive_encoding_and_leave_the_bytes_that_follow) {
  for (const auto& message : one_of_each()) {
    auto bytes = encoded(message);
    bytes.push_back(std::byte{42});
    ByteReader reader(bytes);
    VerdictMessage read;
    ASSERT_TRUE(read_verdict(reader, 10, read).ok());
    EXPECT_EQ(read, message);
    EXPECT_EQ(reader.left(), 1u);
  }
}

TEST(VerdictMessages, are_corrupt_if_cut_short) {
  for (const auto& message : one_of_each()) {
    const auto bytes = encoded(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      VerdictMessage read;
      EXPECT_EQ(decode(ByteView(bytes).first(size), 10, read).code(), Code::corrupt) << size;
    }
  }
}

TEST(VerdictMessages, about_another_number_of_chunks_are_corrupt) {
  for (const auto& message : one_of_each()) {
    if (std::holds_alternative<VerdictPrepare>(message)) continue;
    VerdictMessage read;
    EXPECT_EQ(decode(encoded(message), 9, read).code(), Code::corrupt);
    EXPECT_EQ(decode(encoded(message), 11, read).code(), Code::corrupt);
  }
}

TEST(VerdictMessages, of_unknown_kind_are_corrupt) {
  for (const uint8_t kind : {0, 7, 255}) {
    auto bytes = encoded(VerdictPrepare{1});
    bytes[0] = std::byte{kind};
    VerdictMessage read;
    EXPECT_EQ(decode(bytes, 10, read).code(), Code::corrupt);
  }
}

TEST(VerdictMessages, a_promise_with_a_later_acceptance_is_corrupt) {
  VerdictMessage read;
  EXPECT_EQ(decode(encoded(VerdictPromise{4, VerdictAccept{5, bits("11")}, bits("11")}), 2, read).code(), Code::corrupt);
  EXPECT_TRUE(decode(encoded(VerdictPromise{4, VerdictAccept{4, bits("11")}, bits("11")}), 2, read).ok());
}

TEST(VerdictMessages, of_random_bytes_never_fail_the_process) {
  constexpr uint64_t seed = 11;
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  const auto messages = one_of_each();
  for (int i = 0; i < 20'000; ++i) {
    auto bytes = encoded(messages[random.below(messages.size())]);
    for (uint64_t flips = 1 + random.below(3); flips > 0; --flips)
      bytes[random.below(bytes.size())] = std::byte(random.below(256));
    ByteReader reader(bytes);
    VerdictMessage read;
    if (!read_verdict(reader, 10, read).ok()) continue;
    bytes.resize(bytes.size() - reader.left());
    EXPECT_EQ(encoded(read), bytes) << "one value, two encodings";
  }
}

}  // namespace
}  // namespace unisono
