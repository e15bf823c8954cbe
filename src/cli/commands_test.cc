#include "cli/commands.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

TEST(UnisonoTool, every_command_for_people_has_a_syntax_and_internal_ones_have_none) {
  std::vector<std::string> names;
  for (const auto& command : command_syntaxes(unisono_tool())) {
    names.push_back(command.name);
    EXPECT_FALSE(command.summary.empty() || command.usage.empty() || command.options.empty()) << command.name;
    EXPECT_EQ(command.runs_program, command.name == "launch");
  }
  EXPECT_EQ(names, (std::vector<std::string>{"launch", "bench", "tune", "doctor", "top", "explain", "trace", "metrics",
                                             "simulate", "codec", "key", "rendezvous", "lab", "completion", "man"}));
}

}  // namespace
}  // namespace unisono::cli
