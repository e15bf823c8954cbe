#include "schedules/tuning.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

constexpr auto text =
    "unisono tuning 1\n"
    "# for people\n"
    "\n"
    "streams 2  # as well\n"
    "group 2+2 auto\n"
    "all_reduce 65536 one_shot\n"
    "all_reduce max two_step slice 1048576\n"
    "all_gather 100 automatic\r\n"
    "group 4 shm\n"
    "broadcast max tree\n"
    "group 0,1,0 tcp\n";

TEST(Tuning, a_tuning_file_is_parsed) {
  const auto tuning = parse_tuning(text);
  ASSERT_TRUE(tuning.ok()) << tuning.status().to_string();
  EXPECT_EQ(tuning->streams_per_link, 2u);
  ASSERT_EQ(tuning->groups.size(), 3u);
  const auto& group = tuning->groups[0];
  EXPECT_EQ(group.host_groups, (std::vector<uint32_t>{0, 0, 1, 1}));
  EXPECT_EQ(group.transport, "auto");
  EXPECT_EQ(tuning->groups[2].host_groups, (std::vector<uint32_t>{0, 1, 0}));
  EXPECT_EQ(group.find(Collective::all_reduce, 1)->kind, ScheduleKind::one_shot);
  EXPECT_EQ(group.find(Collective::all_reduce, 65536)->kind, ScheduleKind::one_shot);
  const auto* more = group.find(Collective::all_reduce, 65537);
  EXPECT_EQ(more->kind, ScheduleKind::two_step);
  EXPECT_EQ(more->slice_bytes, 1048576u);
  EXPECT_EQ(group.find(Collective::all_gather, 100)->kind, ScheduleKind::automatic);
  EXPECT_EQ(group.find(Collective::all_gather, 101), nullptr);
  EXPECT_EQ(group.find(Collective::broadcast, 1), nullptr);
}

TEST(Tuning, text_is_parsed_to_an_equal_tuning) {
  const auto tuning = *parse_tuning(text);
  const auto again = to_text(tuning, "two\nlines");
  EXPECT_EQ(*parse_tuning(again), tuning);
  EXPECT_NE(again.find("\n# two\n# lines\nstreams 2\ngroup 2+2 auto\n"), std::string::npos) << again;
  EXPECT_NE(again.find("group 0,1,0 tcp\n"), std::string::npos) << again;
  EXPECT_EQ(*parse_tuning(to_text({})), Tuning());
}

TEST(Tuning, a_tuned_group_matches_groups_with_the_same_placement) {
  const auto tuning = parse_tuning(text)->of("auto");
  EXPECT_EQ(tuning.groups.size(), 1u);
  EXPECT_NE(tuning.find(std::vector<uint32_t>{7, 7, 3, 3}, 4), nullptr);
  EXPECT_EQ(tuning.find(std::vector<uint32_t>{0, 1, 0, 1}, 4), nullptr);
  EXPECT_EQ(tuning.find(std::vector<uint32_t>{0, 0, 1}, 3), nullptr);
  EXPECT_EQ(tuning.find({}, 4), nullptr);  // each rank on a separate host
  const auto apart = *parse_tuning("unisono tuning 1\ngroup 1+1+1 auto\n");
  EXPECT_NE(apart.find({}, 3), nullptr);
  EXPECT_EQ(apart.find({}, 4), nullptr);
}

TEST(Tuning, put_replaces_the_tuning_of_a_group) {
  auto tuning = *parse_tuning(text);
  tuning.put({.host_groups = {0, 0, 1, 1},
              .transport = "auto",
              .calls = {{.collective = Collective::reduce, .kind = ScheduleKind::tree}}});
  EXPECT_EQ(tuning.groups.size(), 3u);
  EXPECT_EQ(tuning.of("auto").find(std::vector<uint32_t>{0, 0, 1, 1}, 4)->calls.size(), 1u);
  tuning.put({.host_groups = {0, 0, 1, 1}, .transport = "tcp"});
  EXPECT_EQ(tuning.groups.size(), 4u);
}

TEST(Tuning, errors_of_wrong_files_name_the_line) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "it is empty"},
      {"# nothing\n", "it is empty"},
      {"unisono tuning 2\n", "it does not begin with 'unisono tuning 1'"},
      {"streams 2\n", "it does not begin with"},
      {"unisono tuning 1\nstreams 0\n", "line 2: expected 'streams N'"},
      {"unisono tuning 1\nstreams 17\n", "line 2: expected 'streams N' with 1 to 16"},
      {"unisono tuning 1\nall_reduce max ring\n", "line 2: there is no group above it"},
      {"unisono tuning 1\ngroup 2+0 auto\n", "line 2: expected 'group PLACEMENT TRANSPORT'"},
      {"unisono tuning 1\ngroup 1,0 auto\n", "line 2: expected 'group PLACEMENT"},
      {"unisono tuning 1\ngroup 2+2 carrier\n", "line 2: expected 'group PLACEMENT"},
      {"unisono tuning 1\ngroup 4294967295+2 auto\n", "line 2: expected 'group PLACEMENT"},
      {"unisono tuning 1\ngroup 2 auto\n\ngroup 2 auto\n", "line 4: this group is listed twice"},
      {"unisono tuning 1\ngroup 2 auto\nall_to_all max direct\n", "line 3: 'all_to_all' is neither"},
      {"unisono tuning 1\ngroup 2 auto\nall_reduce max direct\n", "line 3: there is no direct all_reduce"},
      {"unisono tuning 1\ngroup 2 auto\nall_reduce 1k ring\n", "line 3: expected 'COLLECTIVE BYTES|max SCHEDULE'"},
      {"unisono tuning 1\ngroup 2 auto\nall_reduce max ring slice\n", "line 3: expected 'COLLECTIVE"},
      {"unisono tuning 1\ngroup 2 auto\nall_reduce max ring slice 0\n", "line 3: expected 'COLLECTIVE"},
      {"unisono tuning 1\ngroup 2 auto\nall_reduce max ring\nall_reduce 100 ring\n",
       "line 4: no more bytes than a line above it"},
  };
  for (const auto& [wrong, message] : cases) {
    const auto tuning = parse_tuning(wrong);
    ASSERT_FALSE(tuning.ok()) << wrong;
    EXPECT_EQ(tuning.status().code(), Code::invalid);
    EXPECT_EQ(tuning.status().message().find(message), 0u) << tuning.status().message() << " instead of " << message;
  }
  EXPECT_FALSE(parse_tuning(std::string(tuning_bytes_max + 1, '\n')).ok());
}

}  // namespace
}  // namespace unisono
