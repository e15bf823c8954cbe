#include "lab/compressors/compress_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/bench/bench_table.h"

namespace unisono::lab {

using cli::Axis;
using cli::Corner;
using cli::four_digits;
using cli::Panel;
using cli::Series;

namespace {

constexpr const char* phase_colours[phase_count] = {"#1f77b4", "#ff7f0e", "#9467bd", "#8c564b", "#d62728", "#2ca02c"};
constexpr const char* phase_meanings[phase_count] = {"begin", "first average", "choose", "pack", "second average", "unpack"};

// Returns the row of dense gradients without a codec, because all rows are compared with it. Returns null if it was not
// measured.
const CompressRow* dense_of(const std::vector<CompressRow>& rows) {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [](const CompressRow& row) { return row.method == Method::dense && row.codec.is_plain(); });
  return found == rows.end() ? nullptr : &*found;
}

// Returns value / dense, or nothing if dense is 0.
std::optional<double> ratio_of(double value, double dense) { return dense > 0 ? std::optional(value / dense) : std::nullopt; }

struct Ratios {
  std::optional<double> payload, sent, total;
};
Ratios ratios_of(const CompressRow& row, const std::vector<CompressRow>& rows) {
  const auto* const dense = dense_of(rows);
  if (dense == nullptr) return {};
  return {ratio_of(static_cast<double>(row.payload_bytes), static_cast<double>(dense->payload_bytes)),
          ratio_of(static_cast<double>(row.sent_bytes), static_cast<double>(dense->sent_bytes)),
          ratio_of(row.total.p50_us, dense->total.p50_us)};
}

std::string text_of(const std::optional<double>& ratio) {
  return !ratio ? "-" : *ratio < 10 ? fmt::format("{:.3f}", *ratio) : four_digits(*ratio);
}

size_t label_width(const std::vector<CompressRow>& rows) {
  size_t width = 8;
  for (const auto& row : rows) width = std::max(width, row.label().size());
  return width;
}

// Returns the different treatments of tensors, such as "1024x1024: 205 of 1024 rows", in the order of the tensors. With each
// treatment comes the number of tensors that have it.
std::vector<std::pair<std::string, size_t>> treatments_of(const CompressRow& row, const std::vector<std::string>& shapes) {
  std::vector<std::pair<std::string, size_t>> counts;
  for (size_t i = 0; i < row.treatments.size(); ++i) {
    const auto what = fmt::format("{}: {}", shapes[i], row.treatments[i]);
    const auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& entry) { return entry.first == what; });
    if (known == counts.end()) counts.emplace_back(what, 1);
    else ++known->second;
  }
  return counts;
}

// Plots the durations of the phases as stacked bars.
Panel time_panel(const std::vector<CompressRow>& rows) {
  Panel panel{.title = "Time of a step, medians", .x_label = "method", .y_label = "ms", .series = {}, .y_from_zero = true};
  std::vector<double> heights(rows.size());
  for (const auto& row : rows)
    // "+codec" means: like the bar to the left of this bar, but with the codec.
    panel.categories.push_back(row.codec.is_plain() ? name(row.method) : "+codec");
  // Puts the legend above the first bar if this bar is lower than the last one.
  if (rows.size() > 1 && rows.front().total.p50_us < rows.back().total.p50_us) panel.legend = Corner::upper_left;
  for (size_t phase = 0; phase < phase_count; ++phase) {
    Series series{.name = phase_meanings[phase], .colour = phase_colours[phase], .bars = true, .points = {}};
    for (size_t i = 0; i < rows.size(); ++i) {
      series.points.push_back({static_cast<double>(i), heights[i]});
      heights[i] += rows[i].phases[phase].p50_us / 1000;
      series.upper.push_back(heights[i]);
    }
    panel.series.push_back(std::move(series));
  }
  return panel;
}

Panel error_panel(const std::vector<CompressRow>& rows) {
  constexpr const char* colours[] = {"#222222", "#1f77b4", "#2ca02c", "#ff7f0e", "#d62728", "#9467bd", "#8c564b", "#e377c2"};
  const bool sends = std::all_of(rows.begin(), rows.end(), [](const CompressRow& row) { return row.sent_bytes > 0; });
  Panel panel{.title = "What does not arrive, and what is sent",
              .x_label = sends ? "sent by a rank in a step (MB)" : "payload of a step (MB)",
              .y_label = "error / energy of the mean",
              .series = {},
              .x_axis = Axis::decades,
              .y_from_zero = true};
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto bytes = static_cast<double>(sends ? rows[i].sent_bytes : rows[i].payload_bytes);
    panel.series.push_back({.name = rows[i].label(),
                            .colour = colours[i % std::size(colours)],
                            .markers = true,
                            .points = {{bytes / 1e6, rows[i].error}}});
  }
  return panel;
}

}  // namespace

std::string CompressRow::label() const {
  return codec.is_plain() ? name(method) : fmt::format("{} {}", name(method), codec.to_string());
}

std::string compress_head(const CompressPlan& plan, const std::vector<CompressRow>& rows) {
  std::vector<std::string> shapes;
  for (const auto& shape : plan.gradients.shapes) shapes.push_back(shape_text(shape));
  const auto data = plan.gradients.file.empty()
                        ? fmt::format("{}, noise {}, seed {}", name(plan.gradients.model), plan.gradients.noise, plan.seed)
                        : plan.gradients.file;
  auto text = fmt::format("# tensors: {}; gradients: {}; ratio {}, feedback {}\n", fmt::join(shapes, ", "), data,
                          plan.rule.ratio_ppm / 1e6, plan.feedback ? "ef14" : "none");
  for (const auto& row : rows) {
    if (row.method == Method::dense || !row.codec.is_plain()) continue;
    for (const auto& [what, count] : treatments_of(row, shapes))
      text += fmt::format("# {} {}{}\n", name(row.method), what, count > 1 ? fmt::format(" (x{})", count) : "");
  }
  text += fmt::format(
      "# times: medians over {} steps of the mean over ranks; sent: headers included, mean over ranks; captured, error: of the "
      "last step\n#\n",
      plan.steps);
  const auto width = label_width(rows);
  text +=
      fmt::format("#{:>{}} {:>11} {:>7} {:>11} {:>7} {:>5}", "method", width, "payload", "÷ dense", "sent", "÷ dense", "calls");
  for (const auto* phase : phase_names) text += fmt::format(" {:>9}", phase);
  text += fmt::format(" {:>9} {:>7} {:>9} {:>9}\n", "total", "÷ dense", "captured", "error");
  text += fmt::format("#{:>{}} {:>11} {:>7} {:>11} {:>7} {:>5}", "", width, "(B/rank)", "", "(B/rank)", "", "");
  for (size_t i = 0; i <= phase_count; ++i) text += fmt::format(" {:>9}", "(us)");
  return text + "\n";
}

std::string compress_row(const CompressRow& row, const std::vector<CompressRow>& rows) {
  const auto ratios = ratios_of(row, rows);
  auto text = fmt::format(" {:>{}} {:>11} {:>7} {:>11} {:>7} {:>5}", row.label(), label_width(rows), row.payload_bytes,
                          text_of(ratios.payload), row.sent_bytes, text_of(ratios.sent), row.collectives);
  for (const auto& phase : row.phases) text += fmt::format(" {:>9}", four_digits(phase.p50_us));
  return text + fmt::format(" {:>9} {:>7} {:>9.5f} {:>9.5f}{}\n", four_digits(row.total.p50_us), text_of(ratios.total),
                            row.captured, row.error, row.alike ? "" : "  RANKS DIFFER");
}

std::string compress_json(const CompressPlan& plan, const CompressRow& row, const std::vector<CompressRow>& rows) {
  const auto ratios = ratios_of(row, rows);
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json json{{"kind", "compressor"},
                              {"method", name(row.method)},
                              {"codec", row.codec.to_string()},
                              {"feedback", plan.feedback ? "ef14" : "none"}};
  for (size_t i = 0; i < plan.gradients.shapes.size(); ++i)
    json["tensors"].push_back({{"shape", plan.gradients.shapes[i]}, {"treatment", row.treatments[i]}});
  json["gradients"] = plan.gradients.file.empty() ? name(plan.gradients.model) : plan.gradients.file;
  json["noise"] = plan.gradients.file.empty() ? nlohmann::ordered_json(plan.gradients.noise) : nlohmann::ordered_json(nullptr);
  json["seed"] = plan.seed;
  json["ratio"] = plan.rule.ratio_ppm / 1e6;
  json["rank"] = plan.rule.rank;
  json["steps"] = plan.steps;
  json["payload_bytes"] = row.payload_bytes;
  json["payload_to_dense"] = number(ratios.payload);
  json["sent_bytes"] = row.sent_bytes;
  json["sent_to_dense"] = number(ratios.sent);
  json["collectives"] = row.collectives;
  for (size_t i = 0; i < phase_count; ++i) json[fmt::format("{}_us", phase_names[i])] = row.phases[i].p50_us;
  json["total_us"] = row.total.p50_us;
  json["total_p25_us"] = row.total.p25_us;
  json["total_p75_us"] = row.total.p75_us;
  json["total_to_dense"] = number(ratios.total);
  json["captured"] = row.captured;
  json["error"] = row.error;
  json["alike"] = row.alike;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::vector<Panel> compress_panels(const std::vector<CompressRow>& rows) { return {time_panel(rows), error_panel(rows)}; }

}  // namespace unisono::lab
