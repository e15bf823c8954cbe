// Declares the commands of `unisono-lab`. lab/commands.cc puts them into a table. The commands of `unisono` are declared in
// cli/common/commands.h.
#pragma once

#include "cli/common/command_line.h"
#include "cli/common/syntax.h"

namespace unisono::lab {

int run_simulate_arc(const cli::Arguments& arguments);
int run_simulate_averaging(const cli::Arguments& arguments);
int run_simulate_loss(const cli::Arguments& arguments);
int run_simulate_elastic(const cli::Arguments& arguments);
int run_simulate_churn(const cli::Arguments& arguments);
int run_drop_plan(const cli::Arguments& arguments);
int run_drop_search(const cli::Arguments& arguments);
int run_drop_simulate(const cli::Arguments& arguments);
int run_compress(const cli::Arguments& arguments);

cli::CommandSyntax simulate_arc_syntax();
cli::CommandSyntax simulate_averaging_syntax();
cli::CommandSyntax simulate_loss_syntax();
cli::CommandSyntax simulate_elastic_syntax();
cli::CommandSyntax simulate_churn_syntax();
cli::CommandSyntax drop_plan_syntax();
cli::CommandSyntax drop_search_syntax();
cli::CommandSyntax drop_simulate_syntax();
cli::CommandSyntax compress_syntax();

}  // namespace unisono::lab
