#include "cli/launch/thin_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <utility>

#include "cli/common/text.h"

namespace unisono::cli {
namespace {

constexpr uint64_t rate_min = 8'000;
constexpr double rate_max = 1e15;

std::string format_rate(uint64_t bits_per_second) {
  const auto rate = static_cast<double>(bits_per_second);
  if (rate >= 1e9) return fmt::format("{:.4g} Gbit/s", rate / 1e9);
  return rate >= 1e6 ? fmt::format("{:.4g} Mbit/s", rate / 1e6) : fmt::format("{:.4g} kbit/s", rate / 1e3);
}

Nanos time_on_cable(uint64_t bytes, uint64_t bits_per_second) {
  return static_cast<Nanos>(std::llround(static_cast<double>(bytes) * 8e9 / static_cast<double>(bits_per_second)));
}

}  // namespace

std::string LinkLimits::to_string() const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (bits_per_second > 0) add(format_rate(bits_per_second) + " per rank and direction");
  if (loss > 0) add(fmt::format("{:.4g} % of packets lost", loss * 100));
  if (delay > 0) add(format_duration(delay) + " one way");
  return text;
}

Result<uint64_t> parse_rate(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const double scale = unit.empty() ? 1 : unit == "K" || unit == "k" ? 1e3 : unit == "M" ? 1e6 : unit == "G" ? 1e9 : 0;
  const double rate = value * scale;
  if (error != std::errc{} || !(rate >= static_cast<double>(rate_min)) || rate > rate_max) {
    return Status(Code::invalid,
                  fmt::format("--rate '{}': expected bits per second, such as 100M or 1G (powers of 1000), at least 8K", text));
  }
  return static_cast<uint64_t>(rate);
}

Result<double> parse_loss(std::string_view text) {
  double value = 0;
  const bool percent = text.ends_with('%');
  if (percent) text.remove_suffix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const double loss = percent ? value / 100 : value;
  if (error != std::errc{} || end != text.data() + text.size() || !(loss >= 0) || !(loss < 1)) {
    return Status(Code::invalid, fmt::format("--loss '{}{}': expected a share of the packets below 100 %, such as 1% or 0.01",
                                             text, percent ? "%" : ""));
  }
  return loss;
}

ThinLinks::ThinLinks(const LinkLimits& limits, uint32_t ranks, uint64_t seed)
    : limits_(limits), random_(seed), up_(ranks, 0), down_(ranks, 0) {}

std::optional<Nanos> ThinLinks::cross(Nanos& free, Nanos at, size_t packet_bytes) {
  const auto rate = limits_.bits_per_second;
  if (rate == 0) return bytes_ + packet_bytes > under_way_bytes_max ? std::nullopt : std::optional(at);
  const auto start = std::max(free, at);
  if (start - at > std::max(queue_time, time_on_cable(queue_packets_min * 1538, rate))) return std::nullopt;
  free = start + time_on_cable(packet_bytes + frame_overhead_bytes, rate);
  return free;
}

void ThinLinks::add(Event event) {
  event.number = ++number_;
  bytes_ += event.packet.size();
  events_.push_back(std::move(event));
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

void ThinLinks::send(uint32_t from, uint32_t to, std::string packet, Nanos now) {
  ++counts_.packets;
  if (const auto at = cross(up_[from], now, packet.size()))
    add({.at = *at, .at_switch = true, .to = to, .packet = std::move(packet)});
  else ++counts_.overflowed;
}

std::optional<Arrival> ThinLinks::take(Nanos now) {
  while (!events_.empty() && events_.front().at <= now) {
    std::pop_heap(events_.begin(), events_.end(), std::greater<>());
    Event event = std::move(events_.back());
    events_.pop_back();
    bytes_ -= event.packet.size();
    if (!event.at_switch) return Arrival{event.at, event.to, std::move(event.packet)};
    const auto arrived = cross(down_[event.to], event.at, event.packet.size());
    // A packet can be lost only after it has crossed both cables. So lost packets use up bandwidth, too.
    const bool lost = arrived && limits_.loss > 0 && random_.chance(limits_.loss);
    if (!arrived) ++counts_.overflowed;
    else if (lost) ++counts_.lost;
    else add({.at = *arrived + limits_.delay, .at_switch = false, .to = event.to, .packet = std::move(event.packet)});
  }
  return std::nullopt;
}

}  // namespace unisono::cli
