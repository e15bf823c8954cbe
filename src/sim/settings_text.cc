#include "sim/settings_text.h"

#include <charconv>
#include <functional>
#include <sstream>
#include <vector>

#include "base/concat.h"

namespace unisono::sim {
namespace {

constexpr uint64_t peers_max = 8192;

Status wrong(std::string_view word, std::string_view value) {
  return {Code::invalid, "'" + std::string(value) + "' is not a valid value of " + std::string(word)};
}

Result<uint64_t> number(std::string_view word, std::string_view text, uint64_t most) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > most) return wrong(word, text);
  return value;
}

// Returns the enumerator with the given name.
template <typename E>
Result<E> named(std::string_view word, std::string_view text, int count) {
  for (int i = 0; i < count; ++i) {
    if (text == name(static_cast<E>(i))) return static_cast<E>(i);
  }
  return wrong(word, text);
}

const char* order_name(Order order) { return order == Order::in_rank_order ? "strict" : order == Order::any ? "any" : "auto"; }

Result<Order> parse_order(std::string_view text) {
  for (const auto order : {Order::automatic, Order::in_rank_order, Order::any}) {
    if (text == order_name(order)) return order;
  }
  return wrong("--order", text);
}

template <typename T>
Status put(T& to, Result<T> value) {
  if (!value) return value.status();
  to = *value;
  return {};
}

template <typename T>
Status put_number(T& to, std::string_view word, std::string_view text, uint64_t most) {
  const auto value = number(word, text, most);
  if (!value) return value.status();
  to = static_cast<T>(*value);
  return {};
}

Status apply(SettingsLine& line, const std::string& word, const std::string& value) {
  auto& s = line.settings;
  if (word == "--seeds") return put(line.seeds, parse_seeds(value));
  if (word == "--peers") return put_number(s.peers, word, value, peers_max);
  if (word == "--faults") return put(s.faults, parse_fault_profile(value));
  if (word == "--bytes") return put_number(s.bytes, word, value, uint64_t{1} << 32);
  if (word == "--dtype") return put(s.dtype, named<DType>(word, value, dtype_count));
  if (word == "--op") return put(s.op, named<ReduceOp>(word, value, reduce_op_count));
  if (word == "--order") return put(s.order, parse_order(value));
  if (word == "--schedule") return put(s.schedule, named<ScheduleKind>(word, value, schedule_count));
  if (word == "--slice") return put_number(s.slice_bytes, word, value, 16u << 20);
  if (word == "--ranks-per-host") return put_number(s.ranks_per_host, word, value, peers_max);
  if (word == "--message-us") return put_number(s.message_us, word, value, 1'000'000);
  if (word == "--fail-send") return put_number(s.fail_send, word, value, UINT64_MAX);
  if (word == "--fail-receive") return put_number(s.fail_receive, word, value, UINT64_MAX);
  if (word == "--fail-credit") return put_number(s.fail_credit, word, value, UINT64_MAX);
  if (word == "--fail-acquire") return put_number(s.fail_acquire, word, value, UINT64_MAX);
  return {Code::invalid, "unknown option '" + word + "'"};
}

}  // namespace

Result<SeedRange> parse_seeds(std::string_view text) {
  const auto dash = text.find('-');
  const auto first = number("--seeds", text.substr(0, dash), UINT64_MAX - 1);
  if (!first) return first.status();
  if (dash == std::string_view::npos) return SeedRange{*first, *first};
  const auto last = number("--seeds", text.substr(dash + 1), UINT64_MAX - 1);
  if (!last) return last.status();
  if (*last < *first) return wrong("--seeds", text);
  return SeedRange{*first, *last};
}

std::string to_text(const SettingsLine& line) {
  const auto& s = line.settings;
  const ScenarioSettings defaults;
  std::string text = name(s.kind);
  const auto add = [&](const char* word, const auto& value, const auto& otherwise, auto write) {
    if (value != otherwise) text += std::string(" ") + word + " " + write(value);
  };
  const auto plain = [](uint64_t value) { return std::to_string(value); };
  const auto by_name = [](auto value) { return std::string(name(value)); };
  add("--peers", s.peers, defaults.peers, plain);
  text += std::string(" --faults ") + name(s.faults);
  add("--bytes", s.bytes, defaults.bytes, plain);
  add("--dtype", s.dtype, defaults.dtype, by_name);
  add("--op", s.op, defaults.op, by_name);
  add("--order", s.order, defaults.order, [](Order order) { return std::string(order_name(order)); });
  add("--schedule", s.schedule, defaults.schedule, by_name);
  add("--slice", s.slice_bytes, defaults.slice_bytes, plain);
  add("--ranks-per-host", s.ranks_per_host, defaults.ranks_per_host, plain);
  add("--message-us", s.message_us, defaults.message_us, plain);
  add("--fail-send", s.fail_send, 0u, plain);
  add("--fail-receive", s.fail_receive, 0u, plain);
  add("--fail-credit", s.fail_credit, 0u, plain);
  add("--fail-acquire", s.fail_acquire, 0u, plain);
  text += concat(" --seeds ", line.seeds.first);
  return line.seeds.last == line.seeds.first ? text : concat(text, "-", line.seeds.last);
}

Result<SettingsLine> parse_settings(std::string_view text) {
  std::istringstream words{std::string(text)};
  SettingsLine line;
  std::string word, value;
  words >> word;
  auto status = put(line.settings.kind, parse_scenario_kind(word));
  while (status.ok() && words >> word) {
    if (!(words >> value)) return Status(Code::invalid, "'" + word + "' has no value");
    status = apply(line, word, value);
  }
  if (!status.ok()) return status;
  return line;
}

}  // namespace unisono::sim
