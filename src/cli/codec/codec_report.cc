// Formats the results of trials as text, JSON and curves.
#include "cli/codec/codec_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace unisono::cli {
namespace {

using Json = nlohmann::ordered_json;

struct DecimalUnit {
  const char* name = "B";
  double bytes = 1;
};

// Returns the largest unit that is not larger than `bytes`.
DecimalUnit unit_for(uint64_t bytes) {
  constexpr DecimalUnit units[] = {{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}};
  return *std::find_if(std::begin(units), std::end(units) - 1,
                       [&](const DecimalUnit& unit) { return static_cast<double>(bytes) >= unit.bytes; });
}

// Returns the number with commas between thousands: "1,048,576".
std::string grouped(uint64_t number) {
  auto text = fmt::format("{}", number);
  for (auto at = static_cast<ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

// Returns the number and the noun. The noun is in the plural if needed: "1 element", "2 elements".
std::string counted(uint64_t count, const std::string& what) {
  return fmt::format("{} {}{}", grouped(count), what, count == 1 ? "" : "s");
}

double bits_per_element(const MessageTally& tally) {
  return tally.elements == 0 ? 0 : 8 * static_cast<double>(tally.block_bytes) / static_cast<double>(tally.elements);
}

// Returns plain_bytes divided by the size of the messages. Returns 0 if there are no messages.
double ratio(const MessageTally& tally, uint64_t plain_bytes) {
  return tally.bytes() == 0 ? 0 : static_cast<double>(plain_bytes) / static_cast<double>(tally.bytes());
}

Json number_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

void put_sizes(Json& json, const MessageTally& tally, uint64_t plain_bytes) {
  json["message_bytes"] = tally.bytes();
  json["header_bytes"] = tally.header_bytes;
  json["block_bytes"] = tally.block_bytes;
  json["bits_per_element"] = tally.elements == 0 ? Json(nullptr) : Json(bits_per_element(tally));
  json["ratio"] = tally.elements == 0 ? Json(nullptr) : Json(ratio(tally, plain_bytes));
}

Json object_of(const CodecTrial& trial) {
  const auto& errors = trial.errors();
  Json json{{"codec", canonical_text(trial.codec())},
            {"dtype", name(trial.dtype())},
            {"elements", trial.tally().elements},
            {"bytes_in", trial.plain_bytes()}};
  put_sizes(json, trial.tally(), trial.plain_bytes());
  json["compared"] = errors.compared;
  json["snr_db"] = number_or_null(errors.snr_db());
  json["max_abs_error"] = errors.compared == 0 ? Json(nullptr) : Json(errors.max_abs_error);
  json["rms_error"] = number_or_null(errors.rms_error());
  json["saturated"] = trial.counts().saturated;
  json["nonfinite"] = errors.nonfinite;
  json["nonfinite_groups"] = trial.counts().nonfinite_groups;
  return json;
}

std::string size_line(const MessageTally& tally, uint64_t plain_bytes) {
  if (tally.elements == 0) return {};
  const auto headers = tally.header_bytes == 0 ? "" : fmt::format(", with {} of headers", decimal_bytes(tally.header_bytes));
  return fmt::format("  size     {} as {}{}; {:.4g} bits an element, ratio {:.2f}\n", decimal_bytes(plain_bytes),
                     decimal_bytes(tally.bytes()), headers, bits_per_element(tally), ratio(tally, plain_bytes));
}

std::string snr_text(const ErrorStatistics& errors) {
  if (errors.is_exact()) return "exact";
  const auto snr = errors.snr_db();
  return snr ? fmt::format("{:.1f}", *snr) : "-";
}

// Returns the warnings that belong in the summary. The text is empty if there are none.
std::string warnings_text(const ErrorStatistics& errors, const kernels::BlockCounts& counts) {
  std::string text;
  if (errors.nonfinite > 0) text += fmt::format("  caution  {} not finite", counted(errors.nonfinite, "element"));
  if (counts.nonfinite_groups > 0) text += fmt::format("; {} became NaN", counted(counts.nonfinite_groups, "group"));
  if (!text.empty())
    text += fmt::format("; errors are over {} that are finite before and after\n", counted(errors.compared, "element"));
  if (counts.saturated > 0)
    text += fmt::format("  caution  {} too large for the codec, cut to the largest value it has\n",
                        counted(counts.saturated, "element"));
  return text;
}

constexpr const char* quantised_colour = "#1f77b4";
constexpr const char* spikes_colour = "#d62728";
constexpr const char* narrow_colours[] = {"#2ca02c", "#7f7f7f"};

Series level(const std::string& what, const char* colour, double y) {
  return {.name = what, .colour = colour, .dashed = true, .points = {{2, y}, {8, y}}};
}

// Returns two curves that show value(trial) against the width of a code. One curve is for codecs with spikes, and the other for
// codecs without spikes.
template <typename Value>
std::vector<Series> curves(const CodecComparison& comparison, const Value& value) {
  std::vector<Series> curves{{.name = "with spikes", .colour = spikes_colour, .line_width = 2, .points = {}},
                             {.name = "without spikes", .colour = quantised_colour, .line_width = 2, .points = {}}};
  for (const auto& trial : comparison.trials) {
    const auto& block = trial.codec().block;
    if (facts_of(trial.codec().kind).has_options)
      curves[block.spikes ? 0 : 1].points.push_back({static_cast<double>(block.bits), value(trial)});
  }
  return curves;
}

Panel quality_panel(const CodecComparison& comparison) {
  const auto snr = [](const CodecTrial& trial) {
    return trial.errors().snr_db().value_or(std::numeric_limits<double>::quiet_NaN());
  };
  // The title must fit in one line, so a long file name is left out.
  const auto title = comparison.name.size() > 48 ? std::string("Quality") : "Quality: " + comparison.name;
  Panel panel{.title = title,
              .x_label = "width of a code (bits)",
              .y_label = "signal-to-noise ratio (dB)",
              .series = curves(comparison, snr),
              .legend = Corner::lower_right};
  size_t count = 0;
  for (const auto& trial : comparison.trials) {
    if (facts_of(trial.codec().kind).has_options) continue;
    const auto* const colour = narrow_colours[std::min(count++, std::size(narrow_colours) - 1)];
    panel.series.push_back(level(
        fmt::format("{} ({:g} bits)", canonical_text(trial.codec()), facts_of(trial.codec().kind).bits), colour, snr(trial)));
  }
  return panel;
}

Panel size_panel(const CodecComparison& comparison) {
  const auto& first = comparison.trials.front();
  const auto unit = unit_for(first.plain_bytes());
  const auto size = [&](const CodecTrial& trial) { return static_cast<double>(trial.tally().bytes()) / unit.bytes; };
  const auto about = fmt::format("{} of {}, {}", counted(first.errors().elements, "element"), name(first.dtype()),
                                 decimal_bytes(first.plain_bytes()));
  Panel panel{.title = "Size: " + about,
              .x_label = "width of a code (bits)",
              .y_label = fmt::format("messages, headers included ({})", unit.name),
              .series = curves(comparison, size),
              .legend = Corner::lower_right,
              .y_from_zero = true};
  // All codecs with 16 bits per element give the same size. So one horizontal line stands for all of them.
  const bool narrows = first.dtype() == DType::f32;
  panel.series.push_back(level(narrows ? "f16 and bf16" : "as they are", narrow_colours[0],
                               static_cast<double>(2 * first.tally().elements) / unit.bytes));
  return panel;
}

std::string row_of(const CodecTrial& trial, const DecimalUnit& unit) {
  const auto& codec = trial.codec();
  const auto& errors = trial.errors();
  const bool has_elements = trial.tally().elements > 0, has_errors = errors.compared > 0;
  const auto what = facts_of(codec.kind).has_options ? fmt::format("int{}", codec.block.bits) : canonical_text(codec);
  const auto* const spikes = !facts_of(codec.kind).has_options ? "-" : codec.block.spikes ? "on" : "off";
  const auto size = fmt::format("{:.{}f}", static_cast<double>(trial.tally().bytes()) / unit.bytes, unit.bytes == 1 ? 0 : 3);
  const auto bits = has_elements ? fmt::format("{:.3f}", bits_per_element(trial.tally())) : "-";
  const auto share = has_elements ? fmt::format("{:.2f}", ratio(trial.tally(), trial.plain_bytes())) : "-";
  const auto largest = has_errors ? fmt::format("{:.3g}", errors.max_abs_error) : "-";
  const auto rms = has_errors ? fmt::format("{:.3g}", *errors.rms_error()) : "-";
  return fmt::format(" {:>5} {:>7} {:>10} {:>10} {:>7} {:>9} {:>11} {:>11}\n", what, spikes, bits, size, share,
                     snr_text(errors), largest, rms);
}

}  // namespace

std::string decimal_bytes(uint64_t bytes) {
  const auto unit = unit_for(bytes);
  return unit.bytes == 1 ? fmt::format("{} B", bytes)
                         : fmt::format("{:.2f} {}", static_cast<double>(bytes) / unit.bytes, unit.name);
}

std::string summary_of(const CodecTrial& trial) {
  const auto& errors = trial.errors();
  auto text =
      fmt::format("{}: {} of {}\n", canonical_text(trial.codec()), counted(errors.elements, "element"), name(trial.dtype()));
  text += size_line(trial.tally(), trial.plain_bytes());
  if (errors.is_exact()) {
    text += "  error    none\n";
  } else if (errors.compared > 0) {
    const auto snr = errors.snr_db();
    text += fmt::format("  error    {}largest {:.3g}, root mean square {:.3g}\n",
                        snr ? fmt::format("SNR {:.1f} dB, ", *snr) : "", errors.max_abs_error, *errors.rms_error());
  }
  return text + warnings_text(errors, trial.counts());
}

std::string summary_of(const DecodeOutcome& outcome) {
  const auto& tally = outcome.tally;
  auto text =
      fmt::format("{}: {} of {}\n", canonical_text(outcome.codec), counted(tally.elements, "element"), name(outcome.dtype));
  text += size_line(tally, tally.elements * element_bytes(outcome.dtype));
  if (outcome.nonfinite > 0) text += fmt::format("  caution  {} not finite\n", counted(outcome.nonfinite, "element"));
  if (outcome.counts.saturated > 0)
    text += fmt::format("  caution  {} too large for {}, cut to the largest value it has\n",
                        counted(outcome.counts.saturated, "element"), name(outcome.dtype));
  return text;
}

std::string json_of(const CodecTrial& trial) { return object_of(trial).dump() + "\n"; }

std::string json_of(const DecodeOutcome& outcome) {
  const auto plain_bytes = outcome.tally.elements * element_bytes(outcome.dtype);
  Json json{{"codec", canonical_text(outcome.codec)},
            {"dtype", name(outcome.dtype)},
            {"elements", outcome.tally.elements},
            {"bytes_out", plain_bytes}};
  put_sizes(json, outcome.tally, plain_bytes);
  json["saturated"] = outcome.counts.saturated;
  json["nonfinite"] = outcome.nonfinite;
  return json.dump() + "\n";
}

std::string json_of(const CodecComparison& comparison) {
  const auto& first = comparison.trials.front();
  Json json{{"input", comparison.name},        {"dtype", name(first.dtype())},          {"elements", first.tally().elements},
            {"bytes_in", first.plain_bytes()}, {"nonfinite", first.errors().nonfinite}, {"rows", Json::array()}};
  for (const auto& trial : comparison.trials) json["rows"].push_back(object_of(trial));
  return json.dump() + "\n";
}

std::string table_of(const CodecComparison& comparison) {
  constexpr const char* types[] = {"f16", "bf16", "f32"};
  const auto& first = comparison.trials.front();
  const auto& block = comparison.trials.back().codec().block;
  const auto unit = unit_for(first.plain_bytes());
  auto text = fmt::format("# {}: {} of {}, {}\n", comparison.name, counted(first.errors().elements, "element"),
                          name(first.dtype()), decimal_bytes(first.plain_bytes()));
  text += fmt::format("# groups of {}, scales in {}; size and ratio: as sent, headers included\n", block.group,
                      types[static_cast<int>(block.metadata)]);
  text += "# SNR = 10 log10(sum x^2 / sum (x - x')^2)\n#\n";
  text += fmt::format("#{:>5} {:>7} {:>10} {:>10} {:>7} {:>9} {:>11} {:>11}\n", "codec", "spikes", "bits an", "size", "ratio",
                      "SNR", "largest", "rms");
  text += fmt::format("#{:>5} {:>7} {:>10} {:>10} {:>7} {:>9} {:>11} {:>11}\n", "", "", "element",
                      fmt::format("({})", unit.name), "", "(dB)", "error", "error");
  for (const auto& trial : comparison.trials) text += row_of(trial, unit);
  if (first.errors().nonfinite > 0) {
    text += fmt::format(
        "# {} not finite; quantised, a group with one becomes NaN. Errors are over\n# elements that are finite before and "
        "after\n",
        counted(first.errors().nonfinite, "element"));
  }
  // This is printed for only one of the quantised codecs, because the type of the scales alone decides which elements are too
  // large.
  bool quantised_reported = false;
  for (const auto& trial : comparison.trials) {
    if (trial.counts().saturated == 0 || (trial.codec().quantizes() && quantised_reported)) continue;
    quantised_reported = trial.codec().quantizes();
    const auto what = trial.codec().quantizes() ? fmt::format("scales in {}", types[static_cast<int>(block.metadata)])
                                                : canonical_text(trial.codec());
    text +=
        fmt::format("# {} too large for {}, cut to the largest value\n", counted(trial.counts().saturated, "element"), what);
  }
  return text;
}

std::vector<Panel> panels_of(const CodecComparison& comparison) { return {quality_panel(comparison), size_panel(comparison)}; }

}  // namespace unisono::cli
