// Parses the text of an option into a value. The Status of an error names the option, the text, and the values that it takes.
// Pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "cli/common/text.h"
#include "unisono/status.h"

namespace unisono::cli {

Status invalid(std::string message);
// The first that is not ok; ok if all are.
Status first_wrong(std::initializer_list<Status> all);

// The index of the word among those known; for an unknown word the message says which one may be meant.
Result<size_t> parse_word(std::string_view option, const std::string& typed, const std::vector<std::string>& known);
Status check_word(std::string_view option, const std::string& typed, const std::vector<std::string>& known);
// As progress_names() in cli/common/progress.h has them.
Status check_progress(const std::string& typed);

// "3": of how many, from `first` on; "4-6": which. At most `limit`.
Result<std::vector<uint64_t>> parse_seed_list(std::string_view typed, uint64_t first, uint64_t limit);
Result<double> parse_number(std::string_view option, std::string_view typed, double low, double high);
Status set_time(Nanos& value, std::string_view option, std::string_view typed, Nanos low, Nanos high);

template <typename Number>
Status set_number(Number& value, std::string_view option, std::string_view typed, uint64_t low, uint64_t high) {
  const auto number = parse_between(option, typed, low, high);
  if (number.ok()) value = static_cast<Number>(*number);
  return number.status();
}

// A word, and what it stands for.
template <typename T>
struct Word {
  std::string_view name;
  T value;
};

template <typename T, size_t count>
std::vector<std::string> names_of(const Word<T> (&words)[count]) {
  std::vector<std::string> names;
  for (const auto& word : words) names.emplace_back(word.name);
  return names;
}

template <typename T, size_t count>
Status set_word(T& value, std::string_view option, const std::string& typed, const Word<T> (&words)[count]) {
  const auto place = parse_word(option, typed, names_of(words));
  if (place.ok()) value = words[*place].value;
  return place.status();
}

}  // namespace unisono::cli
