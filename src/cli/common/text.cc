#include "cli/common/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstring>

namespace unisono::cli {
namespace {

struct Quantity {
  double value = 0;
  std::string_view unit;
};

// Splits a text into a decimal number and the letters after it. Returns false if the text has another form, or if the number is
// negative or not finite.
bool split_quantity(std::string_view text, Quantity& out) {
  const auto digits = text.find_first_not_of("0123456789.");
  const auto number = text.substr(0, digits);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), out.value, std::chars_format::fixed);
  if (error != std::errc{} || end != number.data() + number.size()) return false;
  out.unit = digits == std::string_view::npos ? std::string_view{} : text.substr(digits);
  return std::isfinite(out.value);
}

// Returns the Damerau-Levenshtein distance between two words: the number of typing errors that turn one into the other.
// Swapping two adjacent letters counts as one error.
size_t typing_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
  Quantity quantity;
  if (!split_quantity(text, quantity)) return Status(Code::invalid, fmt::format("'{}' is not a size such as 64M", text));
  constexpr std::string_view letters = "KMGT";
  double scale = 1;
  if (!quantity.unit.empty() && quantity.unit != "B") {
    const auto letter = static_cast<char>(std::toupper(static_cast<unsigned char>(quantity.unit[0])));
    const auto power = letters.find(letter);
    const auto rest = quantity.unit.substr(1);
    if (power == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "iB")) {
      return Status(Code::invalid, fmt::format("'{}' is not a size such as 64M: units are K, M, G, T (powers of 1024)", text));
    }
    scale = std::pow(1024.0, static_cast<double>(power + 1));
  }
  if (quantity.value * scale > 0x1p62) return Status(Code::invalid, fmt::format("size '{}' is above 2^62 bytes", text));
  return static_cast<uint64_t>(quantity.value * scale);
}

Result<Nanos> parse_duration(std::string_view text) {
  Quantity quantity;
  if (!split_quantity(text, quantity))
    return Status(Code::invalid, fmt::format("'{}' is not a time such as 5s or 200ms", text));
  double scale = 0;
  if (quantity.unit.empty() || quantity.unit == "s") scale = static_cast<double>(second);
  if (quantity.unit == "ms") scale = static_cast<double>(millisecond);
  if (quantity.unit == "us") scale = static_cast<double>(microsecond);
  if (quantity.unit == "ns") scale = 1;
  if (quantity.unit == "m" || quantity.unit == "min") scale = 60.0 * static_cast<double>(second);
  if (quantity.unit == "h") scale = 3600.0 * static_cast<double>(second);
  if (scale == 0)
    return Status(Code::invalid, fmt::format("'{}' is not a time such as 5s: units are ns, us, ms, s, m, h", text));
  if (quantity.value * scale > 3.2e16) return Status(Code::invalid, fmt::format("time '{}' is longer than a year", text));
  return static_cast<Nanos>(std::llround(quantity.value * scale));
}

Result<uint64_t> parse_count(std::string_view text, uint64_t limit) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range || (error == std::errc{} && value > limit)) {
    return Status(Code::invalid, fmt::format("'{}' is above {}", text, limit));
  }
  if (error != std::errc{} || end != text.data() + text.size()) {
    return Status(Code::invalid, fmt::format("'{}' is not a whole number", text));
  }
  return value;
}

Result<uint64_t> parse_between(std::string_view option, std::string_view text, uint64_t low, uint64_t high) {
  const auto value = parse_count(text, high);
  if (!value.ok() || *value < low)
    return Status(Code::invalid, fmt::format("{} '{}': expected a whole number from {} to {}", option, text, low, high));
  return *value;
}

std::vector<std::string> split_list(std::string_view list) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= list.size();) {
    const auto end = std::min(list.find(',', at), list.size());
    words.emplace_back(list.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

std::string format_duration(Nanos duration) {
  if (duration < millisecond) return fmt::format("{} us", duration / microsecond);
  if (duration < second) return fmt::format("{} ms", duration / millisecond);
  if (duration % second == 0) return fmt::format("{} s", duration / second);
  return fmt::format("{:.2f} s", static_cast<double>(duration) / static_cast<double>(second));
}

std::string format_bytes(uint64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return fmt::format("{:.3g} {}", value, units[unit]);
}

std::string format_ranks(std::span<const uint32_t> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last - i < 2) last = i;
    if (i > 0) text += ", ";
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string signal_name(int signal) {
  if (const char* abbreviation = sigabbrev_np(signal)) return fmt::format("SIG{}", abbreviation);
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) return fmt::format("SIGRTMIN+{}", signal - SIGRTMIN);
  return fmt::format("signal {}", signal);
}

std::string nearest_name(std::string_view typed, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, typed.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    const auto distance = typing_distance(typed, candidate);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = candidate;
  }
  return best;
}

std::string shell_quote(std::string_view word) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,";
  if (!word.empty() && word.find_first_not_of(plain) == std::string_view::npos) return std::string(word);
  std::string quoted = "'";
  for (const char letter : word) {
    if (letter == '\'') quoted += "'\\''";
    else quoted += letter;
  }
  return quoted + "'";
}

Result<std::vector<std::string>> split_words(std::string_view command) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < command.size(); ++i) {
    const char letter = command[i];
    const bool escapes = letter == '\\' && quote != '\'' && i + 1 < command.size() &&
                         (quote == 0 || command[i + 1] == '"' || command[i + 1] == '\\');
    if (escapes) {
      word += command[++i];
      in_word = true;
    } else if (quote != 0) {
      if (letter == quote) quote = 0;
      else word += letter;
    } else if (letter == '\'' || letter == '"') {
      quote = letter;
      in_word = true;
    } else if (letter == ' ' || letter == '\t' || letter == '\n') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else {
      word += letter;
      in_word = true;
    }
  }
  if (quote != 0) return Status(Code::invalid, fmt::format("the quote {} in '{}' is not closed", quote, command));
  if (in_word) words.push_back(std::move(word));
  return words;
}

}  // namespace unisono::cli
