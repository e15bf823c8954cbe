#include "elastic/state/state_messages.h"

#include <gtest/gtest.h>

#include "base/concat.h"
#include "base/random.h"
#include "elastic/wire/elastic_message.h"

namespace unisono {
namespace {

StateManifest manifest() {
  return {12, 99, 1000, {1, 2, 3}, {{"a", 0, {}}, {"b", state_piece_bytes, {4}}, {"c", state_piece_bytes + 1, {5, 6}}}};
}
const Bytes payload = {std::byte{1}, std::byte{2}, std::byte{3}};

std::vector<StateMessage> one_of_each() {
  return {StateAsk{1, 2}, StateWant{3, {4, 5, 6}},
          StateDone{},    StateOffer{manifest()},
          StateBusy{7},   StateRefused{StateRefusal::leaving},
          StateAlive{},   StatePart{8, 9, payload}};
}
Bytes encoded(const StateMessage& message) {
  const auto buffer = encode(message);
  return {buffer.view().begin(), buffer.view().end()};
}
Code decoded(const StateMessage& message) { return decode_state(encoded(message)).status().code(); }
Code decoded(const StateManifest& one) { return decoded(StateOffer{one}); }

TEST(StateMessages, survive_encoding) {
  for (const auto& message : one_of_each()) {
    const auto bytes = encoded(message);
    EXPECT_EQ(bytes[0], std::byte(ElasticChannel::state));
    const auto read = decode_state(bytes);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(read->index(), message.index());
    EXPECT_EQ(encoded(*read), bytes);
    EXPECT_EQ(for_donor(*read), message.index() < 3);
  }
}

TEST(StateMessages, a_part_need_not_be_copied) {
  const auto bytes = SharedBuffer::copy(payload);
  const auto part = part_message(8, 9, bytes);
  EXPECT_EQ(part.rest.data(), bytes.data());
  const auto whole = part.whole();
  EXPECT_EQ(Bytes(whole.view().begin(), whole.view().end()), encoded(StatePart{8, 9, payload}));
}

TEST(StateMessages, that_are_cut_are_corrupt_or_shorter_parts) {
  for (const auto& message : one_of_each()) {
    const auto bytes = encoded(message);
    const size_t least = std::holds_alternative<StatePart>(message) ? bytes.size() - payload.size() : bytes.size();
    for (size_t size = 0; size < least; ++size)
      EXPECT_EQ(decode_state(ByteView(bytes).first(size)).status().code(), Code::corrupt);
  }
}

TEST(StateMessages, with_bytes_left_over_are_corrupt) {
  for (const auto& message : one_of_each()) {
    if (std::holds_alternative<StatePart>(message)) continue;
    auto bytes = encoded(message);
    bytes.push_back(std::byte{0});
    EXPECT_EQ(decode_state(bytes).status().code(), Code::corrupt);
  }
}

TEST(StateMessages, of_unknown_kinds_and_other_channels_are_corrupt) {
  for (const uint8_t kind : {0, 9, 255}) {
    auto bytes = encoded(StateDone{});
    bytes[1] = std::byte{kind};
    EXPECT_EQ(decode_state(bytes).status().code(), Code::corrupt);
  }
  auto bytes = encoded(StateDone{});
  bytes[0] = std::byte(ElasticChannel::round);
  EXPECT_EQ(decode_state(bytes).status().code(), Code::corrupt);
}

TEST(StateMessages, that_request_too_many_parts_are_corrupt) {
  EXPECT_EQ(decoded(StateWant{1, std::vector<uint32_t>(state_window_max)}), Code::ok);
  EXPECT_EQ(decoded(StateWant{1, std::vector<uint32_t>(state_window_max + 1)}), Code::corrupt);
}

TEST(StateMessages, that_refuse_without_a_reason_are_corrupt) {
  EXPECT_EQ(decoded(StateRefused{static_cast<StateRefusal>(0)}), Code::corrupt);
  EXPECT_EQ(decoded(StateRefused{static_cast<StateRefusal>(5)}), Code::corrupt);
}

TEST(StateMessages, manifests_with_blobs_out_of_order_or_twice_are_corrupt) {
  auto wrong = manifest();
  std::swap(wrong.blobs[0], wrong.blobs[1]);
  EXPECT_EQ(decoded(wrong), Code::corrupt);
  wrong = manifest();
  wrong.blobs[1].name = "a";
  EXPECT_EQ(decoded(wrong), Code::corrupt);
}

TEST(StateMessages, manifests_whose_blobs_have_too_few_or_too_many_digests_are_corrupt) {
  auto wrong = manifest();
  wrong.blobs[2].digests.pop_back();
  EXPECT_EQ(decoded(wrong), Code::corrupt);
  wrong = manifest();
  wrong.blobs[0].digests.push_back(1);
  EXPECT_EQ(decoded(wrong), Code::corrupt);
}

TEST(StateMessages, manifests_over_a_limit_are_corrupt) {
  auto wrong = manifest();
  wrong.chunk_digests.resize(state_chunks_max + 1);
  EXPECT_EQ(decoded(wrong), Code::corrupt);
  wrong = manifest();
  for (size_t i = 0; i < state_blobs_max; ++i) wrong.blobs.push_back({concat("d", 100 + i), 0, {}});
  EXPECT_EQ(decoded(wrong), Code::corrupt);
  wrong = manifest();
  wrong.blobs[0].name = "";
  wrong.blobs[2].name.assign(state_blob_name_bytes_max, 'c');
  EXPECT_EQ(decoded(wrong), Code::ok);
  wrong.blobs[2].name += 'c';
  EXPECT_EQ(decoded(wrong), Code::corrupt);
  wrong = manifest();
  wrong.step = -2;
  EXPECT_EQ(decoded(wrong), Code::corrupt);
}

TEST(StateMessages, manifests_of_more_blob_bytes_than_the_limit_are_corrupt) {
  auto large = manifest();
  large.blobs = {{"a", state_blob_bytes_max, std::vector<uint64_t>(state_blob_bytes_max / state_piece_bytes)}};
  EXPECT_EQ(decoded(large), Code::ok);
  large.blobs.push_back({"b", 1, {1}});
  EXPECT_EQ(decoded(large), Code::corrupt);
  large.blobs = {{"a", ~uint64_t{0}, {1}}};
  EXPECT_EQ(decoded(large), Code::corrupt);
}

TEST(StateMessages, the_digest_of_a_state_depends_on_all_of_its_fields) {
  const auto name = digest(manifest());
  for (int i = 0; i < 5; ++i) {
    auto other = manifest();
    if (i == 0) ++other.step;
    if (i == 1) ++other.schema;
    if (i == 2) ++other.chunk_digests[1];
    if (i == 3) other.blobs[0].name = "A";
    if (i == 4) ++other.blobs[2].digests[1];
    EXPECT_NE(digest(other), name) << i;
  }
  EXPECT_EQ(digest(manifest()), name);
}

TEST(StateMessages, of_random_bytes_never_fail_the_process) {
  constexpr uint64_t seed = 5;
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  const auto messages = one_of_each();
  for (int i = 0; i < 20'000; ++i) {
    auto bytes = encoded(messages[random.below(messages.size())]);
    for (uint64_t flips = 1 + random.below(3); flips > 0; --flips)
      bytes[random.below(bytes.size())] = std::byte(random.below(256));
    bytes.resize(random.below(bytes.size() + 1));
    const auto read = decode_state(bytes);
    if (!read.ok()) continue;
    EXPECT_EQ(encoded(*read), bytes) << "one value, two encodings";
  }
}

}  // namespace
}  // namespace unisono
