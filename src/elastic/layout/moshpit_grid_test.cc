// Check A10 of docs/design/methods/moshpit.md: the dimensions of grids, and that each cell of a fitted grid holds one or two
// peers.
#include "elastic/layout/moshpit_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "base/random.h"

namespace unisono {
namespace {

using Dims = std::vector<uint32_t>;

MoshpitGrid fitted(uint32_t peers, uint32_t max_group) {
  auto grid = MoshpitGrid::make(GridKind::fitted, fitted_dims(peers, max_group), peers);
  EXPECT_TRUE(grid.ok()) << peers << ": " << grid.status().to_string();
  return std::move(grid).value();
}

void expect_invalid(GridKind kind, Dims dims, uint32_t peers, const std::string& why) {
  const auto grid = MoshpitGrid::make(kind, std::move(dims), peers);
  ASSERT_FALSE(grid.ok());
  EXPECT_EQ(grid.status().code(), Code::invalid);
  EXPECT_NE(grid.status().message().find(why), std::string::npos) << grid.status().message();
}

// Checks that each cell has one or two peers, and that each line has at most `line_extras_max` cells with two peers.
void expect_well_filled(const MoshpitGrid& grid, uint32_t line_extras_max) {
  std::vector<uint32_t> in_cell(grid.cells());
  for (uint32_t rank = 0; rank < grid.peers(); ++rank) ++in_cell[grid.cell_of(rank)];
  for (const auto count : in_cell) ASSERT_TRUE(count == 1 || count == 2) << grid.peers() << " peers";
  for (uint32_t axis = 0; axis < grid.axes(); ++axis) {
    std::vector<uint32_t> extras(grid.line_count(axis));
    for (uint32_t rank = grid.cells(); rank < grid.peers(); ++rank) ++extras[grid.line(grid.cell_of(rank), axis)];
    ASSERT_LE(*std::max_element(extras.begin(), extras.end()), line_extras_max) << grid.peers() << " peers, axis " << axis;
  }
}

TEST(FittedDims, are_the_documented_ones) {
  const struct {
    uint32_t peers;
    Dims dims;
    uint32_t extras;
  } cases[] = {{5, {5}, 0},        {33, {6, 5}, 3},      {37, {6, 6}, 1},     {64, {8, 8}, 0},         {512, {23, 22}, 6},
               {900, {30, 30}, 0}, {1023, {32, 31}, 31}, {1024, {32, 32}, 0}, {1025, {10, 10, 10}, 25}};
  for (const auto& one : cases) {
    EXPECT_EQ(fitted_dims(one.peers, 32), one.dims) << one.peers;
    EXPECT_EQ(one.peers - fitted(one.peers, 32).cells(), one.extras);
  }
}

TEST(FittedDims, of_a_few_peers_are_one_group) {
  EXPECT_EQ(fitted_dims(1, 4), Dims{1});
  EXPECT_EQ(fitted_dims(4, 4), Dims{4});
  EXPECT_EQ(fitted_dims(5, 4), (Dims{2, 2}));
  EXPECT_EQ(fitted_dims(6, 4), (Dims{3, 2}));
}

TEST(FittedGrid, has_no_empty_cell_and_at_most_two_peers_in_one_for_every_number_of_peers) {
  for (uint32_t peers = 2; peers <= 5000; ++peers) {
    const auto grid = fitted(peers, 32);
    ASSERT_NO_FATAL_FAILURE(expect_well_filled(grid, grid.axes() <= 2 ? 1 : 2));
  }
}

TEST(FittedGrid, is_filled_as_well_with_small_groups) {
  for (const uint32_t max_group : {4u, 8u, 16u}) {
    for (uint32_t peers = 2; peers <= max_group * max_group * max_group; ++peers) {
      const auto grid = fitted(peers, max_group);
      for (const auto size : grid.dims()) ASSERT_LE(size, max_group);
      ASSERT_NO_FATAL_FAILURE(expect_well_filled(grid, grid.axes() <= 2 ? 1 : 2));
    }
  }
}

TEST(FittedGrid, puts_extras_where_the_rule_says) {
  const auto grid = MoshpitGrid::make(GridKind::fitted, {3, 2, 2}, 16);
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->cell_of(11), 11u);
  // Extra peer j has the coordinates (j / 2, j mod 2, their sum mod 2). The dimensions are (3, 2, 2).
  const uint32_t expected[] = {0, 3, 5, 6};
  for (uint32_t extra = 0; extra < 4; ++extra) EXPECT_EQ(grid->cell_of(12 + extra), expected[extra]);
}

TEST(MoshpitGrid, numbers_lines_in_the_order_of_the_other_coordinates) {
  const auto grid = MoshpitGrid::make(GridKind::fitted, {2, 3, 4}, 24);
  ASSERT_TRUE(grid.ok());
  for (uint32_t a = 0; a < 2; ++a) {
    for (uint32_t b = 0; b < 3; ++b) {
      for (uint32_t c = 0; c < 4; ++c) {
        const auto cell = (a * 3 + b) * 4 + c;
        EXPECT_EQ((Dims{grid->position(cell, 0), grid->position(cell, 1), grid->position(cell, 2)}), (Dims{a, b, c}));
        EXPECT_EQ((Dims{grid->line(cell, 0), grid->line(cell, 1), grid->line(cell, 2)}),
                  (Dims{b * 4 + c, a * 4 + c, a * 3 + b}));
      }
    }
  }
  EXPECT_EQ(grid->line_count(0), 12u);
  EXPECT_EQ(grid->line_count(1), 8u);
  EXPECT_EQ(grid->line_count(2), 6u);
}

TEST(MoshpitGrid, lists_the_members_of_a_line_by_position_and_then_rank) {
  for (const uint32_t peers : {7u, 37u, 100u, 1025u}) {
    const auto grid = fitted(peers, peers == 7 ? 4 : 32);
    for (uint32_t axis = 0; axis < grid.axes(); ++axis) {
      uint32_t listed = 0;
      for (uint32_t line = 0; line < grid.line_count(axis); ++line) {
        std::vector<uint32_t> expected;
        for (uint32_t rank = 0; rank < peers; ++rank) {
          if (grid.line(grid.cell_of(rank), axis) == line) expected.push_back(rank);
        }
        std::stable_sort(expected.begin(), expected.end(), [&](uint32_t a, uint32_t b) {
          return grid.position(grid.cell_of(a), axis) < grid.position(grid.cell_of(b), axis);
        });
        ASSERT_EQ(grid.line_members(axis, line), expected) << peers << " peers, axis " << axis << ", line " << line;
        listed += static_cast<uint32_t>(expected.size());
      }
      EXPECT_EQ(listed, peers);
      EXPECT_TRUE(grid.line_members(axis, grid.line_count(axis)).empty());
    }
  }
}

TEST(MoshpitGrid, assigns_unlisted_peers_a_cell_by_their_id) {
  const auto grid = fitted(37, 32);
  std::set<uint32_t> cells;
  for (uint64_t pid = 0; pid < 1000; ++pid) {
    ASSERT_EQ(grid.cell_of_unlisted(pid), mix64(pid) % 36);
    cells.insert(grid.cell_of_unlisted(pid));
  }
  EXPECT_EQ(cells.size(), 36u);
}

TEST(PublishedGrid, is_a_cube_with_empty_cells) {
  EXPECT_EQ(published_dims(1, 32), Dims{32});
  EXPECT_EQ(published_dims(512, 32), (Dims{32, 32}));
  EXPECT_EQ(published_dims(512, 8), (Dims{8, 8, 8}));
  EXPECT_EQ(published_dims(513, 8), (Dims{8, 8, 8, 8}));
  const auto grid = MoshpitGrid::make(GridKind::published, {3, 3}, 5);
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->cell_of(4), 4u);
  EXPECT_EQ(grid->line_members(0, 0), (Dims{0, 3}));
  EXPECT_EQ(grid->line_members(0, 2), (Dims{2}));
  EXPECT_EQ(grid->line_members(1, 1), (Dims{3, 4}));
  EXPECT_TRUE(grid->line_members(1, 2).empty());
}

TEST(MoshpitGrid, refuses_no_axis) { expect_invalid(GridKind::fitted, {}, 5, "0 axes"); }
TEST(MoshpitGrid, refuses_more_axes_than_any_grid_needs) { expect_invalid(GridKind::fitted, Dims(21, 1), 1, "21 axes"); }
TEST(MoshpitGrid, refuses_an_axis_without_cells) { expect_invalid(GridKind::fitted, {4, 0}, 5, "4x0"); }
TEST(MoshpitGrid, refuses_zero_peers) { expect_invalid(GridKind::published, {4}, 0, "no peers"); }
TEST(MoshpitGrid, refuses_more_cells_than_a_large_grid_has) {
  expect_invalid(GridKind::published, {1024, 1025}, 5, "more than 1048576 cells");
}
TEST(MoshpitGrid, refuses_more_cells_than_can_be_counted) {
  expect_invalid(GridKind::published, {1u << 20, 1u << 20, 1u << 24}, 5, "more than 1048576 cells");
}
TEST(MoshpitGrid, refuses_a_fitted_grid_with_empty_cells) { expect_invalid(GridKind::fitted, {3, 2}, 5, "6 cells"); }
TEST(MoshpitGrid, refuses_more_extras_than_have_a_cell_each) { expect_invalid(GridKind::fitted, {2, 3}, 9, "3 more"); }
TEST(MoshpitGrid, refuses_keys_on_axes_that_differ) { expect_invalid(GridKind::chunk_keys, {3, 2}, 5, "axes of one length"); }
TEST(MoshpitGrid, refuses_keys_for_groups_of_one) { expect_invalid(GridKind::chunk_keys, {1, 1}, 1, "2 to 128"); }
TEST(MoshpitGrid, refuses_keys_for_groups_of_more_than_any_has) {
  expect_invalid(GridKind::chunk_keys, {129, 129}, 5, "2 to 128");
}
TEST(MoshpitGrid, refuses_too_few_keys) { expect_invalid(GridKind::chunk_keys, {2, 2}, 5, "4 cells"); }
TEST(MoshpitGrid, refuses_a_published_grid_that_is_too_small) { expect_invalid(GridKind::published, {2, 2}, 5, "4 cells"); }

}  // namespace
}  // namespace unisono
