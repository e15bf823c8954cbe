#include "cli/common/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace unisono::cli {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

TEST(Plot, ticks_are_round_numbers) {
  EXPECT_DOUBLE_EQ(tick_distance(6, 6), 1);
  EXPECT_DOUBLE_EQ(tick_distance(1200, 6), 200);
  EXPECT_DOUBLE_EQ(tick_distance(0.037, 6), 0.005);
}

TEST(Plot, leaves_out_what_cannot_be_drawn_and_escapes_names) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string drawn = svg({{.title = "a < b & c",
                                  .x_label = "x",
                                  .y_label = "y",
                                  .series = {{.name = "s", .colour = "red", .points = {{1, 2}, {2, nan}, {3, 4}}},
                                             {.name = "empty", .colour = "red", .points = {}}}}});
  EXPECT_EQ(drawn.find("nan"), std::string::npos);
  EXPECT_NE(drawn.find("a &lt; b &amp; c"), std::string::npos);
}

Panel logarithmic(std::vector<Point> points, std::vector<double> upper = {}) {
  return {.title = "t",
          .x_label = "x",
          .y_label = "y",
          .series = {{.name = "s", .colour = "red", .points = std::move(points), .upper = std::move(upper)}},
          .x_axis = Axis::bytes,
          .y_axis = Axis::decades,
          .legend = Corner::upper_left};
}

TEST(Plot, logarithmic_axes_have_powers_as_ticks) {
  const auto drawn = svg({logarithmic({{1024, 10}, {65536, 100}, {1 << 20, 1000}})});
  for (const char* label : {">1K<", ">64K<", ">1M<", ">10<", ">100<", ">1000<"})
    EXPECT_EQ(count(drawn, label), 1u) << label << drawn;
}

TEST(Plot, equal_factors_are_equal_distances_on_a_logarithmic_axis) {
  const auto drawn = svg({logarithmic({{1, 1}, {2, 10}, {4, 100}})});
  // The frame reaches from 62 to 602 in x and from 40 to 368 in y, so x = 2 and y = 10 are in its middle.
  EXPECT_NE(drawn.find("points='62.0,368.0 332.0,204.0 602.0,40.0 '"), std::string::npos) << drawn;
}

TEST(Plot, values_that_a_logarithmic_axis_cannot_show_are_left_out) {
  const auto drawn = svg({logarithmic({{0, 1}, {1, 0}, {1, 1}, {2, -5}, {4, 100}})});
  EXPECT_NE(drawn.find("points='62.0,368.0 602.0,40.0 '"), std::string::npos) << drawn;
  EXPECT_EQ(drawn.find("nan"), std::string::npos);
  EXPECT_EQ(drawn.find("inf"), std::string::npos);
}

TEST(Plot, the_area_goes_along_the_line_and_back_along_the_upper_values) {
  const auto drawn = svg({logarithmic({{1, 1}, {4, 1}}, {10, 100})});
  EXPECT_NE(drawn.find("<polygon fill='red' fill-opacity='0.15' points='62.0,368.0 602.0,368.0 602.0,40.0 62.0,204.0 '"),
            std::string::npos)
      << drawn;
}

TEST(Plot, an_axis_from_zero_shows_amounts_in_proportion_and_has_room_above_them) {
  Panel panel{.title = "t",
              .x_label = "x",
              .y_label = "y",
              .series = {{.name = "s", .colour = "red", .points = {{1, 5}, {2, 10}}}},
              .y_from_zero = true};
  // The y axis has 328 pixels for 0 to 12, so 5 and 10 are 136.7 and 273.3 pixels above its bottom, which is at 368.
  EXPECT_NE(svg({panel}).find("points='62.0,231.3 602.0,94.7 '"), std::string::npos) << svg({panel});
  panel.series[0].points = {};
  EXPECT_EQ(svg({panel}).find("nan"), std::string::npos);
}

TEST(Plot, nothing_to_draw_still_makes_a_picture) {
  const auto drawn = svg({logarithmic({})});
  EXPECT_EQ(count(drawn, "</svg>"), 1u);
  EXPECT_EQ(drawn.find("nan"), std::string::npos) << drawn;
}

TEST(Plot, a_file_that_cannot_be_written_is_named_with_the_reason) {
  const auto status = write_svg("/nonexistent/plot.svg", {logarithmic({})});
  EXPECT_EQ(status.code(), Code::unavailable);
  EXPECT_NE(status.message().find("/nonexistent/plot.svg: No such file"), std::string::npos) << status.message();
}

TEST(Plot, a_full_disk_is_an_error) { EXPECT_EQ(write_svg("/dev/full", {logarithmic({{1, 1}})}).code(), Code::unavailable); }

TEST(Plot, bars_stand_over_their_names) {
  const auto drawn =
      svg({{.title = "t",
            .x_label = "",
            .y_label = "y",
            .series = {{.name = "base", .colour = "red", .bars = true, .points = {{0, 0}, {1, 0}}, .upper = {5, 10}},
                       {.name = "top", .colour = "blue", .bars = true, .points = {{0, 5}, {1, 10}}, .upper = {10, 20}}},
            .categories = {"one", "two & more"},
            .y_from_zero = true}});
  EXPECT_EQ(count(drawn, "class='tick middle'>one<"), 1u) << drawn;
  EXPECT_EQ(count(drawn, ">two &amp; more<"), 1u) << drawn;
  // The frame is 540 pixels wide, with 270 for each of two categories. The y axis has 328 pixels for 0 to 25. So the values 5
  // and 10 are 65.6 and 131.2 pixels high.
  EXPECT_NE(drawn.find("<rect x='116.0' y='302.4' width='162.0' height='65.6' fill='red'/>"), std::string::npos) << drawn;
  EXPECT_NE(drawn.find("<rect x='386.0' y='105.6' width='162.0' height='131.2' fill='blue'/>"), std::string::npos) << drawn;
  EXPECT_EQ(count(drawn, "<polyline"), 0u) << drawn;
}

TEST(Plot, the_area_can_lie_on_both_sides_of_the_line) {
  auto panel = logarithmic({{1, 10}, {4, 10}}, {100, 100});
  panel.series[0].lower = {1, 1};
  const auto drawn = svg({panel});
  EXPECT_NE(drawn.find("points='62.0,368.0 602.0,368.0 602.0,40.0 62.0,40.0 '"), std::string::npos) << drawn;
  EXPECT_NE(drawn.find("points='62.0,204.0 602.0,204.0 '"), std::string::npos) << drawn;
}

TEST(Plot, a_new_row_stands_below_and_the_widest_row_decides_the_width) {
  auto below = logarithmic({{1, 1}});
  below.new_row = true;
  EXPECT_EQ(count(svg({logarithmic({{1, 1}}), logarithmic({{1, 1}})}), "width='1240' height='420'"), 1u);
  const auto drawn = svg({logarithmic({{1, 1}}), below, logarithmic({{1, 1}})});
  EXPECT_EQ(count(drawn, "width='1240' height='840'"), 1u) << drawn;
  EXPECT_EQ(count(drawn, "<g transform='translate(0,420)'>"), 1u);
  EXPECT_EQ(count(drawn, "</g>"), 1u);
}

TEST(Plot, the_x_axis_begins_at_zero_on_request) {
  Panel panel{.title = "t",
              .x_label = "",
              .y_label = "",
              .series = {{.name = "s", .colour = "#1f77b4", .points = {{80, 1}, {100, 2}}}}};
  EXPECT_EQ(svg({panel}).find(">20</text>"), std::string::npos);
  panel.x_from_zero = true;
  EXPECT_NE(svg({panel}).find(">20</text>"), std::string::npos);
}

TEST(Plot, without_names_there_is_no_legend) {
  EXPECT_EQ(svg({{.title = "t",
                  .x_label = "",
                  .y_label = "",
                  .series = {{.name = "", .colour = "#1f77b4", .points = {{0, 1}, {1, 2}}}}}})
                .find("class='legend'"),
            std::string::npos);
}

TEST(Plot, legends_stand_in_all_four_corners) {
  std::vector<std::string> places;
  for (const auto corner : {Corner::upper_right, Corner::upper_left, Corner::lower_right, Corner::lower_left}) {
    auto panel = logarithmic({{1, 1}});
    panel.legend = corner;
    const auto drawn = svg({panel});
    const auto end = drawn.find("class='legend'");
    places.push_back(drawn.substr(drawn.rfind("<rect", end), 30));
  }
  EXPECT_NE(places[3].find("x='70.0' y='330.0'"), std::string::npos) << places[3];
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(places[i], places[3]);
}

}  // namespace
}  // namespace unisono::cli
