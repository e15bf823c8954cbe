// Builds a text from parts: concat("rank ", rank, " of ", world_size).
//
// A part is a text, a character or a number. Integers are written in decimal digits; signed and unsigned char count as
// integers. A floating-point number becomes the shortest text that reads back as the same number. There is no conversion for
// bool and for enumerations, because the right word for them depends on the sentence.
#pragma once

#include <charconv>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace unisono {

// One part of a text. It refers to the caller's text, or holds the digits of a number.
class TextPart {
 public:
  TextPart(std::string_view text) : text_(text) {}
  TextPart(const std::string& text) : text_(text) {}
  TextPart(const char* text) : text_(text) {}
  TextPart(char letter) : text_(own_, 1) { own_[0] = letter; }
  template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number>>>
  TextPart(Number number) : text_(own_, static_cast<size_t>(std::to_chars(own_, own_ + sizeof own_, number).ptr - own_)) {}
  TextPart(bool) = delete;

  TextPart(const TextPart&) = delete;
  TextPart& operator=(const TextPart&) = delete;

  std::string_view text() const { return text_; }

 private:
  char own_[24];  // large enough for the longest numbers: 18446744073709551615 and -2.2250738585072014e-308
  std::string_view text_;
};

inline std::string join_parts(std::span<const TextPart> parts) {
  size_t bytes = 0;
  for (const auto& part : parts) bytes += part.text().size();
  std::string text;
  text.reserve(bytes);
  for (const auto& part : parts) text += part.text();
  return text;
}

template <typename... Parts>
requires(sizeof...(Parts) > 0) std::string concat(const Parts&... parts) {
  const TextPart all[] = {TextPart(parts)...};
  return join_parts(all);
}

}  // namespace unisono
