#include "group/lifecycle/reform_messages.h"

#include <gtest/gtest.h>

#include "testing/peer_ids.h"

namespace unisono {
namespace {

using test::make_roster;
using test::member;

const EpochName base{3, 0x1234567890ABCDEF};

Propose make_propose() {
  return {.round = 2,
          .waits_ms = 2000,
          .departures = {{1, Departure::Cause::silent, 0, 200}, {3, Departure::Cause::lost, 2, 0}},
          .joiners = {member(9)}};
}

Bytes bytes_of(auto body) { return encode(ReformMessage{base, std::move(body)}); }

void expect_corrupt(const Bytes& bytes, const std::string& why) {
  const auto decoded = decode_reform(bytes);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), Code::corrupt);
  EXPECT_NE(decoded.status().message().find(why), std::string::npos) << decoded.status().message();
}

TEST(ReformMessages, propose_survives_encoding) {
  const auto decoded = decode_reform(bytes_of(make_propose()));
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded->base, base);
  const auto& propose = std::get<Propose>(decoded->body);
  EXPECT_EQ(propose.round, 2u);
  EXPECT_EQ(propose.waits_ms, 2000u);
  EXPECT_EQ(propose.departures, make_propose().departures);
  EXPECT_EQ(propose.joiners, make_propose().joiners);
}

TEST(ReformMessages, commit_survives_encoding) {
  const auto decoded = decode_reform(bytes_of(Commit{make_roster(3, 4), make_propose().departures}));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<Commit>(decoded->body).roster, make_roster(3, 4));
  EXPECT_EQ(std::get<Commit>(decoded->body).departures, make_propose().departures);
}

TEST(ReformMessages, removed_survives_encoding_and_names_some_removers) {
  std::vector<Rank> many(100);
  for (uint32_t i = 0; i < many.size(); ++i) many[i] = i;
  const auto decoded = decode_reform(bytes_of(Removed{4, make_propose().departures[0], many, 100, 77}));
  ASSERT_TRUE(decoded.ok());
  const auto& removed = std::get<Removed>(decoded->body);
  EXPECT_EQ(removed.epoch, 4u);
  EXPECT_EQ(removed.removers.size(), 16u);
  EXPECT_EQ(removed.survivors, 100u);
  EXPECT_EQ(removed.age_ms, 77u);
}

TEST(ReformMessages, truncated_messages_are_refused) {
  for (const Bytes& whole : {bytes_of(make_propose()), bytes_of(Commit{make_roster(2, 4), {}}),
                             bytes_of(Removed{4, make_propose().departures[0], {0, 2}, 2, 0})}) {
    for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(decode_reform(ByteView(whole).first(size)).ok()) << size;
  }
}

TEST(ReformMessages, messages_with_extra_bytes_are_refused) {
  Bytes bytes = bytes_of(make_propose());
  bytes.push_back(std::byte{0});
  expect_corrupt(bytes, "too many");
}

TEST(ReformMessages, messages_of_another_version_are_refused) {
  Bytes bytes = bytes_of(make_propose());
  bytes[0] = std::byte{9};
  expect_corrupt(bytes, "version 9");
}

TEST(ReformMessages, messages_of_an_unknown_kind_are_refused) {
  Bytes bytes = bytes_of(make_propose());
  for (const uint8_t kind : {0, 4, 255}) {
    bytes[1] = std::byte{kind};
    expect_corrupt(bytes, "kind");
  }
}

TEST(ReformMessages, messages_with_departures_out_of_order_are_refused) {
  Propose propose = make_propose();
  std::swap(propose.departures[0], propose.departures[1]);
  expect_corrupt(bytes_of(propose), "departures");
}

TEST(ReformMessages, messages_with_one_departure_twice_are_refused) {
  Propose propose = make_propose();
  propose.departures[1].rank = propose.departures[0].rank;
  expect_corrupt(bytes_of(propose), "departures");
}

TEST(ReformMessages, messages_with_a_rank_beyond_any_world_are_refused) {
  Propose propose = make_propose();
  propose.departures[1].rank = world_size_max;
  expect_corrupt(bytes_of(propose), "departures");
  expect_corrupt(bytes_of(Removed{4, {}, {world_size_max}, 1, 0}), "remover 0");
}

TEST(ReformMessages, messages_with_an_unknown_cause_are_refused) {
  Propose propose = make_propose();
  propose.departures[0].cause = static_cast<Departure::Cause>(5);
  expect_corrupt(bytes_of(propose), "departures");
}

TEST(ReformMessages, messages_with_too_many_joiners_are_refused) {
  Propose propose = make_propose();
  propose.joiners.assign(reform_joiners_max + 1, member(9));
  expect_corrupt(bytes_of(propose), "number of joiners");
}

TEST(ReformMessages, messages_with_a_malformed_joiner_are_refused) {
  Propose propose = make_propose();
  propose.joiners[0].host = std::string(host_bytes_max + 1, 'h');
  expect_corrupt(bytes_of(propose), "joiner 0");
}

TEST(ReformMessages, messages_with_a_malformed_roster_are_refused) {
  Commit commit{make_roster(3, 4), {}};
  commit.roster.members[1].rank = 7;
  expect_corrupt(bytes_of(commit), "says rank 7");
}

TEST(Departure, to_string_names_the_cause) {
  EXPECT_EQ(to_string(Departure{1, Departure::Cause::silent, 0, 200}), "it did not answer rank 0 for 200 ms");
  EXPECT_EQ(to_string(Departure{1, Departure::Cause::lost, 2, 0}), "rank 2 lost the link to it");
  EXPECT_EQ(to_string(Departure{1, Departure::Cause::left, 2, 0}), "it had continued the group without rank 2");
  EXPECT_EQ(to_string(Departure{1, Departure::Cause::dead, 2, 0}), "its process has ended or has left, as rank 2 knows");
  EXPECT_EQ(to_string(Departure{1, Departure::Cause::unreachable, 2, 9000}), "rank 2 could not reach it for 9000 ms");
}

}  // namespace
}  // namespace unisono
