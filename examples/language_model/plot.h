// Draws a line plot as SVG text. It uses only the standard library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

struct Curve {
  std::string name, colour;
  std::vector<std::pair<double, double>> points;
};

// The horizontal axis reaches from 0 to x_max. The vertical axis covers the curves, and has labels at multiples of y_step.
inline std::string svg_plot(const std::vector<Curve>& curves, const std::string& x_title, const std::string& y_title,
                            double x_max, double y_step) {
  constexpr double width = 640, height = 400, left = 60, right = 620, top = 20, bottom = 350;
  double low = 1e30, high = -1e30;
  for (const auto& curve : curves) {
    for (const auto& [x, y] : curve.points) low = std::min(low, y), high = std::max(high, y);
  }
  low = y_step * std::floor(low / y_step), high = y_step * std::ceil(high / y_step);
  std::string out;
  const auto add = [&](const char* format, auto... values) {
    char text[400];
    std::snprintf(text, sizeof text, format, values...);
    out += text;
  };
  add("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %g %g' font-family='sans-serif' font-size='13'>\n", width, height);
  add("<rect width='100%%' height='100%%' fill='white'/>\n");
  const auto x_at = [&](double x) { return left + (right - left) * x / x_max; };
  const auto y_at = [&](double y) { return bottom - (bottom - top) * (y - low) / (high - low); };
  for (double y = low; y <= high + y_step / 2; y += y_step) {
    add("<path d='M%g %.1fH%g' stroke='#ddd'/><text x='%g' y='%.1f' text-anchor='end'>%.1f</text>\n", left, y_at(y), right,
        left - 8, y_at(y) + 4, y);
  }
  for (int tick = 0; tick <= 4; ++tick) {
    add("<text x='%.1f' y='%g' text-anchor='middle'>%.0f</text>\n", x_at(x_max * tick / 4), bottom + 18, x_max * tick / 4);
  }
  add("<text x='%g' y='%g' text-anchor='middle'>%s</text>\n", (left + right) / 2, height - 10, x_title.c_str());
  add("<text transform='translate(16 %g) rotate(-90)' text-anchor='middle'>%s</text>\n", (top + bottom) / 2, y_title.c_str());
  double legend = top + 20;
  for (const auto& curve : curves) {
    out += "<polyline fill='none' stroke-width='1.5' stroke='" + curve.colour + "' points='";
    for (const auto& [x, y] : curve.points) add("%.1f,%.1f ", x_at(x), y_at(y));
    out += "'/>\n";
    add("<text x='%g' y='%g' text-anchor='end' fill='%s'>%s</text>\n", right - 10, legend, curve.colour.c_str(),
        curve.name.c_str());
    legend += 18;
  }
  return out + "</svg>\n";
}
