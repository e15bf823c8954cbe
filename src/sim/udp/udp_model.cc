#include "sim/udp/udp_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <span>

#include "base/concat.h"

namespace unisono::sim {
namespace {

constexpr double seconds_max = 1e5;
constexpr uint32_t datagram_bytes_min = 1200, datagram_bytes_max = 8972;  // 1200 is the minimum that the transport assumes

struct Unit {
  const char* name;
  double value;
};
constexpr Unit rate_units[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}};
constexpr Unit byte_units[] = {{"", 1}, {"K", 1024}, {"M", 1048576}, {"G", 1073741824}};
constexpr Unit time_units[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};

Status wrong(const std::string& what) { return {Code::invalid, "bad_network: " + what}; }

// Parses a number that is followed by one of the units. The result is rounded to an integer.
bool read(int64_t& value, std::string_view text, std::span<const Unit> units, double low, double high) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) return false;
  const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
  if (number == 0 && rest.empty() && low <= 0) return value = 0, true;
  for (const auto& unit : units) {
    if (rest != unit.name) continue;
    value = std::llround(std::clamp(number * unit.value, -1., 9e18));
    return static_cast<double>(value) >= low && static_cast<double>(value) <= high;
  }
  return false;
}

bool read_time(Nanos& time, std::string_view text) { return read(time, text, time_units, 0, seconds_max * 1e9); }

std::string shortest(double number) {
  char text[32];
  return {text, std::to_chars(std::begin(text), std::end(text), number).ptr};
}

// Returns the value as text. The unit is the largest one in which the value is at least 1; for bytes, the value must also be a
// multiple of the unit.
std::string text_of(int64_t value, std::span<const Unit> units) {
  const auto fits = [&](const Unit& unit) {
    return static_cast<double>(value) >= unit.value &&
           (units.data() != byte_units || std::fmod(static_cast<double>(value), unit.value) == 0);
  };
  auto unit = units.rbegin();
  while (unit + 1 != units.rend() && !fits(*unit)) ++unit;
  return shortest(static_cast<double>(value) / unit->value) + (value == 0 ? "" : unit->name);
}

bool read_process(PeerIndex& process, std::string_view text) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), process);
  return error == std::errc() && end == text.data() + text.size();
}

// Parses text such as "3@2s" or "3@2s-2.5s".
bool read_when(PeerFault& fault, std::string_view value) {
  const auto at = value.find('@'), dash = value.find('-');
  if (at == value.npos || !read_process(fault.process, value.substr(0, at)) ||
      !read_time(fault.from, value.substr(at + 1, dash == value.npos ? dash : dash - at - 1)))
    return false;
  if (dash == value.npos) return fault.kind != PeerFaultKind::stop;
  return fault.kind != PeerFaultKind::kill && read_time(fault.to, value.substr(dash + 1)) && fault.to > fault.from;
}

Status read_fault(UdpModel& model, PeerFaultKind kind, std::string_view value) {
  PeerFault fault{.kind = kind};
  bool good = false;
  if (kind == PeerFaultKind::slow) {
    const auto cross = value.find('x');
    if (cross != value.npos && read_process(fault.process, value.substr(0, cross))) {
      const auto factor = value.substr(cross + 1);
      const auto [end, error] = std::from_chars(factor.data(), factor.data() + factor.size(), fault.factor);
      good = error == std::errc() && end == factor.data() + factor.size() && fault.factor >= 1 && fault.factor <= 1e6;
    }
  } else {
    good = read_when(fault, value);
  }
  constexpr const char* looks[] = {"3@2s, or 3@2s-2.5s: a rank, from when and to when", "3@2s: a rank, and when",
                                   "3@2s-2.5s: a rank, from when and to when",
                                   "5x10: a rank, and how many times as long, 1 to 1e6"};
  if (!good)
    return wrong(std::string(name(kind)) + "=" + std::string(value) + ": expected " + looks[static_cast<size_t>(kind)]);
  model.faults.push_back(fault);
  return {};
}

struct TimeKey {
  const char* name;
  Nanos UdpModel::*value;
};
constexpr TimeKey time_keys[] = {
    {"delay", &UdpModel::delay}, {"jitter", &UdpModel::jitter}, {"compute", &UdpModel::compute}, {"spread", &UdpModel::spread}};
constexpr PeerFaultKind fault_kinds[] = {PeerFaultKind::dead, PeerFaultKind::kill, PeerFaultKind::stop, PeerFaultKind::slow};

Status read_part(UdpModel& model, std::string_view part) {
  const auto equals = std::min(part.find('='), part.size());
  const auto key = part.substr(0, equals), value = part.substr(std::min(equals + 1, part.size()));
  int64_t number = 0;
  for (const auto kind : fault_kinds) {
    if (key == name(kind)) return read_fault(model, kind, value);
  }
  for (const auto& time : time_keys) {
    if (key == time.name)
      return read_time(model.*time.value, value) ? Status()
                                                 : wrong(std::string(part) + ": expected a time, as 200us, 5ms or 1s");
  }
  if (key == "rate") {
    if (!read(number, value, rate_units, 8e3, 1e12))
      return wrong(std::string(part) + ": expected bits per second, such as 100M or 1G (powers of 1000), at least 8K");
    model.bits_per_second = static_cast<uint64_t>(number);
  } else if (key == "queue") {
    if (!read(number, value, byte_units, 2048, 1e12))
      return wrong(std::string(part) + ": expected bytes, such as 64K or 1M (powers of 1024), at least 2K");
    model.queue_bytes = static_cast<uint64_t>(number);
  } else if (key == "datagram") {
    if (!read(number, value, std::span(byte_units).first(1), datagram_bytes_min, datagram_bytes_max))
      return wrong(std::string(part) + ": expected bytes of UDP payload, 1200 to 8972");
    model.datagram_bytes = static_cast<uint32_t>(number);
  } else {
    return wrong("\"" + std::string(part) +
                 "\" is none of rate, queue, delay, jitter, datagram, compute, spread, dead, kill, stop, slow");
  }
  return {};
}

}  // namespace

const char* name(PeerFaultKind kind) {
  constexpr const char* names[] = {"dead", "kill", "stop", "slow"};
  return names[static_cast<size_t>(kind)];
}

std::string PeerFault::to_string() const {
  const auto text = concat(name(kind), "=", process);
  if (kind == PeerFaultKind::slow) return text + "x" + shortest(factor);
  return text + "@" + text_of(from, time_units) + (to == never ? "" : "-" + text_of(to, time_units));
}

Result<UdpModel> UdpModel::parse(std::string_view text) {
  UdpModel model;
  std::string seen = ",";
  for (size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    const auto part = text.substr(begin, end - begin);
    if (auto status = read_part(model, part); !status.ok()) return status;
    const auto key = std::string(part.substr(0, part.find('=')));
    const bool is_fault =
        std::any_of(std::begin(fault_kinds), std::end(fault_kinds), [&](PeerFaultKind kind) { return key == name(kind); });
    if (!is_fault && seen.find("," + key + ",") != seen.npos) return wrong(std::string(part) + ": is given twice");
    seen += key + ",";
    begin = end + 1;
  }
  return model;
}

std::string UdpModel::to_string() const {
  auto text = "rate=" + text_of(static_cast<int64_t>(bits_per_second), rate_units) +
              ",queue=" + text_of(static_cast<int64_t>(queue_bytes), byte_units) + ",delay=" + text_of(delay, time_units);
  const UdpModel usual;
  if (jitter != usual.jitter) text += ",jitter=" + text_of(jitter, time_units);
  if (datagram_bytes != usual.datagram_bytes) text += concat(",datagram=", datagram_bytes);
  if (compute != usual.compute) text += ",compute=" + text_of(compute, time_units);
  if (spread != usual.spread) text += ",spread=" + text_of(spread, time_units);
  for (const auto& fault : faults) text += "," + fault.to_string();
  return text;
}

Status UdpModel::check(uint32_t processes) const {
  for (const auto& fault : faults) {
    if (fault.process >= processes) return wrong(concat(fault.to_string(), ": there are ", processes, " ranks, from 0"));
  }
  return {};
}

bool UdpModel::has(PeerFaultKind kind) const {
  return std::any_of(faults.begin(), faults.end(), [&](const PeerFault& fault) { return fault.kind == kind; });
}

}  // namespace unisono::sim
