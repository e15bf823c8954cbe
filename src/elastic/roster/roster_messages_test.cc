#include "elastic/roster/roster_messages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/concat.h"
#include "base/random.h"
#include "elastic/formation/formation_messages.h"
#include "elastic/roster/elastic_test_support.h"
#include "elastic/wire/elastic_message.h"

namespace unisono {
namespace {

using test::peer_claim;
using test::peer_id;

constexpr size_t body_at = 2 + 4 * 8;  // size of channel, kind, run, steps_opened, layout_version, layout_digest

RosterMessage with(RosterBody body) {
  RosterMessage message{
      .run = 77, .steps_opened = 9, .layout_version = 3, .layout_digest = 0xABCD, .body = std::move(body), .claims = {}};
  auto dead = peer_claim(2, PeerStatus::dead, 5);
  dead.gone_ms = 1234;
  dead.proven = true;
  message.claims = {peer_claim(1), dead};
  message.claims[0].entry.facts.bandwidth = 1e9;
  message.claims[0].entry.facts.finished_step = 8;
  message.claims[0].entry.facts.role = ElasticRole::reducer;
  message.claims[0].entry.facts.addresses = {"tcp://a:1", "tcp://b:2"};
  return message;
}

LayoutPush make_push() {
  const auto layout = make_layout({.run = "r", .version = 2, .first_step = 4}, {peer_id(1), peer_id(2), peer_id(3)});
  return {std::make_shared<const Layout>(*layout)};
}

std::vector<RosterMessage> one_of_each() {
  return {with(RosterHello{"run", 42, {1, 2}}),
          with(RosterWelcome{17, true, {1, 2, 0, 4}}),
          with(RosterRefused{RefusalReason::looking, "too early"}),
          with(RosterProbe{peer_id(1), 5}),
          with(RosterAck{peer_id(1), peer_id(2), 5}),
          with(RosterProbeRequest{peer_id(3), 6}),
          with(RosterGossip{.answer = true}),
          with(LayoutPull{12}),
          with(make_push())};
}

void expect_corrupt(const Bytes& bytes, const std::string& why) {
  const auto decoded = decode_roster_message(bytes);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), Code::corrupt);
  EXPECT_NE(decoded.status().message().find(why), std::string::npos) << decoded.status().message();
}

template <typename T>
void overwrite(Bytes& bytes, size_t at, T value) {
  ASSERT_LE(at + sizeof(T), bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

TEST(RosterMessages, each_kind_survives_encoding) {
  ASSERT_EQ(one_of_each().size(), std::variant_size_v<RosterBody>);
  for (const auto& message : one_of_each()) {
    const auto bytes = encode(message);
    EXPECT_EQ(bytes[0], std::byte{static_cast<uint8_t>(ElasticChannel::roster)});
    const auto decoded = decode_roster_message(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_TRUE(*decoded == message) << "kind " << message.body.index();
  }
}

TEST(RosterMessages, cut_anywhere_are_refused) {
  for (const auto& message : one_of_each()) {
    const auto bytes = encode(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decode_roster_message(ByteView(bytes).first(size)).ok()) << message.body.index() << " cut to " << size;
    }
  }
}

TEST(RosterMessages, with_bytes_left_over_are_refused) {
  for (const auto& message : one_of_each()) {
    auto bytes = encode(message);
    bytes.push_back(std::byte{0});
    expect_corrupt(bytes, "too many");
  }
}

TEST(RosterMessages, of_another_channel_are_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  bytes[0] = std::byte{2};
  expect_corrupt(bytes, "channel 2");
}

TEST(RosterMessages, of_an_unknown_kind_are_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  for (const int kind : {9, 100, 255}) {
    bytes[1] = static_cast<std::byte>(kind);
    expect_corrupt(bytes, concat("kind ", kind));
  }
}

TEST(RosterMessages, with_a_step_near_overflow_are_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  overwrite(bytes, 2 + 8, ~uint64_t{0});
  expect_corrupt(bytes, "out of range");
}

TEST(RosterMessages, with_a_layout_version_near_overflow_are_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  overwrite(bytes, 2 + 16, ~uint64_t{0});
  expect_corrupt(bytes, "out of range");
}

// No REGISTER could follow this number. If it were accepted, one message could stop the whole run.
TEST(RosterMessages, the_last_step_number_cannot_be_opened) {
  auto message = with(RosterGossip{});
  message.steps_opened = step_number_max;
  ASSERT_TRUE(decode_roster_message(encode(message)).ok());
  formation::Register request;
  request.slot = {.layout_version = 1, .layout_digest = 2, .step = message.steps_opened - 1, .round = 0, .line = 0};
  EXPECT_TRUE(decode_formation(encode(request)).ok());
  ++message.steps_opened;
  EXPECT_FALSE(decode_roster_message(encode(message)).ok());
}

TEST(RosterMessages, with_a_huge_number_of_entries_are_refused_before_anything_is_made) {
  auto bytes = encode(with(LayoutPull{1}));
  overwrite(bytes, body_at + 8, uint16_t{0xFFFF});
  expect_corrupt(bytes, "number of entries");
  overwrite(bytes, body_at + 8, uint16_t{100});  // an allowed number of entries, but the message is too short for them
  expect_corrupt(bytes, "entry 2");
}

TEST(RosterMessages, with_more_entries_than_may_go_at_once_are_refused) {
  auto message = with(LayoutPull{1});
  message.claims.assign(roster_claims_max, peer_claim(1));
  EXPECT_TRUE(decode_roster_message(encode(message)).ok());
  message.claims.push_back(peer_claim(1));
  expect_corrupt(encode(message), "number of entries");
}

TEST(RosterMessages, with_a_string_longer_than_the_message_are_refused) {
  auto bytes = encode(with(RosterHello{"run", 42, {}}));
  overwrite(bytes, body_at, uint32_t{0xFFFFFFFF});
  expect_corrupt(bytes, "hello");
}

TEST(RosterMessages, a_refusal_with_an_unknown_reason_is_refused) {
  auto bytes = encode(with(RosterRefused{RefusalReason::full, "x"}));
  bytes[body_at] = std::byte{9};
  expect_corrupt(bytes, "reason 9");
}

TEST(RosterMessages, a_welcome_with_an_invalid_flag_is_refused) {
  auto bytes = encode(with(RosterWelcome{1, true, {}}));
  bytes[body_at + 8] = std::byte{2};
  expect_corrupt(bytes, "welcome");
}

TEST(RosterMessages, a_sum_in_an_impossible_number_of_parts_is_refused) {
  for (const size_t count : {0, 1, 2, 256})
    EXPECT_TRUE(decode_roster_message(encode(with(RosterHello{"run", 42, std::vector<uint64_t>(count)}))).ok()) << count;
  for (const size_t count : {3, 255, 257, 512, 65535}) {
    expect_corrupt(encode(with(RosterHello{"run", 42, std::vector<uint64_t>(count)})), "parts");
    expect_corrupt(encode(with(RosterWelcome{42, true, std::vector<uint64_t>(count)})), "parts");
  }
  auto bytes = encode(with(RosterWelcome{1, true, {}}));
  overwrite(bytes, body_at + 9, uint16_t{256});  // an allowed number of parts, but the message is too short for them
  expect_corrupt(bytes, "parts");
}

TEST(RosterMessages, a_brief_entry_carries_id_and_status_but_no_facts) {
  auto claim = peer_claim(1, PeerStatus::left, 3);
  claim.gone_ms = 17;
  claim.brief = true;
  auto whole = claim;
  whole.brief = false;
  auto message = with(RosterGossip{});
  message.claims = {claim, whole, claim};
  const auto bytes = encode(message);
  const auto read = decode_roster_message(bytes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  claim.entry.facts = {};
  EXPECT_EQ(read->claims, (std::vector{claim, whole, claim}));
  message.claims = {claim};
  const auto one = encode(message).size();
  message.claims = {claim, claim};
  EXPECT_EQ(encode(message).size() - one, 26u);
}

TEST(RosterMessages, gossip_with_an_invalid_flag_is_refused) {
  auto bytes = encode(with(RosterGossip{}));
  bytes[body_at] = std::byte{2};
  expect_corrupt(bytes, "gossip");
}

TEST(RosterMessages, a_layout_with_another_digest_is_refused) {
  auto bytes = encode(with(make_push()));
  bytes[body_at + 8] ^= std::byte{1};  // changes the layout's first averaging step
  expect_corrupt(bytes, "digest");
}

// Position of the first entry in a LayoutPush: the version (8 bytes) and the number of entries (2) precede it. An entry has id
// (16), incarnation (4), status, flags, gone_ms (4), counter (8), name …
constexpr size_t entry_at = body_at + 8 + 2;

TEST(RosterMessages, an_entry_of_an_unknown_status_is_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  bytes[entry_at + 20] = std::byte{5};
  expect_corrupt(bytes, "entry 0");
}

TEST(RosterMessages, an_entry_with_unknown_flags_is_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  bytes[entry_at + 21] = std::byte{4};
  expect_corrupt(bytes, "entry 0");
}

TEST(RosterMessages, a_proven_flag_on_a_live_peer_is_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  bytes[entry_at + 21] = std::byte{1};
  expect_corrupt(bytes, "entry 0");
}

TEST(RosterMessages, a_time_of_death_on_a_live_peer_is_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  overwrite(bytes, entry_at + 22, uint32_t{5});
  expect_corrupt(bytes, "entry 0");
}

TEST(RosterMessages, an_entry_with_the_id_zero_is_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  overwrite(bytes, entry_at, uint64_t{0});
  overwrite(bytes, entry_at + 8, uint64_t{0});
  expect_corrupt(bytes, "entry 0");
}

TEST(RosterMessages, an_incarnation_near_overflow_is_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  overwrite(bytes, entry_at + 16, ~uint32_t{0});
  expect_corrupt(bytes, "entry 0");
}

TEST(RosterMessages, an_entry_with_too_many_addresses_is_refused) {
  auto bytes = encode(with(LayoutPull{1}));
  bytes[entry_at + 26 + 8 + 4 + 2] = std::byte{200};  // the number of addresses, which follows the name "p1"
  expect_corrupt(bytes, "entry 0");
}

TEST(RosterMessages, a_bandwidth_that_is_no_number_is_refused) {
  auto message = with(LayoutPull{1});
  message.claims[0].entry.facts.bandwidth = std::numeric_limits<double>::infinity();
  expect_corrupt(encode(message), "entry 0");
}

TEST(RosterMessages, random_bytes_are_decoded_or_refused) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Random random(seed);
    Bytes bytes(random.below(200));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
    if (bytes.size() > 1) {
      bytes[0] = std::byte{1};
      bytes[1] = static_cast<std::byte>(random.below(10));
    }
    (void)decode_roster_message(bytes);
    // Random bytes fail early. A valid message with a few changed bytes is decoded further.
    const auto all = one_of_each();
    auto damaged = encode(all[random.below(all.size())]);
    for (uint64_t i = 1 + random.below(4); i > 0; --i)
      damaged[random.below(damaged.size())] = static_cast<std::byte>(random.next());
    const auto decoded = decode_roster_message(damaged);
    if (decoded.ok()) {
      const auto again = decode_roster_message(encode(*decoded));
      EXPECT_TRUE(again.ok() && *again == *decoded);
    }
  }
}

}  // namespace
}  // namespace unisono
