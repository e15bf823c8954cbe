#include "cli/bench/bench_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common/plot.h"
#include "cli/common/text.h"

namespace unisono::cli {
namespace {

using Json = nlohmann::ordered_json;

// Reads the values in one line of the file. Error messages begin with `where`, a text that names this line.
class Line {
 public:
  Line(const Json& json, const std::string& where) : json_(json), where_(where) {}
  std::string text(const char* key) {
    return read<std::string>(
        key, [](const Json& value) { return value.is_string(); }, "a text");
  }
  bool flag(const char* key) {
    return read<bool>(
        key, [](const Json& value) { return value.is_boolean(); }, "true or false");
  }
  uint64_t whole(const char* key) {
    return read<uint64_t>(
        key, [](const Json& value) { return value.is_number_unsigned(); }, "a whole number");
  }
  double number(const char* key) {
    return read<double>(
        key, [](const Json& value) { return value.is_number() && value.get<double>() >= 0; }, "a number that is not negative");
  }
  const Status& status() const { return status_; }

 private:
  template <typename T, typename Check>
  T read(const char* key, const Check& is_right, const char* expected) {
    const auto found = json_.find(key);
    if (found != json_.end() && is_right(*found)) return found->template get<T>();
    if (status_.ok())
      status_ = Status(Code::invalid,
                       fmt::format("{}: a row needs \"{}\", {}; was it written by another version?", where_, key, expected));
    return T{};
  }
  const Json& json_;
  const std::string& where_;
  Status status_;
};

// The keys that describe the machine, the build and the links. A difference between two files is explained by these keys only.
constexpr std::array environment_keys{
    "version",    "commit", "host",       "processor", "cores", "kernel", "congestion_control",
    "world_size", "links",  "impairment", "barrier",   "across"};

std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ResultRow> parse_row(const Json& json, const std::string& where) {
  Line line(json, where);
  ResultRow row;
  row.collective = line.text("collective");
  row.in_place = line.flag("in_place");
  row.bytes = line.whole("bytes");
  const auto root = json.find("root");
  row.what =
      fmt::format("{} {} {}, {} ranks, {}, {}{}, order {}, schedule {}", row.collective, line.text("dtype"), line.text("op"),
                  line.whole("world_size"), format_bytes(row.bytes), row.in_place ? "in place" : "out of place",
                  root != json.end() && root->is_number_unsigned() ? fmt::format(", root {}", root->get<uint64_t>()) : "",
                  line.text("order"), line.text("asked_schedule"));
  if (const auto codec = json.find("asked_codec"); codec != json.end()) row.what += ", codec " + plain(*codec);
  if (const auto delivery = json.find("asked_delivery"); delivery != json.end()) row.what += ", delivery " + plain(*delivery);
  row.p25_us = line.number("p25_us");
  row.p50_us = line.number("p50_us");
  row.p75_us = line.number("p75_us");
  row.p99_us = line.number("p99_us");
  row.bus_bandwidth = line.number("busbw_gbs") * (row.p50_us > 0 ? line.number("mean_us") / row.p50_us : 1);
  row.wrong = line.whole("wrong");
  if (!line.status().ok()) return line.status();
  return row;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Merges the results of several runs of one row into a single row.
ResultRow combine(const std::vector<ResultRow>& runs) {
  ResultRow row = runs.front();
  const auto of = [&](double ResultRow::*field) {
    std::vector<double> values;
    for (const auto& run : runs) values.push_back(run.*field);
    return values;
  };
  const auto lows = of(&ResultRow::p25_us);
  const auto highs = of(&ResultRow::p75_us);
  const auto tails = of(&ResultRow::p99_us);
  row.p25_us = *std::min_element(lows.begin(), lows.end());
  row.p50_us = median(of(&ResultRow::p50_us));
  row.p75_us = *std::max_element(highs.begin(), highs.end());
  row.p99_us = *std::max_element(tails.begin(), tails.end());
  row.bus_bandwidth = median(of(&ResultRow::bus_bandwidth));
  row.wrong = 0;
  for (const auto& run : runs) row.wrong += run.wrong;
  row.runs = runs.size();
  return row;
}

const ResultRow* find_row(const Results& results, const std::string& what) {
  const auto found =
      std::find_if(results.rows.begin(), results.rows.end(), [&](const ResultRow& row) { return row.what == what; });
  return found == results.rows.end() ? nullptr : &*found;
}

constexpr const char* verdicts[] = {"same", "faster", "slower", "WRONG"};

// Returns a heading, and one line for each difference, such as "#   cores    2 -> 4". Returns an empty text if the environments
// are equal.
std::string environment_change(const Results& before, const Results& now) {
  std::string text;
  for (const auto& [key, value] : now.environment) {
    const auto old = std::find_if(before.environment.begin(), before.environment.end(),
                                  [&, name = key](const auto& entry) { return entry.first == name; });
    if (old != before.environment.end() && old->second == value) continue;
    const auto was = old == before.environment.end() ? "unknown" : old->second;
    text += fmt::format("#   {:<20} {} -> {}\n", key, was.empty() ? "none" : was, value.empty() ? "none" : value);
  }
  return text.empty() ? "" : "# the environments differ:\n" + text;
}

}  // namespace

Result<Results> parse_results(std::string name, std::string_view text) {
  Results results{.name = std::move(name), .environment = {}, .rows = {}};
  std::vector<std::vector<ResultRow>> runs;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = text.substr(at, end - at);
    at = end + 1;
    const auto where = fmt::format("{}, line {}", results.name, ++number);
    if (line.empty()) continue;
    const auto json = Json::parse(line, nullptr, false);
    if (!json.is_object())
      return Status(Code::invalid, fmt::format("{}: this is not a JSON object; expected what --json wrote", where));
    const auto kind = json.find("kind");
    if (kind != json.end() && *kind == "environment" && results.environment.empty()) {
      for (const char* key : environment_keys) {
        if (json.contains(key)) results.environment.emplace_back(key, plain(json[key]));
      }
    }
    if (kind == json.end() || *kind != "row") continue;
    auto row = parse_row(json, where);
    if (!row.ok()) return row.status();
    const auto same =
        std::find_if(runs.begin(), runs.end(), [&](const auto& known) { return known.front().what == row->what; });
    if (same == runs.end()) runs.push_back({*std::move(row)});
    else same->push_back(*std::move(row));
  }
  if (runs.empty()) return Status(Code::invalid, fmt::format("{} holds no row of a measurement", results.name));
  for (const auto& each : runs) results.rows.push_back(combine(each));
  return results;
}

Result<Results> read_results(const std::string& path) {
  const auto failed = [&] {
    return Status(Code::unavailable, fmt::format("cannot read {}: {}", path, strerrordesc_np(errno)));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  if (file == nullptr) return failed();
  std::string text;
  std::array<char, 1u << 16> buffer;
  for (size_t got = 1; got > 0;) {
    got = std::fread(buffer.data(), 1, buffer.size(), file.get());
    text.append(buffer.data(), got);
  }
  return std::ferror(file.get()) != 0 ? failed() : parse_results(path, text);
}

std::vector<Comparison> compare_rows(const Results& before, const Results& now) {
  std::vector<Comparison> rows;
  for (const auto& row : now.rows) {
    const auto* old = find_row(before, row.what);
    if (old == nullptr) continue;
    Comparison comparison{.before = *old, .now = row, .ratio = old->p50_us > 0 ? row.p50_us / old->p50_us : 0};
    if (row.wrong > 0) comparison.change = Change::wrong;
    else if (row.p25_us > old->p75_us) comparison.change = Change::slower;
    else if (row.p75_us < old->p25_us) comparison.change = Change::faster;
    rows.push_back(std::move(comparison));
  }
  return rows;
}

std::vector<std::string> rows_without(const Results& results, const Results& other) {
  std::vector<std::string> rows;
  for (const auto& row : results.rows) {
    if (find_row(other, row.what) == nullptr) rows.push_back(row.what);
  }
  return rows;
}

std::string comparison_table(const Results& before, const Results& now, const std::vector<Comparison>& rows) {
  std::string text = fmt::format("# old: {}\n# new: {}\n", before.name, now.name) + environment_change(before, now);
  text +=
      "# ratio: new median / old median. A change counts if the middle halves of the times, 25th to 75th percentile, do not "
      "overlap; else it is \"same\".\n#\n";
  text += fmt::format("#{:>11} {:>11} {:>7} {:>7}  {:<23} {:<23} {}\n", "old p50", "new p50", "ratio", "verdict",
                      "old p25..p75 (us)", "new p25..p75 (us)", "what");
  std::array<size_t, 4> counts{};
  double logarithms = 0;
  size_t measured = 0;
  for (const auto& row : rows) {
    text += fmt::format(" {:>11.2f} {:>11.2f} {:>7.3f} {:>7}  {:<23} {:<23} {}\n", row.before.p50_us, row.now.p50_us, row.ratio,
                        verdicts[static_cast<size_t>(row.change)],
                        fmt::format("{:.2f}..{:.2f}", row.before.p25_us, row.before.p75_us),
                        fmt::format("{:.2f}..{:.2f}", row.now.p25_us, row.now.p75_us), row.now.what);
    ++counts[static_cast<size_t>(row.change)];
    if (row.ratio > 0) logarithms += std::log(row.ratio), ++measured;
  }
  for (const auto& what : rows_without(before, now)) text += fmt::format("# only in {}: {}\n", before.name, what);
  for (const auto& what : rows_without(now, before)) text += fmt::format("# only in {}: {}\n", now.name, what);
  text += fmt::format("# {} rows: {} same, {} faster, {} slower", rows.size(), counts[0], counts[1], counts[2]);
  if (counts[3] > 0) text += fmt::format(", {} WRONG", counts[3]);
  if (measured > 0)
    text += fmt::format("; geometric mean of the ratios {:.3f}", std::exp(logarithms / static_cast<double>(measured)));
  return text + "\n";
}

bool fails(const std::vector<Comparison>& rows, double limit) {
  return std::any_of(rows.begin(), rows.end(), [&](const Comparison& row) {
    return row.change == Change::wrong || (limit > 0 && row.change == Change::slower && row.ratio > limit);
  });
}

namespace {

struct Drawing {
  // names of the collectives; the index of a name in this list determines the colour of its curves
  std::vector<std::string> names;
  Panel times{.title = "Time: median, shaded up to the 99th percentile",
              .x_label = "size (bytes)",
              .y_label = "time (us)",
              .series = {},
              .x_axis = Axis::bytes,
              .y_axis = Axis::decades,
              .legend = Corner::upper_left};
  Panel bandwidths{.title = "Bus bandwidth, of the median time",
                   .x_label = "size (bytes)",
                   .y_label = "GB/s",
                   .series = {},
                   .x_axis = Axis::bytes,
                   .y_axis = Axis::decades,
                   .legend = Corner::lower_right};
  void add(const Results& results, const std::string& suffix, bool dashed);
};

// Adds one curve for each collective in a result file. The rows stay in the order of the file.
void Drawing::add(const Results& results, const std::string& suffix, bool dashed) {
  std::vector<std::string> done;
  for (const auto& first : results.rows) {
    const auto& name = first.collective;
    if (std::find(done.begin(), done.end(), name) != done.end()) continue;
    done.push_back(name);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    const auto at = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    const bool in_place = std::any_of(results.rows.begin(), results.rows.end(),
                                      [&](const ResultRow& row) { return row.collective == name && row.in_place; });
    Series time{.name = name + suffix, .colour = line_colour(at), .dashed = dashed, .points = {}};
    Series bandwidth = time;
    for (const auto& row : results.rows) {
      if (row.collective != name || row.in_place != in_place) continue;
      time.points.push_back({static_cast<double>(row.bytes), row.p50_us});
      time.upper.push_back(row.p99_us);
      bandwidth.points.push_back({static_cast<double>(row.bytes), row.bus_bandwidth});
    }
    times.series.push_back(std::move(time));
    bandwidths.series.push_back(std::move(bandwidth));
  }
}

}  // namespace

Status plot_results(const std::string& path, const Results& before, const Results* now) {
  Drawing drawing;
  if (now != nullptr) drawing.add(*now, ", new", false);
  drawing.add(before, now == nullptr ? "" : ", old", now != nullptr);
  return write_svg(path, {drawing.times, drawing.bandwidths});
}

}  // namespace unisono::cli
