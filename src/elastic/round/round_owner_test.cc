#include "elastic/round/round_owner.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

// Rank 1 of three owns chunks 1 … 100 of 101 small ones.
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
  bool take(RoundOwner& owner, uint32_t chunk, uint32_t author, double weight = 1) {
    const Contribution head{.chunk = chunk, .author = author, .weight = weight, .full = true};
    const auto message = contribution_message(format, head);
    if (weight > 0)
      std::fill_n(reinterpret_cast<float*>(const_cast<std::byte*>(message.data()) + contribution_head_bytes), 256,
                  10.f * static_cast<float>(author));
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
  EXPECT_EQ(owner.owing(), RankSet(0b100));
  EXPECT_TRUE(setup.take(owner, 1, 2));
  const auto message = owner.close_next({}, result);
  ASSERT_TRUE(message);
  EXPECT_EQ(result.contributors, RankSet(0b111));
  EXPECT_EQ(result.total, 3);
  EXPECT_TRUE(result.full);
  EXPECT_EQ(reinterpret_cast<const float*>(result_elements(message).data())[0], 7);
  EXPECT_EQ(owner.next_chunk(), 2u);
}

TEST(RoundOwner, who_is_excused_is_not_waited_for_but_counts_if_it_came) {
  Owner setup;
  RoundOwner owner(setup.request, setup.format);
  ChunkResult result;
  EXPECT_TRUE(setup.take(owner, 1, 2));
  EXPECT_TRUE(owner.close_next(0b101, result));
  EXPECT_EQ(result.contributors, RankSet(0b110));
  EXPECT_FALSE(result.full);
}

TEST(RoundOwner, alone_with_its_own_values_it_makes_no_step) {
  Owner setup;
  RoundOwner owner(setup.request, setup.format);
  ChunkResult result;
  const auto message = owner.close_next(0b101, result);
  EXPECT_EQ(message.size(), result_head_bytes);
  EXPECT_TRUE(result.is_void());
  EXPECT_FALSE(result.full);
}

TEST(RoundOwner, what_comes_twice_late_or_for_others_is_refused) {
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

TEST(RoundOwner, what_is_beyond_the_window_is_refused) {
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

TEST(RoundOwner, what_is_held_is_freed_as_chunks_are_closed) {
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
  EXPECT_EQ(owner.owing(), RankSet());
  EXPECT_FALSE(owner.close_next(RankSet().set(), result));
}

}  // namespace
}  // namespace unisono
