#include "events/event_log.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

Nanos test_now = 0;

struct EventLogTest : testing::Test {
  EventLogTest() { test_now = 5 * second; }
  Event warning(std::string text = "no space") { return {.kind = EventKind::record_unavailable, .text = std::move(text)}; }
  Event info() { return {.kind = EventKind::joined, .text = "joined", .source = "rank 0 (host a, pid 1)"}; }
  std::unique_ptr<EventLog> make(const LogTarget& target) {
    return std::make_unique<EventLog>(
        target, [] { return test_now; }, [this](std::string_view line) { lines += line; });
  }
  std::string lines;
};

TEST_F(EventLogTest, by_default_only_warnings_become_lines) {
  const auto log = make(*parse_log_target(""));
  log->write(info(), false);
  EXPECT_EQ(lines, "");
  log->write(warning(), false);
  EXPECT_EQ(lines, "unisono: warning: no space (record_unavailable)\n");
}

TEST_F(EventLogTest, by_default_events_that_a_handler_gets_are_left_out) {
  make(*parse_log_target(""))->write(warning(), true);
  EXPECT_EQ(lines, "");
  make(*parse_log_target("warning"))->write(warning(), true);
  EXPECT_NE(lines, "");
}

TEST_F(EventLogTest, info_adds_the_other_events) {
  make(*parse_log_target("info"))->write(info(), false);
  EXPECT_EQ(lines, "unisono: joined (joined; rank 0 (host a, pid 1))\n");
}

TEST_F(EventLogTest, each_kind_has_one_line_per_minute_and_the_next_line_counts_the_others) {
  const auto log = make(*parse_log_target("info"));
  for (int i = 0; i < 5; ++i) log->write(warning(), false);
  log->write(info(), false);
  test_now += EventLog::period;
  log->write(warning("again"), false);
  EXPECT_EQ(lines,
            "unisono: warning: no space (record_unavailable)\n"
            "unisono: joined (joined; rank 0 (host a, pid 1))\n"
            "unisono: warning: again (record_unavailable) [4 more record_unavailable since the last line]\n");
}

TEST_F(EventLogTest, a_line_has_no_control_characters) {
  make(*parse_log_target("warning"))->write(warning("a\nb\x1b[31mc"), false);
  EXPECT_EQ(lines, "unisono: warning: a b [31mc (record_unavailable)\n");
}

TEST_F(EventLogTest, a_word_that_is_neither_a_level_nor_a_path_is_refused) {
  const auto target = parse_log_target("warnings");
  ASSERT_FALSE(target.ok());
  EXPECT_EQ(target.status().message(),
            "UNISONO_LOG is 'warnings'; needed: warning, info, or a path with a slash, such as ./unisono.log");
  EXPECT_EQ(*parse_log_target("./warnings"), (LogTarget{.least = EventLevel::info, .path = "./warnings", .chosen = true}));
}

TEST(EventTable, the_index_of_an_entry_is_the_number_of_its_kind) {
  for (size_t i = 0; i < event_kind_count; ++i) EXPECT_EQ(static_cast<size_t>(event_table[i].kind), i) << event_table[i].name;
}

}  // namespace
}  // namespace unisono
