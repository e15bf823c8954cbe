#include "elastic/round/round_owner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace unisono {
namespace {

// Rank 1 of three members owns chunks 1 … 100 of 101 chunks, which have 256 elements each.
struct Owner {
  Owner() : states(101) {
    const std::vector<float> x(101 * 256, 1.f);
    request.id = {1, 2};
    request.self = 1;
    for (uint32_t rank = 0; rank < 3; ++rank) request.members.push_back({.position = rank, .in_layout = true});
    request.chunk_counts = {1, 100, 0};
    request.table = ChunkTable(x.size(), 32);
    request.line_complete = true;
    values = ChunkValues(request.table, SharedBuffer::copy(std::as_bytes(std::span(x))));
    request.values = &values;
    request.states = states;
    format = {.group = request.id, .members = 3, .table = request.table, .contribute = {}, .result = {}};
  }
  bool take(RoundOwner& owner, uint32_t chunk, uint32_t author, double weight = 1, float last = 0) {
    const Contribution head{.chunk = chunk, .author = author, .weight = weight, .full = true};
    const auto message = contribution_message(format, head);
    if (weight > 0) {
      auto* const x = reinterpret_cast<float*>(const_cast<std::byte*>(message.data()) + contribution_head_bytes);
      std::fill_n(x, 256, 10.f * static_cast<float>(author));
      x[255] += last;
    }
    return owner.take(head, message);
  }
  ChunkValues values;
  std::vector<ChunkState> states;
  RoundRequest request;
  RoundFormat format;
};

TEST(RoundOwner, a_chunk_is_closed_when_all_have_contributed) {
  Owner setup;
  RoundOwner owner(setup.request, setup.format);
  ChunkResult result;
  EXPECT_TRUE(setup.take(owner, 1, 0));
  EXPECT_FALSE(owner.close_next({}, result));
  EXPECT_EQ(owner.pending(), RankSet(0b100));
  EXPECT_TRUE(setup.take(owner, 1, 2));
  const auto message = owner.close_next({}, result);
  ASSERT_TRUE(message);
  EXPECT_EQ(result.contributors, RankSet(0b111));
  EXPECT_EQ(result.total, 3);
  EXPECT_TRUE(result.full);
  EXPECT_EQ(reinterpret_cast<const float*>(result_elements(message).data())[0], 7);
  EXPECT_EQ(owner.next_chunk(), 2u);
}

TEST(RoundOwner, an_excused_member_is_not_waited_for_but_its_contribution_counts) {
  Owner setup;
  RoundOwner owner(setup.request, setup.format);
  ChunkResult result;
  EXPECT_TRUE(setup.take(owner, 1, 2));
  EXPECT_TRUE(owner.close_next(0b101, result));
  EXPECT_EQ(result.contributors, RankSet(0b110));
  EXPECT_FALSE(result.full);
}

TEST(RoundOwner, a_chunk_with_only_the_owners_values_is_void) {
  Owner setup;
  RoundOwner owner(setup.request, setup.format);
  ChunkResult result;
  const auto message = owner.close_next(0b101, result);
  EXPECT_EQ(message.size(), result_head_bytes);
  EXPECT_TRUE(result.is_void());
  EXPECT_FALSE(result.full);
}

TEST(RoundOwner, a_contribution_that_is_not_finite_is_refused_by_name_and_the_others_are_averaged) {
  constexpr float infinite = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  Owner setup;
  RoundOwner owner(setup.request, setup.format);
  for (const float bad : {nan, infinite, -infinite}) {
    const auto chunk = owner.next_chunk();
    EXPECT_TRUE(setup.take(owner, chunk, 0, 1, bad));
    EXPECT_TRUE(setup.take(owner, chunk, 2, 3));
    ChunkResult result;
    const auto message = owner.close_next({}, result);
    ASSERT_TRUE(message);
    RoundMessage read;
    ASSERT_TRUE(read_round_message(setup.format, message.view(), read).ok());
    for (const auto& head : {result, std::get<ChunkResult>(read)}) {
      EXPECT_EQ(head.contributors, RankSet(0b110)) << bad;
      EXPECT_EQ(head.refused, RankSet(0b001)) << bad;
      EXPECT_EQ(head.total, 4);
      EXPECT_FALSE(head.full);
      EXPECT_TRUE(std::isfinite(head.variance));
    }
    const auto* const mean = reinterpret_cast<const float*>(result_elements(message).data());
    for (size_t i = 0; i < 256; ++i) ASSERT_EQ(mean[i], (1 + 3 * 20) / 4.f) << i;
  }
}

TEST(RoundOwner, the_largest_finite_values_and_weights_are_not_refused) {
  Owner setup;
  RoundOwner owner(setup.request, setup.format);
  ChunkResult result;
  for (const uint32_t author : {0u, 2u})
    EXPECT_TRUE(setup.take(owner, 1, author, contribution_weight_max, std::numeric_limits<float>::max()));
  const auto message = owner.close_next({}, result);
  EXPECT_EQ(result.contributors, RankSet(0b111));
  EXPECT_EQ(result.refused, RankSet());
  EXPECT_EQ(reinterpret_cast<const float*>(result_elements(message).data())[255], std::numeric_limits<float>::max());
}

TEST(RoundOwner, repeated_late_and_misdirected_contributions_are_refused) {
  Owner setup;
  RoundOwner owner(setup.request, setup.format);
  ChunkResult result;
  EXPECT_TRUE(setup.take(owner, 1, 0));
  EXPECT_FALSE(setup.take(owner, 1, 0));
  EXPECT_FALSE(setup.take(owner, 0, 2)) << "rank 0 owns it";
  EXPECT_FALSE(setup.take(owner, 2, 1)) << "its own";
  EXPECT_TRUE(owner.close_next(0b100, result));
  EXPECT_FALSE(setup.take(owner, 1, 2)) << "closed";
}

TEST(RoundOwner, contributions_beyond_the_window_are_refused) {
  Owner setup;
  RoundOwner owner(setup.request, setup.format);
  const uint32_t window = setup.format.table.window();
  EXPECT_EQ(window, 64u);
  EXPECT_TRUE(setup.take(owner, window, 0));
  EXPECT_FALSE(setup.take(owner, window + 1, 0));
  ChunkResult result;
  EXPECT_TRUE(owner.close_next(0b101, result));
  EXPECT_TRUE(setup.take(owner, window + 1, 0));
}

TEST(RoundOwner, held_contributions_are_freed_as_chunks_close) {
  Owner setup;
  RoundOwner owner(setup.request, setup.format);
  const size_t bytes = contribution_head_bytes + 256 * sizeof(float);
  EXPECT_TRUE(setup.take(owner, 1, 0));
  EXPECT_TRUE(setup.take(owner, 2, 0, 0));
  EXPECT_EQ(owner.held_bytes(), bytes + contribution_head_bytes);
  ChunkResult result;
  EXPECT_TRUE(owner.close_next(0b100, result));
  EXPECT_EQ(owner.held_bytes(), contribution_head_bytes);
  while (!owner.done()) EXPECT_TRUE(owner.close_next(RankSet().set(), result));
  EXPECT_EQ(owner.held_bytes(), 0u);
  EXPECT_EQ(owner.pending(), RankSet());
  EXPECT_FALSE(owner.close_next(RankSet().set(), result));
}

}  // namespace
}  // namespace unisono
