#include "lab/commands.h"

#include <gtest/gtest.h>

namespace unisono::lab {

using cli::command_syntaxes;

namespace {

TEST(LabTool, every_command_for_people_has_a_syntax_and_internal_ones_have_none) {
  std::vector<std::string> names;
  for (const auto& command : command_syntaxes(lab_tool())) {
    names.push_back(command.name);
    EXPECT_FALSE(command.summary.empty() || command.usage.empty() || command.options.empty()) << command.name;
    EXPECT_FALSE(command.runs_program);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"simulate", "simulate arc", "simulate averaging", "simulate loss", "simulate elastic",
                                      "simulate churn-trace", "drop-compute", "drop-compute plan", "drop-compute search",
                                      "drop-compute simulate", "bench", "bench compress", "completion", "man"}));
}

}  // namespace
}  // namespace unisono::lab
