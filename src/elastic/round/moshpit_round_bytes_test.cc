// The bytes that a round sends (check A22 of docs/design/methods/moshpit.md), and the bytes that it holds in memory.

#include <gtest/gtest.h>

#include <deque>

#include "elastic/round/moshpit_round.h"
#include "elastic/round/round_test_support.h"

namespace unisono {
namespace {

using test::Fate;
using test::line_of;
using test::RoundGroup;
using test::RoundGroupOptions;

struct Item {
  uint32_t from, to;
  SharedBuffer message;
};
struct Wire final : RoundPort {
  void send(uint32_t rank, SharedMessage message, bool) override { queue->push_back({self, rank, message.whole()}); }
  bool credit(uint32_t) const override { return true; }
  std::deque<Item>* queue = nullptr;
  uint32_t self = 0;
};

// The model is 2·V·(G-1)/G bytes (V: bytes of the vector, G: members). Checks that each member sends at most 1 % more. The
// values do not matter, so all members share one memory.
void expect_bytes_of_the_model(size_t elements, uint32_t max_group) {
  constexpr uint32_t members = 16;
  const size_t model = 2 * elements * sizeof(float) / members * (members - 1);
  std::vector<float> x(elements, 1);
  const ChunkTable table(elements, max_group);
  std::deque<Item> queue;
  std::vector<Wire> wires(members);
  std::vector<ChunkValues> values(members, ChunkValues(table, SharedBuffer::copy(std::as_bytes(std::span(x)))));
  std::vector<std::vector<ChunkState>> states(members, std::vector<ChunkState>(table.chunks()));
  std::vector<std::unique_ptr<MoshpitRound>> rounds;
  for (uint32_t rank = 0; rank < members; ++rank) {
    wires[rank].queue = &queue;
    wires[rank].self = rank;
    RoundRequest request{.id = {1, 2},
                         .self = rank,
                         .members = line_of(members),
                         .chunk_counts = std::vector<uint32_t>(members, table.chunks() / members),
                         .table = table,
                         .times = {},
                         .contribute_timeout = 5 * second,
                         .round_timeout = 30 * second,
                         .contribute_codec = {},
                         .result_codec = {},
                         .values = &values[rank],
                         .states = states[rank]};
    auto made = MoshpitRound::make(std::move(request), wires[rank]);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    rounds.push_back(std::move(*made));
  }
  for (auto& round : rounds) round->start(0);
  for (; !queue.empty(); queue.pop_front()) {
    const auto item = queue.front();
    rounds[item.to]->message(item.from, item.message, 1);
  }
  for (const auto& round : rounds) {
    ASSERT_TRUE(round->ended());
    EXPECT_EQ(round->report().committed, table.chunks());
    EXPECT_GE(round->report().sent_bytes, model);
    EXPECT_LE(round->report().sent_bytes, model + model / 100);
    EXPECT_GE(round->report().received_bytes, model);
    EXPECT_EQ(round->report().ignored, 0u);
  }
  ::testing::Test::RecordProperty("sent_bytes", std::to_string(rounds[0]->report().sent_bytes));
}

TEST(MoshpitRoundA22, bytes_are_those_of_the_model) { expect_bytes_of_the_model(16 * 65536, 4); }
TEST(MoshpitRoundLongA22, bytes_are_those_of_the_model) { expect_bytes_of_the_model(16 << 20, 32); }

RoundGroupOptions large_chunks(uint32_t members, uint32_t chunks_each) {
  RoundGroupOptions options{.members = line_of(members),
                            .chunk_counts = std::vector<uint32_t>(members, chunks_each),
                            .table = ChunkTable(size_t{65536} * members * chunks_each, 4),
                            .x = {}};
  for (uint32_t rank = 0; rank < members; ++rank) options.x.emplace_back(options.table.elements(), static_cast<float>(rank));
  return options;
}

constexpr size_t message_bytes = 65536 * sizeof(float) + result_head_bytes;

// The third member is silent, so no chunk can be closed for two seconds. Until then, each other member may send only one window
// of contributions to an owner.
TEST(MoshpitRoundMemory, contributions_that_wait_are_a_window_of_each_member) {
  auto options = large_chunks(3, 9);
  options.absent = {false, false, true};
  RoundGroup group(std::move(options));
  group.start();
  group.run_until(1900 * millisecond);
  EXPECT_LE(group.held_bytes_max(), inflight_chunks * message_bytes);
  EXPECT_GE(group.held_bytes_max(), (inflight_chunks - 1) * message_bytes);
  group.run_until(20 * second);
  EXPECT_EQ(group.report(0).committed, 18u);
  EXPECT_LE(group.held_bytes_max(), (18 + inflight_chunks) * message_bytes);
}

TEST(MoshpitRoundMemory, at_most_results_and_a_window_of_each_member_are_held) {
  auto options = large_chunks(4, 8);
  options.delay_max = 30 * millisecond;
  options.credit_bytes = 1;
  RoundGroup group(std::move(options));
  group.run();
  EXPECT_EQ(group.report(0).committed, 32u);
  EXPECT_LE(group.held_bytes_max(), (32 + 4 * inflight_chunks) * message_bytes);
}

TEST(MoshpitRoundMemory, encoded_contributions_need_a_chunk_and_a_piece_of_each_besides) {
  auto options = large_chunks(4, 8);
  options.contribute = options.result =
      wire_codec({.kind = StepCodec::Kind::quantize, .bits = 8}, DType::f32, DType::f32, false);
  RoundGroup group(std::move(options));
  group.run();
  EXPECT_EQ(group.report(0).committed, 32u);
  EXPECT_LE(group.held_bytes_max(),
            (32 + 4 * inflight_chunks) * message_bytes / 3 + 2 * message_bytes + 4 * 4096 * sizeof(float));
}

TEST(MoshpitRoundMemory, after_the_end_only_results_are_held_until_they_are_released) {
  RoundGroup group(large_chunks(3, 6));
  group.run();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group.round(rank).held_bytes(), 18 * message_bytes);
    group.round(rank).release_results();
    EXPECT_EQ(group.round(rank).held_bytes(), 0u);
  }
}

TEST(MoshpitRoundMemory, contributions_are_freed_when_a_round_is_aborted) {
  auto options = large_chunks(3, 6);
  options.absent = {false, false, true};
  RoundGroup group(std::move(options));
  group.start();
  group.run_until(second);
  EXPECT_GT(group.round(0).held_bytes(), message_bytes);
  group.round(0).abandon(group.now());
  EXPECT_EQ(group.round(0).held_bytes(), 0u);
}

}  // namespace
}  // namespace unisono
