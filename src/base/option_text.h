// Parses and writes options as text: "method:key=value,key=value". Compression, DropOptions and DeliveryOptions use this.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/status.h"

namespace unisono::option_text {

inline Status wrong(const std::string& what) { return {Code::invalid, "bad_option: " + what}; }

template <typename Number>
Status set_number(Number& number, std::string_view key, std::string_view value) {
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc() && end == value.data() + value.size()) return {};
  return wrong(std::string(key) + "=" + std::string(value) + " is not a number in the range of this option");
}

// Sets `choice` to the enumerator whose name is `value`. names[i] is the name of the enumerator with the number i.
template <typename Choice, size_t count>
Status set_choice(Choice& choice, std::string_view key, std::string_view value, const std::array<const char*, count>& names) {
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    if (value == names[i]) return choice = static_cast<Choice>(i), Status();
    all += std::string(i > 0 ? ", " : "") + names[i];
  }
  return wrong(std::string(key) + " \"" + std::string(value) + "\" is none of " + all);
}

template <typename Options>
struct Option {
  const char* key;
  std::function<Status(Options& options, std::string_view key, std::string_view value)> set;
};

// Parses the part of the text that follows the colon. `example` must be a valid option; error messages show it.
template <typename Options>
Status set_options(Options& options, std::string_view text, const std::vector<Option<Options>>& all, const char* example) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto option = text.substr(begin, end - begin);
    const auto equals = option.find('=');
    if (equals == option.npos) return wrong("\"" + std::string(option) + "\" is not an option; options look like " + example);
    const auto key = option.substr(0, equals);
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) { return key == each.key; });
    if (found == all.end()) {
      std::string known;
      for (const auto& each : all) known += std::string(known.empty() ? "" : ", ") + each.key;
      return wrong("option \"" + std::string(key) + "\" is none of " + known);
    }
    if (auto status = found->set(options, key, option.substr(equals + 1)); !status.ok()) return status;
    begin = end + 1;
  }
  return {};
}

// Returns the shortest text that parses to the same number.
template <typename Number>
std::string shortest(Number number) {
  char text[32];
  return {text, std::to_chars(std::begin(text), std::end(text), number).ptr};
}

// Writes ":key=value,key=value". Options that have their default values are left out.
class Writer {
 public:
  void add(bool differs, const char* key, const std::string& value) {
    if (differs) text_ += (text_.empty() ? ":" : ",") + std::string(key) + "=" + value;
  }
  template <typename Number>
  void add_number(Number number, Number usual, const char* key) {
    add(number != usual, key, shortest(number));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace unisono::option_text
