#include "research/tensor_parallel/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/common/plot.h"

namespace tensor_parallel {

using unisono::Code;
using unisono::Status;
using unisono::cli::Panel;
using unisono::cli::Series;

namespace {

struct PhaseName {
  const char* name;  // the name in the JSON file
  const char* title;
  Phase SettingResult::*phase;
};
constexpr PhaseName phases[] = {{"prefill", "Time to first token", &SettingResult::prefill},
                                {"decode", "Time per token", &SettingResult::decode}};

std::vector<double> milliseconds(const Phase& phase, double (*of)(const Step&)) {
  std::vector<double> values;
  for (const Step& step : phase.steps) values.push_back(1000 * of(step));
  return values;
}

double total_of(const Step& step) { return step.total_s; }
double communication_of(const Step& step) { return step.communication_s; }
double compute_of(const Step& step) { return step.total_s - step.communication_s; }

double median_ms(const Phase& phase, double (*of)(const Step&)) { return quantile(milliseconds(phase, of), 0.5); }

double alone_ms(const Phase& phase) { return 1000 * quantile(phase.alone_s, 0.5); }

// Returns how many times faster the phase is than the reference. Each step is compared with the reference's step in the same
// repetition, so that other load on the machine matters less.
double speed_up(const Phase& reference, const Phase& phase) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(reference.steps.size(), phase.steps.size()); ++i)
    ratios.push_back(reference.steps[i].total_s / phase.steps[i].total_s);
  return quantile(ratios, 0.5);
}

size_t tokens_of(const Results& r, const PhaseName& name) {
  return name.phase == &SettingResult::prefill ? r.options.prompt : 1;
}

// Formats a value with two decimals. Large values get fewer.
std::string number(double value) {
  return value >= 1000  ? fmt::format("{:.0f}", value)
         : value >= 100 ? fmt::format("{:.1f}", value)
                        : fmt::format("{:.2f}", value);
}

std::string decibel(double snr) { return std::isinf(snr) ? "same" : fmt::format("{:.1f}", snr); }

std::string line(const std::array<std::string, 13>& words, size_t name_width) {
  constexpr std::array<int, 13> widths{0, 8, 8, 8, 8, 9, 8, 8, 8, 8, 6, 7, 0};
  std::string out = fmt::format("{:<{}}", words.front(), name_width);
  for (size_t i = 1; i + 1 < words.size(); ++i) out += fmt::format("{:>{}}", words[i], widths[i]);
  out += "  " + words.back();
  return out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
}

size_t name_width_of(const Results& r) {
  size_t width = 12;
  for (const SettingResult& result : r.measured.results) width = std::max(width, result.setting.name.size() + 1);
  return width;
}

std::string row(const Results& r, const PhaseName& name, const SettingResult& result, std::vector<std::string>& notes) {
  const Phase& phase = result.*name.phase;
  const Phase& reference = r.measured.results.front().*name.phase;
  const auto totals = milliseconds(phase, total_of);
  std::string note;
  if (!phase.codec_note.empty()) {
    const auto known = std::find(notes.begin(), notes.end(), phase.codec_note);
    note = fmt::format(" ({})", known - notes.begin() + 1);
    if (known == notes.end()) notes.push_back(phase.codec_note);
  }
  const double sent = static_cast<double>(phase.sent_payload) / static_cast<double>(tokens_of(r, name)) / 1024;
  return line({result.setting.name, number(quantile(totals, 0.5)), number(quantile(totals, 0.25)),
               number(quantile(totals, 0.75)), number(median_ms(phase, compute_of)), number(median_ms(phase, communication_of)),
               fmt::format("{:.2f}", speed_up(reference, phase)), number(alone_ms(phase)), fmt::format("{:.1f}", sent),
               fmt::format("{:.2f}", phase.bits_per_element), decibel(phase.snr_db), fmt::format("{}", phase.passes),
               phase.schedule + note},
              name_width_of(r));
}

nlohmann::json finite(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); }

nlohmann::json to_json(const Phase& phase) {
  return {{"total_ms", milliseconds(phase, total_of)},
          {"communication_ms", milliseconds(phase, communication_of)},
          {"median_ms", finite(median_ms(phase, total_of))},
          {"median_communication_ms", finite(median_ms(phase, communication_of))},
          {"median_compute_ms", finite(median_ms(phase, compute_of))},
          {"alone_s", phase.alone_s},
          {"sent_payload", phase.sent_payload},
          {"sent_bytes", phase.sent_bytes},
          {"bits_per_element", phase.bits_per_element},
          {"schedule", phase.schedule},
          {"codec", phase.codec},
          {"codec_note", phase.codec_note},
          {"passes", phase.passes},
          {"snr_db", finite(phase.snr_db)}};
}

// Returns bar charts with one bar for each setting. In a bar, the communication time is stacked on the computing time.
std::vector<Panel> panels_of(const Results& r) {
  std::vector<Panel> panels;
  for (const PhaseName& name : phases) {
    Panel panel{.title = fmt::format("{}, {} ranks", name.title, r.world_size),
                .x_label = "",
                .y_label = "ms (median)",
                .series = {},
                .y_from_zero = true};
    Series compute{.name = "computing", .colour = "#9ecae1", .bars = true, .points = {}};
    Series communication{.name = "communication", .colour = "#d62728", .bars = true, .points = {}};
    for (const SettingResult& result : r.measured.results) {
      const auto x = static_cast<double>(panel.categories.size());
      const double total = median_ms(result.*name.phase, total_of);
      const double base = std::max(0.0, total - median_ms(result.*name.phase, communication_of));
      panel.categories.push_back(result.setting.name);
      compute.points.push_back({x, 0});
      compute.upper.push_back(base);
      communication.points.push_back({x, base});
      communication.upper.push_back(total);
    }
    panel.series = {std::move(communication), std::move(compute)};
    panels.push_back(std::move(panel));
  }
  return panels;
}

// Returns one bar chart for each phase. The charts show all-reduces of the phase's size that ran alone, without computation.
std::vector<Panel> alone_panels_of(const Results& r) {
  std::vector<Panel> panels;
  for (const PhaseName& name : phases) {
    const size_t tokens = tokens_of(r, name);
    Panel panel{.title = fmt::format("One all-reduce of {} × {}, {} ranks", tokens, r.shape.hidden, r.world_size),
                .x_label = "",
                .y_label = "ms (median)",
                .series = {},
                .y_from_zero = true};
    Series alone{.name = "communication alone", .colour = "#d62728", .bars = true, .points = {}};
    for (const SettingResult& result : r.measured.results) {
      alone.points.push_back({static_cast<double>(panel.categories.size()), 0});
      alone.upper.push_back(alone_ms(result.*name.phase));
      panel.categories.push_back(result.setting.name);
    }
    panel.series.push_back(std::move(alone));
    panels.push_back(std::move(panel));
  }
  return panels;
}

Status write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  return file ? Status() : Status(Code::unavailable, "cannot write " + path.string());
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

std::string table(const Results& r) {
  const Shape& s = r.shape;
  std::string out = fmt::format(
      "\n{} blocks of hidden {}, {} heads, inner {}{}; {} ranks, {:.0f} MiB of fp32 weights each; products with {} "
      "kernels\nlinks: {}\n",
      s.blocks, s.hidden, s.heads, s.inner, s.weight_sets < s.blocks ? fmt::format(", {} different ones", s.weight_sets) : "",
      r.world_size, static_cast<double>(r.weight_bytes) / (1 << 20), r.kernels, r.links);
  std::vector<std::string> notes;
  for (const PhaseName& name : phases) {
    const size_t tokens = tokens_of(r, name);
    out += fmt::format("\n{}: {} {}, {} all-reduces of {} KiB; measured {} times\n", name.title, tokens,
                       tokens == 1 ? "token" : "tokens", 2 * s.blocks, tokens * s.hidden * sizeof(float) / 1024,
                       (r.measured.results.front().*name.phase).steps.size());
    out += line({"", "median", "q25", "q75", "compute", "communi-", "times", "alone", "sent", "bits an", "SNR", "", ""},
                name_width_of(r));
    out += line({"setting", "(ms)", "(ms)", "(ms)", "(ms)", "cation", "as fast", "(ms)", "(KiB)", "element", "(dB)", "passes",
                 "schedule"},
                name_width_of(r));
    for (const SettingResult& result : r.measured.results) out += row(r, name, result, notes);
  }
  out += "\n";
  for (size_t i = 0; i < notes.size(); ++i) out += fmt::format("  ({}) sent as fp32: {}\n", i + 1, notes[i]);
  out +=
      "  communication: all-reduces, coding included, from the last rank's first message to the first rank's sum; compute: all "
      "other time\n"
      "  alone: one all-reduce of this size while no rank computes; sent: elements and scales, per rank and token\n"
      "  SNR: of the hidden state behind the last norm, of all prefill tokens and of the last decoded one, against the first "
      "setting\n";
  return out;
}

std::string summary_json(const Results& r) {
  nlohmann::json settings = nlohmann::json::array();
  for (const SettingResult& result : r.measured.results) {
    settings.push_back(
        {{"setting", result.setting.name}, {"prefill", to_json(result.prefill)}, {"decode", to_json(result.decode)}});
  }
  const nlohmann::json summary = {{"shape",
                                   {{"blocks", r.shape.blocks},
                                    {"weight_sets", r.shape.weight_sets},
                                    {"hidden", r.shape.hidden},
                                    {"heads", r.shape.heads},
                                    {"inner", r.shape.inner}}},
                                  {"world_size", r.world_size},
                                  {"prompt", r.options.prompt},
                                  {"tokens", r.options.tokens},
                                  {"repetitions", r.options.repetitions},
                                  {"seed", r.options.weights.seed},
                                  {"outlier", r.options.weights.outlier},
                                  {"weight_bytes_per_rank", r.weight_bytes},
                                  {"kernels", r.kernels},
                                  {"links", r.links},
                                  {"faults", r.measured.faults},
                                  {"settings", settings}};
  return summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Status write_files(const Results& r, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Status(Code::unavailable, "cannot make the directory " + directory + ": " + error.message());
  const std::filesystem::path path(directory);
  if (auto written = write_file(path / "summary.json", summary_json(r)); !written.ok()) return written;
  if (auto written = unisono::cli::write_svg((path / "times.svg").string(), panels_of(r)); !written.ok()) return written;
  return unisono::cli::write_svg((path / "alone.svg").string(), alone_panels_of(r));
}

}  // namespace tensor_parallel
