#include "research/compression/gradient_compression.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace language_model {

using unisono::Code;
using unisono::Compression;
using unisono::Result;
using unisono::Status;

namespace {

using By = GradientCompression::By;

const char* name_of(By by) { return by == By::top_k ? "top-k" : "power-sgd"; }

// Returns the value that the text gives to the option `key`. Returns nullopt if the text does not contain this option.
std::optional<std::string_view> value_of(std::string_view text, std::string_view key) {
  for (size_t begin = std::min(text.find(':'), text.size()) + 1; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto option = text.substr(begin, end - begin);
    if (option.size() > key.size() && option.starts_with(key) && option[key.size()] == '=')
      return option.substr(key.size() + 1);
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace

std::string GradientCompression::to_string() const {
  if (by == By::nothing) return {};
  const auto text = options.to_string();
  return by == By::reducer ? text : name_of(by) + text.substr(std::min(text.find(':'), text.size()));
}

Result<GradientCompression> parse_compress(const std::string& text, const std::string& feedback) {
  if (text.empty()) {
    if (!feedback.empty())
      return Status(Code::invalid, "--feedback " + feedback + " needs --compress: it applies to rows that are not sent");
    return GradientCompression{};
  }
  auto whole = text;
  if (!feedback.empty()) {
    const auto given = value_of(text, "feedback");
    if (given && *given != feedback) {
      return Status(Code::invalid, "--feedback " + feedback + " and feedback=" + std::string(*given) +
                                       " in --compress contradict each other: give one of them");
    }
    if (!given) whole += (text.find(':') == text.npos ? ":feedback=" : ",feedback=") + feedback;
  }
  auto options = Compression::parse(whole);
  if (!options.ok()) return Status(options.status().code(), "--compress " + whole + ": " + options.status().message());
  options->adaptive_optimizer = true;
  return GradientCompression{.by = By::reducer, .options = *options};
}

Result<GradientCompression> parse_baseline(const std::string& text) {
  if (text.empty()) return GradientCompression{};
  const size_t colon = std::min(text.find(':'), text.size());
  const auto name = text.substr(0, colon);
  const By by = name == name_of(By::top_k) ? By::top_k : name == name_of(By::power_sgd) ? By::power_sgd : By::nothing;
  if (by == By::nothing) return Status(Code::invalid, "--baseline \"" + name + "\" is none of top-k, power-sgd");
  auto options = Compression::parse("arc" + text.substr(colon));
  if (!options.ok()) return Status(options.status().code(), "--baseline " + text + ": " + options.status().message());
  const Compression taken{.ratio = options->ratio,
                          .rank = options->rank,
                          .round_down = options->round_down,
                          .seed = options->seed,
                          .start_step = options->start_step,
                          .schedule = {},
                          .max_payload = options->max_payload,
                          .min_elements = options->min_elements,
                          .values = {},
                          .sketch = {}};
  if (*options != taken) {
    return Status(Code::invalid,
                  "--baseline " + text + ": " + name +
                      " takes ratio, rank, round, seed, start, max_payload and min_elements, and its feedback is ef14");
  }
  return GradientCompression{.by = by, .options = taken};
}

}  // namespace language_model
