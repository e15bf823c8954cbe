// A chart of lines or bars as an SVG file: panels side by side and in rows, each with axes, labelled ticks and a legend. All
// plots of this project are made by it, those of the examples too, so it needs nothing of the tool.
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

enum class Axis : uint8_t { linear, decades, bytes };  // decades and bytes are logarithmic; bytes has powers of two: 1K, 64K

enum class Corner : uint8_t { upper_right, upper_left, lower_right, lower_left };

struct Series {
  std::string name;    // if none of a panel has one, it has no legend
  std::string colour;  // as SVG has it: "#1f77b4"
  double line_width = 1.5;
  bool dashed = false;
  bool markers = false;  // dots instead of a line
  bool bars = false;     // instead of a line: from each point up to its upper value, which must be there
  std::vector<Point> points;
  std::vector<double> upper = {};  // if not empty, of each point: the area from y up to it is shaded
  std::vector<double> lower = {};  // likewise, with upper: where that area begins, instead of y
};

struct Panel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;  // drawn in this order
  Axis x_axis = Axis::linear;
  Axis y_axis = Axis::linear;
  Corner legend = Corner::upper_right;  // where the curves are not
  std::vector<std::string> categories =
      {};                    // if not empty, what stands at x = 0, 1, …, instead of numbers; the x axis is linear
  bool y_from_zero = false;  // a linear y axis from zero to above the highest value: for amounts, whose ratio should be seen
  bool x_from_zero = false;  // a linear x axis that begins at zero, so that panels can be compared
  bool new_row = false;      // stands below those before, at the left
};

// A colour for the i-th of several lines, from the first again after ten.
const char* line_colour(size_t i);

// A round tick distance that divides `range` into about `ticks` parts: 1, 2 or 5 times a power of ten.
double tick_distance(double range, int ticks);

// Points that are not finite are left out; on a logarithmic axis, those that are not positive, too.
std::string svg(const std::vector<Panel>& panels);
// unavailable: the file cannot be written, and why.
Status write_svg(const std::string& path, const std::vector<Panel>& panels);

}  // namespace unisono::cli
