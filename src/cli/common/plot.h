// Draws a chart of lines or bars as an SVG file. The chart consists of panels, side by side and in rows. Each panel has axes,
// ticks with labels, and a legend. Examples use this file, too, so it must not depend on the rest of the tool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unisono/status.h"

namespace unisono::cli {

struct Point {
  double x = 0;
  double y = 0;
};

// The axes `decades` and `bytes` are logarithmic. The ticks of a `bytes` axis are powers of two: 1K, 64K.
enum class Axis : uint8_t { linear, decades, bytes };

enum class Corner : uint8_t { upper_right, upper_left, lower_right, lower_left };

struct Series {
  std::string name;    // if none of the series in a panel has a name, the panel has no legend
  std::string colour;  // colour in SVG's notation: "#1f77b4"
  double line_width = 1.5;
  bool dashed = false;
  bool markers = false;  // draws dots instead of a line
  bool bars = false;     // Draws bars from y to `upper` instead of a line. In this case, `upper` must not be empty.
  std::vector<Point> points;
  // Either empty, or one value for each point. Then the area between `lower` and `upper` is shaded.
  std::vector<double> upper = {};
  std::vector<double> lower = {};  // Either empty, or one value for each point. If it is empty, the shaded area begins at y.
};

struct Panel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;  // drawn in this order
  Axis x_axis = Axis::linear;
  Axis y_axis = Axis::linear;
  Corner legend = Corner::upper_right;       // choose a corner without curves
  std::vector<std::string> categories = {};  // labels at x = 0, 1, … on a linear x axis; if empty, the axis shows numbers
  // If the y axis is linear, it begins at zero and ends above the highest value, so that amounts can be compared.
  bool y_from_zero = false;
  bool x_from_zero = false;  // If the x axis is linear, it begins at zero, so that panels can be compared.
  bool new_row = false;      // the panel begins a new row
};

// Returns a colour for line number i of a panel. The colours repeat after ten lines.
const char* line_colour(size_t i);

// Returns a round number as the distance between ticks: 1, 2 or 5 times a power of ten. It divides `range` into about `ticks`
// parts.
double tick_distance(double range, int ticks);

// Returns the chart as the text of an SVG file. Points that are not finite are left out. On a logarithmic axis, points that are
// not positive are left out, too.
std::string svg(const std::vector<Panel>& panels);
// Writes the chart to a file. Returns Code::unavailable if the file cannot be written; the message says why.
Status write_svg(const std::string& path, const std::vector<Panel>& panels);

}  // namespace unisono::cli
