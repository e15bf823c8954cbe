#include "schedules/tuning.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>

#include "base/concat.h"
#include "base/split.h"
#include "schedules/make.h"
#include "unisono/transports.h"

namespace unisono {
namespace {

constexpr std::string_view first_line = "unisono tuning 1";

using Words = std::vector<std::string_view>;

Words words_of(std::string_view line) {
  constexpr std::string_view blanks = " \t\r";
  line = line.substr(0, line.find('#'));
  Words words;
  for (size_t at = line.find_first_not_of(blanks); at != std::string_view::npos; at = line.find_first_not_of(blanks, at)) {
    const auto end = std::min(line.find_first_of(blanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// Returns the host of each rank. The result is empty if the text is not a valid placement.
std::vector<uint32_t> host_groups_of(std::string_view text) {
  std::vector<uint32_t> host_groups;
  const bool by_rank = text.find(',') != std::string_view::npos;
  uint32_t host = 0;
  for (const auto part : split(text, by_rank ? ',' : '+')) {
    const auto number = number_of<uint32_t>(part);
    const bool sound = number && (by_rank ? *number < world_max : *number > 0 && *number <= world_max - host_groups.size());
    if (!sound || host_groups.size() == world_max) return {};
    host_groups.insert(host_groups.end(), by_rank ? 1 : *number, by_rank ? *number : host++);
  }
  return renumbered(host_groups) == host_groups ? host_groups : std::vector<uint32_t>();
}

template <class Kind, class Kinds>
std::optional<Kind> named(std::string_view text, const Kinds& kinds) {
  for (const auto kind : kinds) {
    if (text == name(kind)) return kind;
  }
  return std::nullopt;
}

class Reader {
 public:
  Status read(std::string_view text);
  Tuning take() { return std::move(tuning_); }

 private:
  Status parse_line(const Words& words);
  Status parse_streams(const Words& words);
  Status parse_group(const Words& words);
  Status parse_call(Collective collective, const Words& words);
  Tuning tuning_;
};

Status wrong(const std::string& what) { return {Code::invalid, what}; }

Status Reader::read(std::string_view text) {
  if (text.size() > tuning_bytes_max)
    return wrong(concat(text.size(), " bytes are more than the ", tuning_bytes_max, " that a tuning file may have"));
  size_t number = 0;
  bool begun = false;
  for (const auto line : split(text, '\n')) {
    ++number;
    const auto words = words_of(line);
    if (words.empty()) continue;
    if (begun) {
      if (auto status = parse_line(words); !status.ok()) return wrong(concat("line ", number, ": ", status.message()));
    } else if (words != words_of(first_line)) {
      return wrong("it does not begin with '" + std::string(first_line) + "'");
    }
    begun = true;
  }
  return begun ? Status() : wrong("it is empty");
}

Status Reader::parse_line(const Words& words) {
  if (words[0] == "streams") return parse_streams(words);
  if (words[0] == "group") return parse_group(words);
  const auto collective = named<Collective>(words[0], tuned_collectives);
  return collective ? parse_call(*collective, words)
                    : wrong("'" + std::string(words[0]) + "' is neither streams, group nor a collective that is tuned");
}

Status Reader::parse_streams(const Words& words) {
  const auto count = words.size() == 2 ? number_of<uint32_t>(words[1]) : std::nullopt;
  if (!count || *count == 0 || *count > tuned_streams_max)
    return wrong(concat("expected 'streams N' with 1 to ", tuned_streams_max));
  tuning_.streams_per_link = *count;
  return {};
}

Status Reader::parse_group(const Words& words) {
  TunedGroup group{.host_groups = words.size() == 3 ? host_groups_of(words[1]) : std::vector<uint32_t>()};
  const bool known = words.size() == 3 && find_transport(words[2]) != nullptr;
  if (group.host_groups.empty() || !known) return wrong("expected 'group PLACEMENT TRANSPORT', as in 'group 2+2 auto'");
  group.transport = words[2];
  const bool twice = std::any_of(tuning_.groups.begin(), tuning_.groups.end(), [&](const TunedGroup& other) {
    return other.transport == group.transport && other.host_groups == group.host_groups;
  });
  if (twice) return wrong("this group is listed twice");
  tuning_.groups.push_back(std::move(group));
  return {};
}

Status Reader::parse_call(Collective collective, const Words& words) {
  const auto expected = [] { return wrong("expected 'COLLECTIVE BYTES|max SCHEDULE', perhaps with 'slice BYTES'"); };
  if (tuning_.groups.empty()) return wrong("there is no group above it");
  if (words.size() != 3 && (words.size() != 5 || words[3] != "slice")) return expected();
  TunedCall call{.collective = collective};
  if (words[1] != "max") {
    const auto bytes = number_of<uint64_t>(words[1]);
    if (!bytes) return expected();
    call.bytes_max = *bytes;
  }
  if (words[2] != "automatic") {
    const auto kind = named<ScheduleKind>(words[2], kinds_of(collective));
    if (!kind) return wrong("there is no " + std::string(words[2]) + " " + name(collective));
    call.kind = *kind;
  }
  if (words.size() == 5) {
    const auto slice = number_of<uint64_t>(words[4]);
    if (!slice || *slice == 0) return expected();
    call.slice_bytes = *slice;
  }
  auto& calls = tuning_.groups.back().calls;
  for (const auto& before : calls) {
    if (before.collective == collective && before.bytes_max >= call.bytes_max)
      return wrong("no more bytes than a line above it");
  }
  calls.push_back(call);
  return {};
}

}  // namespace

const TunedCall* TunedGroup::find(Collective collective, uint64_t bytes) const {
  const auto found = std::find_if(calls.begin(), calls.end(), [&](const TunedCall& call) {
    return call.collective == collective && bytes <= call.bytes_max;
  });
  return found == calls.end() ? nullptr : &*found;
}

const TunedGroup* Tuning::find(std::span<const uint32_t> host_groups, uint32_t world) const {
  if (groups.empty()) return nullptr;
  std::vector<uint32_t> wanted(world);
  for (uint32_t rank = 0; rank < world; ++rank) wanted[rank] = rank;
  if (!host_groups.empty()) wanted = renumbered(host_groups);
  const auto found =
      std::find_if(groups.begin(), groups.end(), [&](const TunedGroup& group) { return group.host_groups == wanted; });
  return found == groups.end() ? nullptr : &*found;
}

Tuning Tuning::of(std::string_view transport) const {
  auto part = *this;
  std::erase_if(part.groups, [&](const TunedGroup& group) { return group.transport != transport; });
  return part;
}

void Tuning::put(TunedGroup group) {
  std::erase_if(groups, [&](const TunedGroup& other) {
    return other.transport == group.transport && other.host_groups == group.host_groups;
  });
  groups.push_back(std::move(group));
}

std::vector<uint32_t> renumbered(std::span<const uint32_t> host_groups) {
  std::map<uint32_t, uint32_t> seen;
  std::vector<uint32_t> numbers;
  for (const auto host_group : host_groups)
    numbers.push_back(seen.emplace(host_group, static_cast<uint32_t>(seen.size())).first->second);
  return numbers;
}

std::string placement_text(std::span<const uint32_t> host_groups) {
  const auto numbers = renumbered(host_groups);
  const bool neighbours = std::is_sorted(numbers.begin(), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    const auto end = neighbours ? std::find_if(numbers.begin() + static_cast<std::ptrdiff_t>(i), numbers.end(),
                                               [&](uint32_t other) { return other != numbers[i]; }) -
                                      numbers.begin()
                                : static_cast<std::ptrdiff_t>(i + 1);
    text += concat(text.empty() ? "" : neighbours ? "+" : ",", neighbours ? static_cast<size_t>(end) - i : numbers[i]);
    i = static_cast<size_t>(end);
  }
  return text;
}

Result<Tuning> parse_tuning(std::string_view text) {
  Reader reader;
  if (auto status = reader.read(text); !status.ok()) return status;
  return reader.take();
}

std::string to_text(const Tuning& tuning, std::string_view comment) {
  std::string text = std::string(first_line) + "\n";
  for (const auto line : split(comment, '\n')) {
    if (!line.empty()) text += "# " + std::string(line) + "\n";
  }
  if (tuning.streams_per_link != 0) text += concat("streams ", tuning.streams_per_link, "\n");
  for (const auto& group : tuning.groups) {
    text += "group " + placement_text(group.host_groups) + " " + group.transport + "\n";
    for (const auto& call : group.calls) {
      text += std::string(name(call.collective)) + " " +
              (call.bytes_max == std::numeric_limits<uint64_t>::max() ? "max" : std::to_string(call.bytes_max)) + " " +
              (call.kind == ScheduleKind::automatic ? "automatic" : name(call.kind));
      if (call.slice_bytes != 0) text += concat(" slice ", call.slice_bytes);
      text += "\n";
    }
  }
  return text;
}

}  // namespace unisono
