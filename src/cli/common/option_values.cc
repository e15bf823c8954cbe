#include "cli/common/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/common/progress.h"
#include "sim/settings_text.h"

namespace unisono::cli {

Status invalid(std::string message) { return {Code::invalid, std::move(message)}; }

Status of_option(std::string_view option, Status status) {
  return status.ok() ? status : Status(status.code(), fmt::format("{}: {}", option, status.message()));
}

Status first_wrong(std::initializer_list<Status> all) {
  for (const auto& status : all) {
    if (!status.ok()) return status;
  }
  return {};
}

Result<size_t> parse_word(std::string_view option, const std::string& typed, const std::vector<std::string>& known) {
  const auto found = std::find(known.begin(), known.end(), typed);
  if (found != known.end()) return static_cast<size_t>(found - known.begin());
  const auto meant = nearest_name(typed, known);
  return invalid(fmt::format("{} '{}' is none of {}{}", option, typed, fmt::join(known, ", "),
                             meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant)));
}

Status check_word(std::string_view option, const std::string& typed, const std::vector<std::string>& known) {
  return parse_word(option, typed, known).status();
}
Status check_progress(const std::string& typed) { return check_word("--progress", typed, progress_names()); }

Result<std::vector<uint64_t>> parse_seed_list(std::string_view typed, uint64_t first, uint64_t limit) {
  const auto wrong = [&] {
    return invalid(fmt::format("--seeds '{}': expected how many, 1 to {}, or which of them, as in 3-7", typed, limit));
  };
  sim::SeedRange range{first, first};
  if (typed.find('-') == std::string_view::npos) {
    const auto count = parse_count(typed, limit);
    if (!count.ok() || *count == 0) return wrong();
    range.last = first + *count - 1;
  } else {
    const auto parsed = sim::parse_seeds(typed);
    if (!parsed.ok() || parsed->last - parsed->first >= limit) return wrong();
    range = *parsed;
  }
  std::vector<uint64_t> seeds;
  for (uint64_t seed = range.first; seed <= range.last; ++seed) seeds.push_back(seed);
  return seeds;
}

Result<uint64_t> parse_bytes_up_to(std::string_view option, std::string_view typed, uint64_t high) {
  auto bytes = of_option(option, parse_bytes(typed));
  if (bytes.ok() && *bytes > high)
    return invalid(fmt::format("{} '{}': expected a size of at most {}", option, typed, format_bytes(high)));
  return bytes;
}

Result<double> parse_number(std::string_view option, std::string_view typed, double low, double high) {
  double value = 0;
  const auto [end, error] = std::from_chars(typed.data(), typed.data() + typed.size(), value);
  const bool read = error == std::errc{} && end == typed.data() + typed.size();
  if (!read || !(value >= low && value <= high))
    return invalid(fmt::format("{} '{}': expected a number from {} to {}", option, typed, low, high));
  return value;
}

Status set_time(Nanos& value, std::string_view option, std::string_view typed, Nanos low, Nanos high) {
  const auto time = parse_duration(typed);
  if (!time.ok()) return invalid(fmt::format("{} {}", option, time.status().message()));
  if (*time < low || *time > high)
    return invalid(
        fmt::format("{} '{}': expected a time from {} to {}", option, typed, format_duration(low), format_duration(high)));
  value = *time;
  return {};
}

}  // namespace unisono::cli
