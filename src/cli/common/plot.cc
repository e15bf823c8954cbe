#include "cli/common/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

namespace unisono::cli {

namespace {

constexpr double panel_width = 620;
constexpr double panel_height = 420;
constexpr double margin_left = 62, margin_right = 18, margin_top = 40, margin_bottom = 52;
constexpr int tick_count = 6;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Extends the range so that it begins and ends at a tick, and returns the distance between ticks. An empty range, or a range
  // with a single value, is widened first, so that it can be drawn.
  double widen(Axis axis) {
    if (!(low <= high)) low = 0, high = 1;
    if (low == high) low -= 0.5, high += 0.5;
    const double step = axis == Axis::linear ? tick_distance(high - low, tick_count)
                                             : std::max(1.0, std::ceil((std::ceil(high) - std::floor(low)) / 10));
    low = std::floor(low / step) * step;
    high = std::ceil(high / step) * step;
    return step;
  }
};

// Returns where on its axis a value lies, before scaling. The result is not finite if the axis cannot show the value.
double axis_position(Axis axis, double value) {
  switch (axis) {
    case Axis::linear: return value;
    case Axis::decades: return std::log10(value);
    case Axis::bytes: return std::log2(value);
  }
  return value;
}

constexpr const char* units[] = {"", "K", "M", "G", "T"};

std::string tick_label(Axis axis, double at, double step) {
  if (axis == Axis::linear) return fmt::format("{:.6g}", std::abs(at) < step * 1e-9 ? 0 : at);
  if (axis == Axis::decades) return fmt::format("{:.6g}", std::pow(10.0, at));
  const auto unit = at < 10 ? 0 : std::min(4, static_cast<int>(at) / 10);
  return fmt::format("{:.6g}{}", std::exp2(at - 10 * unit), units[unit]);
}

class PanelWriter {
 public:
  PanelWriter(const Panel& panel, double left, std::string& out) : panel_(panel), left_(left + margin_left), out_(out) {
    for (const Series& series : panel.series) {
      for (size_t i = 0; i < series.points.size(); ++i) {
        if (!drawable(series.points[i])) continue;
        x_.add(axis_position(panel.x_axis, series.points[i].x));
        y_.add(axis_position(panel.y_axis, series.points[i].y));
        for (const double edge : {upper_of(series, i), lower_of(series, i)}) {
          if (std::isfinite(axis_position(panel.y_axis, edge))) y_.add(axis_position(panel.y_axis, edge));
        }
      }
    }
    if (panel.y_from_zero && y_.high > 0) {
      y_.add(0);
      y_.add((panel.categories.empty() ? 1.05 : 1.25) * y_.high);  // leaves more room above bars for the legend
    }
    if (panel.x_from_zero && x_.high > 0) x_.add(0);
    if (panel.categories.empty()) {
      x_step_ = x_.widen(panel.x_axis);
    } else {
      x_ = {-0.5, static_cast<double>(panel.categories.size()) - 0.5};
    }
    y_step_ = y_.widen(panel.y_axis);
  }

  void write() {
    axes();
    for (const Series& series : panel_.series) series.bars ? bars(series) : area(series);
    for (const Series& series : panel_.series) line(series);
    legend();
  }

 private:
  static constexpr double top = margin_top, bottom = panel_height - margin_bottom;
  static constexpr double plot_width = panel_width - margin_left - margin_right;

  template <typename... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Arguments>(arguments)...);
  }
  static double upper_of(const Series& series, size_t i) {
    return i < series.upper.size() ? series.upper[i] : series.points[i].y;
  }
  static double lower_of(const Series& series, size_t i) {
    return i < series.lower.size() ? series.lower[i] : series.points[i].y;
  }
  bool drawable(const Point& p) const {
    return std::isfinite(axis_position(panel_.x_axis, p.x)) && std::isfinite(axis_position(panel_.y_axis, p.y));
  }
  double x_of(double x) const { return left_ + (x - x_.low) / (x_.high - x_.low) * plot_width; }
  double y_of(double y) const { return bottom - (y - y_.low) / (y_.high - y_.low) * (bottom - top); }
  void print_point(const Point& p) {
    print("{:.1f},{:.1f} ", x_of(axis_position(panel_.x_axis, p.x)), y_of(axis_position(panel_.y_axis, p.y)));
  }

  void axes() {
    const double right = left_ + plot_width;
    const double middle = left_ + plot_width / 2;
    print("<text x='{:.1f}' y='{:.1f}' class='title'>{}</text>\n", middle, top - 14, escaped(panel_.title));
    print("<text x='{:.1f}' y='{:.1f}' class='label'>{}</text>\n", middle, bottom + 40, escaped(panel_.x_label));
    print("<text transform='translate({:.1f},{:.1f}) rotate(-90)' class='label'>{}</text>\n", left_ - 44, (top + bottom) / 2,
          escaped(panel_.y_label));
    const auto ticks = [](const Range& range, double step) {
      return static_cast<int>(std::lround((range.high - range.low) / step));
    };
    for (size_t i = 0; i < panel_.categories.size(); ++i) {
      print("<text x='{:.1f}' y='{:.1f}' class='tick middle'>{}</text>\n", x_of(static_cast<double>(i)), bottom + 18,
            escaped(panel_.categories[i]));
    }
    for (int i = 0; panel_.categories.empty() && i <= ticks(x_, x_step_); ++i) {
      const double value = x_.low + i * x_step_;
      print("<line x1='{0:.1f}' y1='{1:.1f}' x2='{0:.1f}' y2='{2:.1f}' class='grid'/>", x_of(value), top, bottom);
      print("<text x='{:.1f}' y='{:.1f}' class='tick middle'>{}</text>\n", x_of(value), bottom + 18,
            tick_label(panel_.x_axis, value, x_step_));
    }
    for (int i = 0; i <= ticks(y_, y_step_); ++i) {
      const double value = y_.low + i * y_step_;
      print("<line x1='{1:.1f}' y1='{0:.1f}' x2='{2:.1f}' y2='{0:.1f}' class='grid'/>", y_of(value), left_, right);
      print("<text x='{:.1f}' y='{:.1f}' class='tick end'>{}</text>\n", left_ - 7, y_of(value) + 4,
            tick_label(panel_.y_axis, value, y_step_));
    }
    print("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' class='frame'/>\n", left_, top, plot_width, bottom - top);
  }

  void bars(const Series& series) {
    const double width = 0.6 * (x_of(1) - x_of(0));
    for (size_t i = 0; i < series.points.size(); ++i) {
      const Point upper{series.points[i].x, upper_of(series, i)};
      if (!drawable(series.points[i]) || !drawable(upper)) continue;
      const double high = y_of(axis_position(panel_.y_axis, upper.y));
      print("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='{}'/>\n",
            x_of(axis_position(panel_.x_axis, upper.x)) - width / 2, high, width,
            y_of(axis_position(panel_.y_axis, series.points[i].y)) - high, series.colour);
    }
  }

  // Shades the area between the upper and lower values of the series. If the series has no lower values, the area begins at its
  // line.
  void area(const Series& series) {
    if (series.upper.empty()) return;
    print("<polygon fill='{}' fill-opacity='0.15' points='", series.colour);
    for (size_t i = 0; i < series.points.size(); ++i) {
      const Point lower{series.points[i].x, lower_of(series, i)};
      if (drawable(lower)) print_point(lower);
    }
    for (size_t i = series.points.size(); i-- > 0;) {
      const Point upper{series.points[i].x, upper_of(series, i)};
      if (drawable(series.points[i]) && drawable(upper)) print_point(upper);
    }
    print("'/>\n");
  }

  void line(const Series& series) {
    if (series.bars) return;
    if (series.markers) {
      for (const Point& p : series.points) {
        if (!drawable(p)) continue;
        print("<circle cx='{:.1f}' cy='{:.1f}' r='3.5' fill='{}'/>\n", x_of(axis_position(panel_.x_axis, p.x)),
              y_of(axis_position(panel_.y_axis, p.y)), series.colour);
      }
      return;
    }
    print("<polyline fill='none' stroke='{}' stroke-width='{:.1f}'{} points='", series.colour, series.line_width, dash(series));
    for (const Point& p : series.points) {
      if (drawable(p)) print_point(p);
    }
    print("'/>\n");
  }

  void legend() {
    size_t longest = 0;
    for (const Series& series : panel_.series) longest = std::max(longest, series.name.size());
    if (longest == 0) return;
    const double width = 48 + 6.6 * static_cast<double>(longest);
    const double height = 12 + 18 * static_cast<double>(panel_.series.size());
    const bool at_left = panel_.legend == Corner::upper_left || panel_.legend == Corner::lower_left;
    const bool at_bottom = panel_.legend == Corner::lower_right || panel_.legend == Corner::lower_left;
    const double x = at_left ? left_ + 8 : left_ + plot_width - width - 8;
    const double y_first = at_bottom ? bottom - height - 8 : top + 8;
    print("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' class='legend'/>\n", x, y_first, width, height);
    for (size_t i = 0; i < panel_.series.size(); ++i) {
      const Series& series = panel_.series[i];
      const double y = y_first + 15 + 18 * static_cast<double>(i);
      if (series.bars) {
        print("<rect x='{:.1f}' y='{:.1f}' width='26' height='10' fill='{}'/>", x + 8, y - 5, series.colour);
      } else if (series.markers) {
        print("<circle cx='{:.1f}' cy='{:.1f}' r='3.5' fill='{}'/>", x + 21, y, series.colour);
      } else {
        print("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' stroke='{}' stroke-width='{:.1f}'{}/>", x + 8, y, x + 34,
              y, series.colour, series.line_width, dash(series));
      }
      print("<text x='{:.1f}' y='{:.1f}' class='tick'>{}</text>\n", x + 40, y + 4, escaped(series.name));
    }
  }

  static const char* dash(const Series& series) { return series.dashed ? " stroke-dasharray='6 4'" : ""; }

  const Panel& panel_;
  double left_;
  std::string& out_;
  Range x_, y_;
  double x_step_ = 1, y_step_ = 1;
};

}  // namespace

const char* line_colour(size_t i) {
  constexpr const char* colours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e",
                                     "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"};
  return colours[i % std::size(colours)];
}

double tick_distance(double range, int ticks) {
  const double raw = range / ticks;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double digit = raw / power;
  return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
}

std::string svg(const std::vector<Panel>& panels) {
  std::vector<std::vector<const Panel*>> rows;
  size_t columns = 0;
  for (const auto& panel : panels) {
    if (rows.empty() || panel.new_row) rows.emplace_back();
    rows.back().push_back(&panel);
    columns = std::max(columns, rows.back().size());
  }
  const double width = panel_width * static_cast<double>(columns),
               height = panel_height * std::max(1.0, static_cast<double>(rows.size()));
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0:.0f}' height='{1:.0f}' viewBox='0 0 {0:.0f} {1:.0f}'>\n"
      "<style>text {{ font: 12px sans-serif; fill: #222 }} .title {{ font-size: 15px; font-weight: bold; text-anchor: middle "
      "}}\n"
      ".label {{ font-size: 13px; text-anchor: middle }} .middle {{ text-anchor: middle }} .end {{ text-anchor: end }}\n"
      ".grid {{ stroke: #ddd; stroke-width: 1 }} .frame {{ fill: none; stroke: #444 }}\n"
      ".legend {{ fill: white; fill-opacity: 0.9; stroke: #bbb }}</style>\n"
      "<rect width='100%' height='100%' fill='white'/>\n",
      width, height);
  for (size_t row = 0; row < rows.size(); ++row) {
    if (row > 0) out += fmt::format("<g transform='translate(0,{:.0f})'>\n", panel_height * static_cast<double>(row));
    for (size_t i = 0; i < rows[row].size(); ++i) PanelWriter(*rows[row][i], panel_width * static_cast<double>(i), out).write();
    if (row > 0) out += "</g>\n";
  }
  out += "</svg>\n";
  return out;
}

Status write_svg(const std::string& path, const std::vector<Panel>& panels) {
  errno = 0;
  std::ofstream file(path);
  file << svg(panels);
  file.close();
  if (!file) return Status(Code::unavailable, fmt::format("cannot write {}: {}", path, strerrordesc_np(errno)));
  return {};
}

}  // namespace unisono::cli
