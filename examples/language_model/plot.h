// A line chart as an SVG file: panels side by side, each with axes, labelled ticks and a legend.
#pragma once

#include <string>
#include <vector>

#include "unisono/status.h"

namespace language_model {

struct Point {
  double x = 0;
  double y = 0;
};

struct Series {
  std::string name;
  std::string colour;  // as SVG has it: "#1f77b4"
  double line_width = 1.5;
  bool dashed = false;
  bool markers = false;  // dots instead of a line
  std::vector<Point> points;
};

struct Panel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;  // drawn in this order
};

// A round tick distance that divides `range` into about `ticks` parts: 1, 2 or 5 times a power of ten.
double tick_distance(double range, int ticks);

// Points that are not finite are left out.
std::string svg(const std::vector<Panel>& panels);
unisono::Status write_svg(const std::string& path, const std::vector<Panel>& panels);

}  // namespace language_model
