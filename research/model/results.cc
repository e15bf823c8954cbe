#include "research/model/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/common/plot.h"
#include "research/packet_loss/sharded_results.h"

namespace language_model {

using unisono::Code;
using unisono::Status;
using unisono::cli::Panel;
using unisono::cli::Point;
using unisono::cli::Series;

namespace {

constexpr double mebibyte = 1 << 20;

const char* yes_or_no(bool value) { return value ? "yes" : "NO"; }

size_t tokens_of(const Results& r) {
  return (r.sequences.empty() ? r.history.losses.size() * r.options.batch : r.sequences.back()) * r.options.shape.context;
}

double tokens_per_s(const Results& r) { return static_cast<double>(tokens_of(r)) / std::max(1e-9, r.history.times.total_s); }

float last_validation(const TrainingHistory& history) {
  return history.validation.empty() ? std::numeric_limits<float>::quiet_NaN() : history.validation.back().loss;
}

std::string describe(const char* how, const Comparison& c) {
  const auto judged = c.tolerance ? fmt::format("allowed {:.3g}", *c.tolerance) : std::string("not judged");
  return fmt::format(
      "  {:<34} first {} steps: largest difference of the loss {:.3g} nats ({}); losses identical {}, "
      "parameters identical {}\n",
      how, c.steps, c.difference_max, judged, c.losses_identical ? "yes" : "no", c.parameters_identical ? "yes" : "no");
}

std::vector<Point> curve(const std::vector<float>& losses, size_t count) {
  std::vector<Point> points;
  for (size_t i = 0; i < std::min(count, losses.size()); ++i) points.push_back({static_cast<double>(i + 1), losses[i]});
  return points;
}

std::vector<Panel> panels_of(const Results& r) {
  const std::string processes = fmt::format("{} process{}", r.ranks.size(), r.ranks.size() == 1 ? "" : "es");
  Panel whole{.title = "Training of the language model", .x_label = "step", .y_label = "loss (nats per byte)", .series = {}};
  whole.series.push_back({.name = processes + ", training",
                          .colour = "#1f77b4",
                          .line_width = 1.2,
                          .points = curve(r.history.losses, r.history.losses.size())});
  Series validation{.name = "held-out text", .colour = "#d62728", .markers = true, .points = {}};
  for (const ValidationPoint& v : r.history.validation) validation.points.push_back({static_cast<double>(v.step), v.loss});
  whole.series.push_back(std::move(validation));
  std::vector<Panel> panels{std::move(whole)};
  if (!r.in_order && !r.whole) return panels;
  const size_t steps = r.in_order ? r.in_order->losses.size() : r.whole->losses.size();
  Panel start{.title = fmt::format("The first {} steps, against one process", steps),
              .x_label = "step",
              .y_label = "loss (nats per byte)",
              .series = {}};
  start.series.push_back({.name = processes, .colour = "#9ecae1", .line_width = 5, .points = curve(r.history.losses, steps)});
  if (r.in_order) {
    start.series.push_back({.name = "one process, parts in order",
                            .colour = "#08306b",
                            .line_width = 1.5,
                            .points = curve(r.in_order->losses, steps)});
  }
  if (r.whole) {
    start.series.push_back({.name = "one process, whole batch at once",
                            .colour = "#ff7f0e",
                            .line_width = 1.5,
                            .dashed = true,
                            .points = curve(r.whole->losses, steps)});
  }
  panels.push_back(std::move(start));
  return panels;
}

std::string csv(const Results& r) {
  std::string out = "step,loss,validation,one_process_in_order,one_process_whole_batch,sent_bytes,seconds,sequences\n";
  auto validation = r.history.validation.begin();
  const auto value = [](const std::optional<ReferenceRun>& run, size_t i) {
    return run && i < run->losses.size() ? fmt::format("{:.9g}", run->losses[i]) : std::string();
  };
  for (size_t i = 0; i < r.history.losses.size(); ++i) {
    std::string measured;
    if (validation != r.history.validation.end() && validation->step == i + 1)
      measured = fmt::format("{:.9g}", (validation++)->loss);
    fmt::format_to(std::back_inserter(out), "{},{:.9g},{},{},{},{},{},{}\n", i + 1, r.history.losses[i], measured,
                   value(r.in_order, i), value(r.whole, i),
                   i < r.sent_bytes.size() ? fmt::format("{:.0f}", r.sent_bytes[i]) : std::string(),
                   i < r.history.seconds.size() ? fmt::format("{:.6g}", r.history.seconds[i]) : std::string(),
                   i < r.sequences.size() ? std::to_string(r.sequences[i]) : std::string());
  }
  return out;
}

// Returns whether the number of received bytes is known. Gradient reducers do not report it.
bool known_received(const Results& r, const RankResult& x) { return r.compression.method.empty() || x.received_bytes > 0; }

double payload_ratio(const CompressionNotes& notes) {
  return notes.elements == 0 ? 0 : static_cast<double>(notes.payload) / static_cast<double>(notes.elements);
}

std::string describe(const CompressionNotes& notes) {
  if (notes.method.empty()) return {};
  auto out = fmt::format("gradients are compressed as {}\n  given to collectives: {:.4f} of all values, over all steps\n",
                         notes.method, payload_ratio(notes));
  if (notes.off_steps > 0) out += fmt::format("  not all compressed in {} steps: {}\n", notes.off_steps, notes.off);
  if (notes.skipped_steps > 0) out += fmt::format("  {} steps skipped: gradients were not finite\n", notes.skipped_steps);
  for (const auto& warning : notes.warnings) out += fmt::format("  warning: {}\n", warning);
  return out + "\n";
}

nlohmann::json to_json(const CompressionNotes& notes) {
  if (notes.method.empty()) return nullptr;
  return {{"method", notes.method},
          {"payload_ratio", payload_ratio(notes)},
          {"skipped_steps", notes.skipped_steps},
          {"off_steps", notes.off_steps},
          {"off", notes.off},
          {"warnings", notes.warnings}};
}

double dropped_of(const RankResult& x) {
  return x.planned == 0 ? 0 : static_cast<double>(x.planned - x.computed) / static_cast<double>(x.planned);
}

std::string describe(const Results& r) {
  if (!r.drop) return {};
  const auto& s = r.drop->settings;
  auto out = fmt::format("{} micro-batches of each rank in a step, DropCompute {}\n", s.count, r.drop->options);
  if (!s.delay.empty())
    out += fmt::format("  each later by {} of {}\n", s.delay_base ? "all" : "what is above its base", s.delay);
  if (s.random_drop > 0) out += fmt::format("  {:g} % are dropped at random, whichever rank is late\n", 100 * s.random_drop);
  if (!s.replay.empty()) out += fmt::format("  computed is what {} says\n", record_path(s.replay, 0) + ", …");
  out += fmt::format("  left out: {:.2f} %; by rank:", 100 * r.dropped());
  for (const auto& rank : r.ranks) out += fmt::format(" {:.2f}", 100 * dropped_of(rank));
  out += fmt::format(" %\n  all windows: {}\n", r.drop->total.to_string());
  if (r.drop->window.steps > 0) out += fmt::format("  last window: {}\n", r.drop->window.to_string());
  return out + "\n";
}

nlohmann::json to_json(const unisono::DropReport& report) {
  return {{"first_step", report.first_step},
          {"last_step", report.last_step},
          {"steps", report.steps},
          {"state", report.state},
          {"rule", report.rule},
          {"off", report.off},
          {"threshold_s", report.threshold},
          {"other_s", report.other},
          {"micro_batch_s", report.micro_batch},
          {"predicted_drop", report.predicted_drop},
          {"drop", report.drop},
          {"drop_most", report.drop_most},
          {"drop_most_rank", report.drop_most_rank},
          {"predicted_speedup_step", report.predicted_step},
          {"predicted_speedup_total", report.predicted_total},
          {"per_second_before", report.per_second_before},
          {"per_second", report.per_second},
          {"step_mean_s", report.step_mean},
          {"step_deviation_s", report.step_deviation},
          {"compute_mean_s", report.compute_mean},
          {"compute_deviation_s", report.compute_deviation},
          {"arrival_spread_s", report.arrival_spread},
          {"extra_steps", report.extra_steps}};
}

nlohmann::json drop_json(const Results& r) {
  if (!r.drop) return nullptr;
  const auto& s = r.drop->settings;
  const auto speedup = r.drop->speedup();
  return {{"micro_batches", s.count},
          {"drop_compute", r.drop->options},
          {"delay_model", s.delay},
          {"delay_base", s.delay_base},
          {"random_drop", s.random_drop},
          {"replay", s.replay},
          {"drop", r.dropped()},
          {"measured_speedup", speedup ? nlohmann::json(*speedup) : nlohmann::json(nullptr)},
          {"total", to_json(r.drop->total)},
          {"window", to_json(r.drop->window)}};
}

nlohmann::json to_json(const std::optional<Comparison>& c) {
  if (!c) return nullptr;
  return {{"steps", c->steps},
          {"difference_max", c->difference_max},
          {"tolerance", c->tolerance ? nlohmann::json(*c->tolerance) : nlohmann::json(nullptr)},
          {"losses_identical", c->losses_identical},
          {"parameters_identical", c->parameters_identical},
          {"ok", c->ok()}};
}

}  // namespace

std::optional<double> DropResults::speedup() const {
  if (!(window.per_second > 0 && window.per_second_before > 0)) return {};
  return window.per_second / window.per_second_before;
}

double Results::dropped() const {
  RankResult all;
  for (const auto& rank : ranks) all.planned += rank.planned, all.computed += rank.computed;
  return dropped_of(all);
}

bool Results::parameters_identical() const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const RankResult& r) { return r.parameter_hash == ranks.front().parameter_hash; });
}

std::vector<std::string> Results::faults() const {
  std::vector<std::string> faults;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].parameter_hash == ranks.front().parameter_hash) continue;
    faults.push_back(fmt::format("rank {} ended with other parameters than rank 0: hash {:016x}, not {:016x}", rank,
                                 ranks[rank].parameter_hash, ranks.front().parameter_hash));
  }
  const auto check = [&](const char* what, const std::optional<Comparison>& c) {
    if (!c || c->ok()) return;
    faults.push_back(fmt::format(
        "the loss differs from that of one process ({}) by up to {:.3g} nats in the first {} steps; allowed is {:.3g}", what,
        c->difference_max, c->steps, *c->tolerance));
  };
  check("parts in order", in_order_comparison);
  check("whole batch at once", whole_comparison);
  for (const float loss : history.losses) {
    if (std::isfinite(loss)) continue;
    faults.push_back("the loss became infinite or not a number");
    break;
  }
  return faults;
}

Comparison compare(const std::vector<float>& losses, uint64_t hash, const ReferenceRun& reference,
                   std::optional<double> tolerance) {
  Comparison c{.steps = reference.losses.size(),
               .losses_identical = losses.size() >= reference.losses.size(),
               .parameters_identical = hash == reference.parameter_hash,
               .tolerance = tolerance};
  if (losses.size() < reference.losses.size()) c.difference_max = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < std::min(losses.size(), reference.losses.size()); ++i) {
    const double difference = std::abs(static_cast<double>(losses[i]) - reference.losses[i]);
    if (std::isnan(difference)) {
      c.difference_max = difference;
      break;
    }
    c.difference_max = std::max(c.difference_max, difference);
    if (std::bit_cast<uint32_t>(losses[i]) != std::bit_cast<uint32_t>(reference.losses[i])) c.losses_identical = false;
  }
  if (std::isnan(c.difference_max)) c.losses_identical = false;
  return c;
}

double final_training_loss(const TrainingHistory& history) {
  const size_t count = std::max<size_t>(1, history.losses.size() / 20);
  double sum = 0;
  for (size_t i = history.losses.size() - std::min(count, history.losses.size()); i < history.losses.size(); ++i)
    sum += history.losses[i];
  return sum / static_cast<double>(count);
}

double ideal_bytes(const Results& r) {
  const auto ranks = static_cast<double>(r.ranks.size());
  return 2 * (ranks - 1) / ranks * static_cast<double>(r.parameter_count * sizeof(float));
}

std::string table(const Results& r) {
  std::string out;
  const auto print = [&out](auto format, auto&&... arguments) {
    fmt::format_to(std::back_inserter(out), fmt::runtime(format), arguments...);
  };
  const auto steps = static_cast<double>(r.history.losses.size());
  print("\n{} parameters, {} steps of {} × {} bytes of {}; products with {} kernels\n\n", r.parameter_count,
        r.history.losses.size(), r.options.batch, r.options.shape.context, r.text, r.kernels);
  if (r.codec != "plain") {
    print("gradients travel as {}, {} error feedback\n\n", r.codec, r.error_feedback ? "with" : "without");
  }
  out += describe(r.compression) + describe(r);
  if (r.sharded) out += describe(*r.sharded);
  print(
      "rank  parameters        identical  compute s  waited s  overlapped s    CPU s  sent MiB  received MiB  sent / ideal\n");
  for (size_t rank = 0; rank < r.ranks.size(); ++rank) {
    const RankResult& x = r.ranks[rank];
    const double ideal = ideal_bytes(r) * steps;
    print("{:>4}  {:016x}  {:<9}  {:>9.2f}  {:>8.2f}  {:>12.2f}  {:>7.2f}  {:>8.0f}  {:>12}  {:>12}\n", rank, x.parameter_hash,
          yes_or_no(x.parameter_hash == r.ranks.front().parameter_hash), x.compute_s, x.waited_s, x.overlapped_s, x.cpu_s,
          static_cast<double>(x.sent_bytes) / mebibyte,
          known_received(r, x) ? fmt::format("{:.0f}", static_cast<double>(x.received_bytes) / mebibyte) : std::string("-"),
          ideal > 0 ? fmt::format("{:.4f}", static_cast<double>(x.sent_bytes) / ideal) : std::string("-"));
  }
  print("\n  waited: communication that the process stood still for; overlapped: communication behind the backward pass\n");
  print("  {:.0f} bytes per second learned; {:.2f} s in steps, {:.2f} s in validation\n", tokens_per_s(r),
        r.history.times.total_s, r.history.times.validation_s);
  print("  training loss {:.3f} at first, {:.3f} at the end; held-out text {:.3f} nats per byte\n",
        r.history.losses.empty() ? 0.0f : r.history.losses.front(), final_training_loss(r.history), last_validation(r.history));
  if (r.in_order_comparison || r.whole_comparison) print("\nAgainst one process with the whole batch:\n");
  if (r.in_order_comparison) out += describe("the same parts, one after another:", *r.in_order_comparison);
  if (r.whole_comparison) out += describe("the whole batch at once:", *r.whole_comparison);
  return out;
}

std::string summary_json(const Results& r) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankResult& x : r.ranks) {
    ranks.push_back({{"parameter_hash", fmt::format("{:016x}", x.parameter_hash)},
                     {"compute_s", x.compute_s},
                     {"waited_s", x.waited_s},
                     {"overlapped_s", x.overlapped_s},
                     {"cpu_s", x.cpu_s},
                     {"total_s", x.total_s},
                     {"sent_bytes", x.sent_bytes},
                     {"received_bytes", known_received(r, x) ? nlohmann::json(x.received_bytes) : nlohmann::json(nullptr)},
                     {"operations", x.operations},
                     {"micro_batches_planned", x.planned},
                     {"micro_batches_computed", x.computed},
                     {"drop", dropped_of(x)}});
  }
  const auto& shape = r.options.shape;
  const auto finite = [](double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); };
  const nlohmann::json summary = {
      {"parameters", r.parameter_count},
      {"shape",
       {{"layers", shape.layers},
        {"width", shape.width},
        {"heads", shape.heads},
        {"hidden", shape.hidden},
        {"context", shape.context}}},
      {"text", r.text},
      {"kernels", r.kernels},
      {"codec", r.codec},
      {"error_feedback", r.error_feedback},
      {"compression", to_json(r.compression)},
      {"drop_compute", drop_json(r)},
      {"sharded", r.sharded ? to_json(*r.sharded) : nlohmann::json(nullptr)},
      {"seed", r.options.seed},
      {"batch", r.options.batch},
      {"steps", r.history.losses.size()},
      {"world_size", r.ranks.size()},
      {"parameters_identical", r.parameters_identical()},
      {"training_loss_first", r.history.losses.empty() ? nlohmann::json(nullptr) : finite(r.history.losses.front())},
      {"training_loss", finite(final_training_loss(r.history))},
      {"validation_loss", finite(last_validation(r.history))},
      {"tokens_per_s", tokens_per_s(r)},
      {"steps_s", r.history.times.total_s},
      {"ideal_bytes_per_rank_and_step", ideal_bytes(r)},
      {"one_process_in_order", to_json(r.in_order_comparison)},
      {"one_process_whole_batch", to_json(r.whole_comparison)},
      {"faults", r.faults()},
      {"sample", r.sample},
      {"ranks", ranks}};
  return summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Status make_directory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Status(Code::unavailable, "cannot make the directory " + directory + ": " + error.message());
  return {};
}

Status write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  return file ? Status() : Status(Code::unavailable, "cannot write " + path);
}

Status write_files(const Results& r, const std::string& directory) {
  if (auto made = make_directory(directory); !made.ok()) return made;
  const std::filesystem::path path(directory);
  if (auto written = write_file((path / "loss.csv").string(), csv(r)); !written.ok()) return written;
  if (auto written = write_file((path / "summary.json").string(), summary_json(r)); !written.ok()) return written;
  return unisono::cli::write_svg((path / "loss.svg").string(), panels_of(r));
}

}  // namespace language_model
