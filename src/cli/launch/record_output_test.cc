// Tests that other programs can read the output of top, trace and metrics, and that it agrees with the records.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/observe/metrics_text.h"
#include "cli/observe/top_frame.h"
#include "cli/observe/trace_events.h"

namespace unisono::cli {
namespace {

constexpr Nanos start = 100 * second;

ScanEntry rank_of_two(uint32_t rank) {
  record::Snapshot record;
  record.run = 7;
  record.group = record.epoch = 1;
  record.world = 2;
  record.rank = rank;
  record.host = "h\"\\";
  record.pid = static_cast<int32_t>(10 + rank);
  record.wall_start = 1'000 * second;
  record.links.resize(2);
  record.links[1 - rank] = {.transport = "shm",
                            .place = "host h",
                            .sent_bytes = 5000,
                            .sent_messages = 5,
                            .received_bytes = 6000,
                            .received_messages = 6,
                            .waited_ns = 3 * second,
                            .waited = 2,
                            .stalls = 1};
  for (uint64_t i = 0; i < 4; ++i) {
    const auto at = start + static_cast<Nanos>(i) * millisecond;
    record.operations.push_back({.name = {.number = i, .kind = {}, .bytes = 4000},
                                 .started = at,
                                 .first_send = at + 10,
                                 .last_receive = at + 300,
                                 .ended = at + 500});
  }
  // Two operations that overlap, and one that has not ended.
  record.operations.push_back(
      {.name = {.number = 4, .kind = {}, .bytes = 4000}, .started = start + second, .ended = start + 2 * second});
  record.operations.push_back({.name = {.number = 5, .kind = {}, .bytes = 4000},
                               .started = start + second + 100,
                               .ended = start + 3 * second,
                               .code = Code::late});
  record.running.push_back({.name = {.number = 6, .kind = {}, .bytes = 4000},
                            .started = start + 4 * second,
                            .progress = start + 4 * second,
                            .phase = record::Phase::contributions,
                            .pending = {1 - rank},
                            .pending_count = 1});
  record.begun = 7;
  record.ended = 6;
  record::CollectiveCount count{
      .collective = Collective::all_reduce, .ended = 6, .bytes = 24'000, .total_ns = 2 * second, .late = 1, .failed = 1};
  count.buckets[2] = 4;
  count.buckets[record::bucket_count - 1] = 2;
  record.collectives.push_back(count);
  return {.record = record, .source = "pid", .life = Life::runs, .seen = record.wall(start + 5 * second)};
}

std::vector<ScanEntry> two() { return {rank_of_two(0), rank_of_two(1)}; }

TEST(TraceEvents, events_load_and_nest_and_have_their_times) {
  const auto json = nlohmann::json::parse(trace_json(two()));
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  size_t operations = 0, phases = 0;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double from = event.at("ts"), to = from + event.at("dur").get<double>();
    EXPECT_GE(from, 0);
    EXPECT_GE(to, from);
    tracks[{event.at("pid"), event.at("tid")}].emplace_back(from, to);
    ++(event.contains("args") ? operations : phases);
  }
  EXPECT_EQ(operations, 14u);
  EXPECT_EQ(phases, 2u * 4 * 3);
  EXPECT_EQ(tracks.size(), 4u) << "two ranks, and a second track for what ran at once";
  for (const auto& [track, slices] : tracks) {
    for (const auto& a : slices) {
      for (const auto& b : slices) {
        const double slack = 1e-5;  // microseconds: rounding error of the sum of two doubles
        const bool apart = a.second <= b.first + slack || b.second <= a.first + slack;
        const bool inside =
            (a.first <= b.first && b.second <= a.second + slack) || (b.first <= a.first && a.second <= b.second + slack);
        EXPECT_TRUE(apart || inside) << a.first << "-" << a.second << " and " << b.first << "-" << b.second;
      }
    }
  }
  EXPECT_EQ(tracks.begin()->second.front().first, 0.0) << "the first thing that happened";
}

TEST(TraceEvents, a_trace_without_operations_is_a_document) {
  auto scan_entry = rank_of_two(0);
  scan_entry.record.operations.clear();
  scan_entry.record.running.clear();
  EXPECT_TRUE(nlohmann::json::parse(trace_json({scan_entry})).contains("traceEvents"));
}

// The rules are those of https://github.com/prometheus/OpenMetrics.
TEST(MetricsText, metrics_follow_the_rules_of_the_format) {
  const auto text = metrics_text(two());
  ASSERT_TRUE(text.ends_with("\n# EOF\n"));
  std::istringstream lines(text);
  std::string family, type;
  std::map<std::string, int> seen;
  for (std::string line; std::getline(lines, line);) {
    if (line == "# EOF") break;
    if (line.starts_with("# TYPE ")) {
      std::istringstream words(line.substr(7));
      words >> family >> type;
      EXPECT_EQ(seen[family]++, 0) << "a family stands in one place";
      EXPECT_TRUE(family.starts_with("unisono_"));
      EXPECT_FALSE(family.ends_with("_total"));
      continue;
    }
    if (line.starts_with("#")) continue;
    const auto name = line.substr(0, line.find('{'));
    EXPECT_TRUE(name.starts_with(family)) << line;
    const auto suffix = name.substr(family.size());
    const bool fits = type == "counter" ? suffix == "_total"
                      : type == "gauge" ? suffix.empty()
                                        : suffix == "_bucket" || suffix == "_count" || suffix == "_sum";
    EXPECT_TRUE(fits) << line;
    EXPECT_EQ(line.find('}'), line.rfind('}')) << line;
    EXPECT_NO_THROW((void)std::stod(line.substr(line.rfind(' ')))) << line;
  }
}

TEST(MetricsText, metrics_match_the_records) {
  const auto text = metrics_text({rank_of_two(0)});
  const std::string labels = R"(run="0000000000000007",group="1",epoch="1",rank="0",host="h\"\\",pid="10")";
  for (const auto& line :
       {"unisono_operations_total{" + labels + ",collective=\"all_reduce\"} 6\n",
        "unisono_operations_late_total{" + labels + ",collective=\"all_reduce\"} 1\n",
        "unisono_link_sent_bytes_total{" + labels + ",peer=\"1\",transport=\"shm\"} 5000\n",
        "unisono_link_waited_seconds_total{" + labels + ",peer=\"1\",transport=\"shm\"} 3\n",
        "unisono_operation_seconds_bucket{" + labels + ",collective=\"all_reduce\",le=\"+Inf\"} 6\n",
        "unisono_operation_seconds_bucket{" + labels + ",collective=\"all_reduce\",le=\"1.024e-06\"} 4\n",
        "unisono_operations_in_flight{" + labels + "} 1\n", "unisono_operation_age_seconds{" + labels + "} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

TEST(MetricsText, metrics_without_groups_are_a_complete_document) { EXPECT_TRUE(metrics_text({}).ends_with("# EOF\n")); }

TEST(TopFrame, rates_are_shown_from_the_second_frame_on) {
  Readings readings;
  auto scan_entries = ProcessScan{two(), {}};
  EXPECT_FALSE(frame_of(scan_entries, readings).groups.at(0).rows.at(0).has_rates);
  for (auto& scan_entry : scan_entries.all) {
    scan_entry.seen += second / 2;
    scan_entry.record.ended += 10;
    scan_entry.record.links[1 - scan_entry.record.rank].sent_bytes += 1'000'000;
  }
  const auto frame = frame_of(scan_entries, readings);
  const auto& row = frame.groups.at(0).rows.at(0);
  ASSERT_TRUE(row.has_rates);
  EXPECT_DOUBLE_EQ(row.operations, 20);
  EXPECT_DOUBLE_EQ(row.sent_bytes, 2'000'000);
  EXPECT_EQ(row.received_bytes, 0);
  EXPECT_EQ(row.pending, (std::vector<uint32_t>{1}));
  EXPECT_EQ(row.p50, 500);
  EXPECT_GE(row.p99, second);
}

TEST(TopFrame, a_frame_marks_a_late_rank_and_names_the_ranks_that_wait_for_it) {
  auto scan_entries = ProcessScan{two(), {}};
  scan_entries.all[1].record.running.clear();
  scan_entries.all[1].record.begun = 6;
  Readings readings;
  const auto frame = frame_of(scan_entries, readings);
  EXPECT_FALSE(frame.groups.at(0).rows.at(0).is_late);
  EXPECT_TRUE(frame.groups.at(0).rows.at(1).is_late);
  const auto text = text_of(frame, false, 0);
  EXPECT_NE(text.find("\n!   1 "), std::string::npos) << text;
  EXPECT_NE(text.find("has not called all_reduce 6"), std::string::npos) << text;
  EXPECT_EQ(text.find('\033'), std::string::npos);
  EXPECT_NE(text_of(frame, true, 0).find("\033[31m"), std::string::npos);
  std::istringstream lines(text_of(frame, false, 40));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 40u);
}

TEST(TopFrame, is_one_line_of_json) {
  Readings readings;
  const auto text = json_of(frame_of({two(), {"x: unreadable"}}, readings), 5);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json.at("groups").at(0).at("ranks").at(0).at("waits_for").at(0), 1);
  EXPECT_EQ(json.at("groups").at(0).at("ranks").at(0).at("state"), "all_reduce 6: waits for contributions, round 0");
  EXPECT_EQ(json.at("notes").at(0), "x: unreadable");
}

TEST(TopFrame, a_frame_without_groups_says_so) {
  Readings readings;
  EXPECT_EQ(text_of(frame_of({}, readings), false, 0), "No group runs here.\n");
}

}  // namespace
}  // namespace unisono::cli
