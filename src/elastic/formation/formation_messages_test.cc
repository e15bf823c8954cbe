#include "elastic/formation/formation_messages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/concat.h"
#include "base/random.h"
#include "elastic/layout/formation_view_test_support.h"

namespace unisono {
namespace {

using namespace formation;

const SlotName slot{3, 0xD16E57, 7, 1, 4};

GroupDescriptor group_of(uint32_t members) {
  GroupDescriptor group{.id = {1, 2},
                        .slot = slot,
                        .members = {},
                        .chunk_counts = {},
                        .schema = 9,
                        .line_complete = true,
                        .missing = {test::peer_id(90), test::peer_id(91)},
                        .highest_opened = 8};
  for (uint32_t i = 0; i < members; ++i) {
    group.members.push_back({test::peer_id(i + 1), i, true, i > 0, i == 1 ? ElasticRole::reducer : ElasticRole::peer, 1e6 + i});
    group.chunk_counts.push_back(10 + i);
  }
  return group;
}

Register registration() {
  return {.slot = slot,
          .cell = 12,
          .position = 3,
          .weighted = true,
          .pre = true,
          .in_layout = true,
          .role = ElasticRole::client,
          .bandwidth = 12.5e6,
          .schema = 77,
          .attempt = 5,
          .missing = {test::peer_id(1), test::peer_id(2)}};
}

std::vector<FormationMessage> one_of_each() {
  const auto layout = test::layout_of(test::peer_ids(9));
  return {registration(),
          Pending{slot, 5, 8, 30000},
          Descriptor{group_of(3)},
          DescriptorAck{{3, 4}},
          Alone{slot, true, {test::peer_id(4)}, 8},
          Closed{slot, 8, 1234},
          Full{slot, true, 8},
          StaleLayout{slot, 8, layout},
          NeedLayout{slot},
          LayoutReply{layout},
          Late{slot},
          Decline{{5, 6}, slot},
          GetDescriptor{{7, 8}},
          Withdraw{slot, 6}};
}

std::string why(const FormationMessage& message) {
  const auto decoded = decode_formation(encode(message));
  if (decoded.ok()) return "accepted";
  EXPECT_EQ(decoded.status().code(), Code::corrupt);
  return decoded.status().message();
}

TEST(FormationMessages, every_kind_survives_encoding) {
  const auto messages = one_of_each();
  ASSERT_EQ(messages.size(), std::variant_size_v<FormationMessage>);
  for (const auto& message : messages) {
    const auto bytes = encode(message);
    EXPECT_EQ(static_cast<ElasticChannel>(bytes[0]), ElasticChannel::formation);
    const auto decoded = decode_formation(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_TRUE(*decoded == message) << "kind " << message.index() + 1;
  }
}

TEST(FormationMessages, every_cut_and_every_byte_too_many_is_refused) {
  for (const auto& message : one_of_each()) {
    auto bytes = encode(message);
    for (size_t size = 0; size < bytes.size(); ++size)
      EXPECT_FALSE(decode_formation(ByteView(bytes).first(size)).ok()) << "kind " << message.index() + 1 << " cut to " << size;
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decode_formation(bytes).ok()) << "kind " << message.index() + 1;
  }
}

TEST(FormationMessages, random_bytes_never_do_harm) {
  Random random(4);
  auto messages = one_of_each();
  for (int i = 0; i < 20000; ++i) {
    auto bytes = encode(messages[random.below(messages.size())]);
    for (uint64_t hits = 1 + random.below(4); hits > 0; --hits)
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.below(256));
    const auto decoded = decode_formation(bytes);
    if (decoded.ok()) {
      EXPECT_EQ(encode(*decoded), bytes) << "seed 4, case " << i;
    }
  }
}

TEST(FormationMessages, each_kind_is_handled_by_coordinator_or_seeker) {
  EXPECT_TRUE(for_coordinator(registration()));
  EXPECT_TRUE(for_coordinator(Withdraw{slot, 1}));
  EXPECT_TRUE(for_coordinator(Late{slot}));
  EXPECT_FALSE(for_coordinator(Pending{slot, 1, 1, 1}));
  EXPECT_FALSE(for_coordinator(Decline{{1, 1}, slot}));
}

TEST(FormationMessages, another_channel_is_refused) {
  auto bytes = encode(NeedLayout{slot});
  bytes[0] = std::byte{1};
  EXPECT_EQ(decode_formation(bytes).status().message(), "formation message: channel 1");
}

TEST(FormationMessages, another_version_is_refused) {
  auto bytes = encode(NeedLayout{slot});
  bytes[1] = std::byte{9};
  EXPECT_EQ(decode_formation(bytes).status().message(), "formation message: version 9");
}

TEST(FormationMessages, kinds_that_do_not_exist_are_refused) {
  auto bytes = encode(NeedLayout{slot});
  for (const int kind : {0, 15, 255}) {
    bytes[2] = static_cast<std::byte>(kind);
    EXPECT_EQ(decode_formation(bytes).status().message(), concat("formation message: kind ", kind));
  }
}

TEST(FormationMessages, an_impossible_step_is_refused) {
  auto far = slot;
  far.step = steps_max;
  EXPECT_EQ(why(Late{far}), "formation message: late: slot");
  EXPECT_EQ(why(Closed{slot, steps_max + 1, 0}), "formation message: closed: opened averaging steps");
}

TEST(FormationMessages, an_impossible_round_is_refused) {
  auto far = slot;
  far.round = rounds_max;
  EXPECT_EQ(why(Withdraw{far, 1}), "formation message: withdraw: slot");
}

TEST(FormationMessages, a_bandwidth_that_is_no_number_is_refused) {
  auto request = registration();
  for (const double bandwidth : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    request.bandwidth = bandwidth;
    EXPECT_EQ(why(request), "formation message: register: bandwidth");
  }
}

TEST(FormationMessages, an_unknown_role_is_refused) {
  auto request = registration();
  request.role = static_cast<ElasticRole>(3);
  EXPECT_EQ(why(request), "formation message: register: role");
}

TEST(FormationMessages, a_peer_missing_twice_is_refused) {
  auto request = registration();
  request.missing[1] = request.missing[0];
  EXPECT_EQ(why(request), "formation message: register: missing");
}

TEST(FormationMessages, more_missing_peers_than_a_roster_has_are_refused) {
  auto request = registration();
  request.missing = test::peer_ids(roster_peers_max + 1);
  EXPECT_EQ(why(request), "formation message: register: missing");
}

TEST(FormationMessages, a_count_without_its_peers_reserves_nothing) {
  auto request = registration();
  request.missing.clear();
  auto bytes = encode(request);
  bytes[bytes.size() - 3] = std::byte{0x0F};  // the count now says 3840 peers, but no peers follow
  EXPECT_EQ(decode_formation(bytes).status().message(), "formation message: register: missing");
}

TEST(FormationMessages, a_group_of_one_is_refused) {
  EXPECT_EQ(why(Descriptor{group_of(1)}), "formation message: descriptor: number of members");
}

TEST(FormationMessages, a_group_of_more_than_two_full_ones_is_refused) {
  EXPECT_EQ(why(Descriptor{group_of(group_members_max)}), "accepted");
  EXPECT_EQ(why(Descriptor{group_of(group_members_max + 1)}), "formation message: descriptor: number of members");
}

TEST(FormationMessages, a_member_listed_twice_is_refused) {
  auto group = group_of(3);
  group.members[2].id = group.members[0].id;
  EXPECT_EQ(why(Descriptor{group}), "formation message: descriptor: rank 2");
}

TEST(FormationMessages, a_member_that_owns_more_chunks_than_there_can_be_is_refused) {
  auto group = group_of(3);
  group.chunk_counts[1] = group_chunks_max + 1;
  EXPECT_EQ(why(Descriptor{group}), "formation message: descriptor: rank 1");
}

TEST(FormationMessages, a34_a_client_that_owns_chunks_is_refused) {
  auto group = group_of(3);
  group.members[2].role = ElasticRole::client;
  EXPECT_EQ(why(Descriptor{group}), "formation message: descriptor: rank 2 is a client and owns chunks");
  group.chunk_counts[2] = 0;
  EXPECT_EQ(why(Descriptor{group}), "accepted");
}

TEST(FormationMessages, a_layout_with_a_wrong_digest_is_refused) {
  auto layout = test::layout_of(test::peer_ids(9));
  ++layout.digest;
  EXPECT_NE(why(LayoutReply{layout}).find("digest"), std::string::npos);
  EXPECT_NE(why(StaleLayout{slot, 1, layout}).find("digest"), std::string::npos);
}

TEST(GroupDescriptor, returns_the_rank_of_a_peer) {
  const auto group = group_of(3);
  EXPECT_EQ(group.rank_of(test::peer_id(2)), 1u);
  EXPECT_EQ(group.rank_of(test::peer_id(99)), 3u);
}

}  // namespace
}  // namespace unisono
