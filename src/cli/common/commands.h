// The tool's commands. Each takes the words behind its name and returns the exit code of the process; data goes to
// standard output, everything else to standard error. The table in commands.cc is the only place that lists them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/syntax.h"

namespace unisono::cli {

using Arguments = std::vector<std::string>;

struct Command {
  std::string_view name;     // one word, or two: "bench compress" comes before "bench" where both would do
  std::string_view summary;  // one line for the overview; empty: not shown
  int (*run)(const Arguments& arguments);
  CommandSyntax (*syntax)();  // null: not for people
};

std::span<const Command> commands();
// Those for people, with their summaries.
std::vector<CommandSyntax> command_syntaxes();

// `unisono <arguments>`: finds the command, or helps.
int run_tool(const Arguments& arguments);

int run_launch(const Arguments& arguments);
int run_bench(const Arguments& arguments);
int run_compress(const Arguments& arguments);
int run_tune(const Arguments& arguments);
int run_doctor(const Arguments& arguments);
int run_top(const Arguments& arguments);
int run_explain(const Arguments& arguments);
int run_trace(const Arguments& arguments);
int run_metrics(const Arguments& arguments);
int run_codec(const Arguments& arguments);
int run_rendezvous(const Arguments& arguments);
int run_simulate(const Arguments& arguments);
int run_simulate_arc(const Arguments& arguments);
int run_simulate_averaging(const Arguments& arguments);
int run_simulate_loss(const Arguments& arguments);
int run_simulate_elastic(const Arguments& arguments);
int run_simulate_churn(const Arguments& arguments);
int run_drop_compute(const Arguments& arguments);
int run_drop_plan(const Arguments& arguments);
int run_drop_search(const Arguments& arguments);
int run_drop_simulate(const Arguments& arguments);
int run_completion(const Arguments& arguments);
int run_manual(const Arguments& arguments);

CommandSyntax launch_syntax();
CommandSyntax bench_syntax();
CommandSyntax compress_syntax();
CommandSyntax tune_syntax();
CommandSyntax doctor_syntax();
CommandSyntax top_syntax();
CommandSyntax explain_syntax();
CommandSyntax trace_syntax();
CommandSyntax metrics_syntax();
CommandSyntax codec_syntax();
CommandSyntax rendezvous_syntax();
CommandSyntax simulate_syntax();
CommandSyntax simulate_arc_syntax();
CommandSyntax simulate_averaging_syntax();
CommandSyntax simulate_loss_syntax();
CommandSyntax simulate_elastic_syntax();
CommandSyntax simulate_churn_syntax();
CommandSyntax drop_compute_syntax();
CommandSyntax drop_plan_syntax();
CommandSyntax drop_search_syntax();
CommandSyntax drop_simulate_syntax();
CommandSyntax completion_syntax();
CommandSyntax manual_syntax();

}  // namespace unisono::cli
