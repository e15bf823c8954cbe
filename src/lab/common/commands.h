// The commands of `unisono-lab`, as cli/common/commands.h has those of `unisono`. lab/commands.cc puts them into a table.
#pragma once

#include "cli/common/command_line.h"
#include "cli/common/syntax.h"

namespace unisono::cli {

int run_simulate_arc(const Arguments& arguments);
int run_simulate_averaging(const Arguments& arguments);
int run_simulate_loss(const Arguments& arguments);
int run_simulate_elastic(const Arguments& arguments);
int run_simulate_churn(const Arguments& arguments);
int run_drop_plan(const Arguments& arguments);
int run_drop_search(const Arguments& arguments);
int run_drop_simulate(const Arguments& arguments);
int run_compress(const Arguments& arguments);

CommandSyntax simulate_arc_syntax();
CommandSyntax simulate_averaging_syntax();
CommandSyntax simulate_loss_syntax();
CommandSyntax simulate_elastic_syntax();
CommandSyntax simulate_churn_syntax();
CommandSyntax drop_plan_syntax();
CommandSyntax drop_search_syntax();
CommandSyntax drop_simulate_syntax();
CommandSyntax compress_syntax();

}  // namespace unisono::cli
