#include "cli/observe/recent_events.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace unisono::cli {
namespace {

std::string clock_time(Nanos wall) {
  const auto seconds = static_cast<std::time_t>(wall / second);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:%H:%M:%S}", local);
}

}  // namespace

std::vector<RecentEvent> recent_events(const GroupDiagnosis& diagnosis) {
  std::vector<RecentEvent> events;
  for (uint32_t rank = 0; rank < diagnosis.world; ++rank) {
    if (diagnosis.ranks[rank] == nullptr) continue;
    const auto& record = diagnosis.ranks[rank]->record;
    for (const auto& event : record.events) events.push_back({record.wall(event.at), rank, event});
  }
  std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
  return events;
}

std::string text_of(const GroupDiagnosis& diagnosis, const RecentEvent& event) {
  const bool warning = facts(event.event.kind).level == EventLevel::warning;
  return fmt::format("{} {}: {}{}", clock_time(event.at), rank_name(diagnosis, event.reporter), warning ? "warning: " : "",
                     event.event.text);
}

}  // namespace unisono::cli
