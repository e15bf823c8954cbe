// Runs seeds that once failed: each line of tests/seeds/*.txt holds arguments of `unisono simulate`.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "sim/settings_text.h"

namespace unisono::sim {
namespace {

std::filesystem::path seeds_folder() {
  return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "tests" / "seeds";
}

TEST(Seeds, seeds_that_once_failed_pass) {
  size_t lines = 0;
  for (const auto& entry : std::filesystem::directory_iterator(seeds_folder())) {
    if (entry.path().extension() != ".txt") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || line.front() == '#') continue;
      ++lines;
      const auto parsed = parse_settings(line);
      ASSERT_TRUE(parsed.ok()) << entry.path() << ": " << line << ": " << parsed.status().to_string();
      for (auto seed = parsed->seeds.first; seed <= parsed->seeds.last; ++seed) {
        const auto outcome = run_scenario(parsed->settings, seed);
        EXPECT_TRUE(outcome.problems.empty()) << entry.path().filename() << ": unisono simulate " << line << ": "
                                              << (outcome.problems.empty() ? "" : outcome.problems[0]);
      }
    }
  }
  EXPECT_GT(lines, 0u) << "no seeds in " << seeds_folder();
}

TEST(Seeds, lines_are_written_as_they_are_read) {
  for (const auto* text :
       {"all-reduce --faults mixed --seeds 5", "random --peers 3 --faults none --seeds 0-9",
        "all-reduce --peers 64 --faults kill --bytes 4096 --dtype bf16 --op avg --order strict --schedule two_step --slice 512 "
        "--ranks-per-host 8 --seeds 7",
        "all-reduce --peers 4 --faults none --fail-send 3 --fail-receive 4 --fail-credit 5 --fail-acquire 6 --seeds 1",
        "reform --faults stop --seeds 2"}) {
    const auto parsed = parse_settings(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().to_string();
    EXPECT_EQ(to_text(*parsed), text);
  }
}

TEST(Seeds, errors_of_wrong_lines_name_the_wrong_word) {
  for (const auto& [text, says] : {std::pair("all-reduce --peers", "--peers"), std::pair("everything --seeds 1", "everything"),
                                   std::pair("random --seeds 5-2", "5-2"), std::pair("random --speed 1", "--speed"),
                                   std::pair("random --faults some", "some"), std::pair("random --peers -1", "-1")}) {
    const auto parsed = parse_settings(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.status().message().find(says), std::string::npos) << parsed.status().to_string();
  }
}

}  // namespace
}  // namespace unisono::sim
