// The functions of all commands of `unisono`. The table in cli/commands.cc lists them. run_NAME() gets the arguments that
// follow the name of the command, and returns the exit code. NAME_syntax() describes the options of the command.
#pragma once

#include "cli/common/command_line.h"
#include "cli/common/syntax.h"

namespace unisono::cli {

int run_launch(const Arguments& arguments);
int run_bench(const Arguments& arguments);
int run_tune(const Arguments& arguments);
int run_doctor(const Arguments& arguments);
int run_top(const Arguments& arguments);
int run_explain(const Arguments& arguments);
int run_trace(const Arguments& arguments);
int run_metrics(const Arguments& arguments);
int run_simulate(const Arguments& arguments);
int run_codec(const Arguments& arguments);
int run_key(const Arguments& arguments);
int run_rendezvous(const Arguments& arguments);

CommandSyntax launch_syntax();
CommandSyntax bench_syntax();
CommandSyntax tune_syntax();
CommandSyntax doctor_syntax();
CommandSyntax top_syntax();
CommandSyntax explain_syntax();
CommandSyntax trace_syntax();
CommandSyntax metrics_syntax();
CommandSyntax simulate_syntax();
CommandSyntax codec_syntax();
CommandSyntax key_syntax();
CommandSyntax rendezvous_syntax();

}  // namespace unisono::cli
