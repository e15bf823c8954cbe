#include "cli/observe/recent_events.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

ScanEntry entry_of(Rank rank, Nanos wall_start, std::vector<record::KeptEvent> events) {
  ScanEntry entry;
  entry.record.rank = rank;
  entry.record.world = 2;
  entry.record.host = rank == 0 ? "a" : "b";
  entry.record.pid = 42;
  entry.record.wall_start = wall_start;
  entry.record.links.resize(2);
  entry.record.events = std::move(events);
  return entry;
}

TEST(RecentEvents, events_of_all_ranks_come_in_the_order_of_the_wall_clock) {
  const std::vector<ScanEntry> entries = {
      entry_of(0, 0,
               {{.at = 5 * second, .kind = EventKind::joined, .rank = -1, .text = "first"},
                {.at = 9 * second, .kind = EventKind::link_lost, .rank = 1, .text = "third"}}),
      entry_of(1, second, {{.at = 6 * second, .kind = EventKind::record_unavailable, .rank = -1, .text = "second"}})};
  const auto diagnoses = diagnose(entries);
  ASSERT_EQ(diagnoses.size(), 1u);
  std::string texts;
  for (const auto& event : recent_events(diagnoses[0])) texts += event.event.text + " ";
  EXPECT_EQ(texts, "first second third ");
}

TEST(RecentEvents, a_line_has_the_time_the_reporting_rank_and_the_level) {
  const std::vector<ScanEntry> entries = {
      entry_of(1, 0, {{.at = 6 * second, .kind = EventKind::record_unavailable, .rank = -1, .text = "no space"}})};
  const auto diagnoses = diagnose(entries);
  ASSERT_EQ(diagnoses.size(), 1u);
  const auto events = recent_events(diagnoses[0]);
  ASSERT_EQ(events.size(), 1u);
  const auto line = text_of(diagnoses[0], events[0]);
  EXPECT_EQ(line.substr(8), " rank 1 (host b, pid 42): warning: no space") << line;
}

}  // namespace
}  // namespace unisono::cli
