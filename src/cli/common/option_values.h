// Parses the text of an option into a value. Error messages name the option, the text, and the values that the option can have.
// All functions are pure.
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
// Returns the status. If it is an error, the name of the option stands before its message: "--timeout: '5y' is not a time".
Status of_option(std::string_view option, Status status);
template <typename T>
Result<T> of_option(std::string_view option, Result<T> value) {
  if (value.ok()) return value;
  return of_option(option, value.status());
}
// Returns the first status that is not ok, or ok.
Status first_wrong(std::initializer_list<Status> all);

// Returns the index of the word in `known`. If the word is not in `known`, the error message suggests the most similar word
// that is.
Result<size_t> parse_word(std::string_view option, const std::string& typed, const std::vector<std::string>& known);
Status check_word(std::string_view option, const std::string& typed, const std::vector<std::string>& known);
// Checks a value of --progress against progress_names() in cli/common/progress.h.
Status check_progress(const std::string& typed);

// Parses a list of seeds. "3" means three seeds that begin with `first`; "4-6" means the seeds 4, 5 and 6. The list may have at
// most `limit` seeds.
Result<std::vector<uint64_t>> parse_seed_list(std::string_view typed, uint64_t first, uint64_t limit);
// Parses a size, such as 64M. It must be at most `high`.
Result<uint64_t> parse_bytes_up_to(std::string_view option, std::string_view typed, uint64_t high);
Result<double> parse_number(std::string_view option, std::string_view typed, double low, double high);
Status set_time(Nanos& value, std::string_view option, std::string_view typed, Nanos low, Nanos high);

template <typename Number>
Status set_number(Number& value, std::string_view option, std::string_view typed, uint64_t low, uint64_t high) {
  const auto number = parse_between(option, typed, low, high);
  if (number.ok()) value = static_cast<Number>(*number);
  return number.status();
}

// A word that an option accepts, and the value that it stands for.
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
  const auto index = parse_word(option, typed, names_of(words));
  if (index.ok()) value = words[*index].value;
  return index.status();
}

}  // namespace unisono::cli
