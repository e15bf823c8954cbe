// `unisono-lab simulate churn-trace`: writes a random trace, in which peers join and leave. Benches replay it with real
// processes.
#include <fmt/format.h>

#include "cli/common/command_line.h"
#include "cli/common/option_values.h"
#include "cli/common/result_writer.h"
#include "lab/common/commands.h"
#include "lab/elastic/churn_trace.h"

namespace unisono::lab {

using cli::add_choice;
using cli::add_output_file;
using cli::Arguments;
using cli::CommandLineText;
using cli::CommandSyntax;
using cli::failed;
using cli::first_wrong;
using cli::invalid;
using cli::make_app;
using cli::names_of;
using cli::of_option;
using cli::parse_arguments;
using cli::parse_number;
using cli::set_number;
using cli::set_time;
using cli::set_word;
using cli::syntax_of;
using cli::usage_error;
using cli::Word;
using cli::write_result;

namespace {

const CommandLineText churn_text{
    .name = "unisono-lab simulate churn-trace",
    .usage = "unisono-lab simulate churn-trace [OPTIONS]",
    .description =
        "Prints a trace of peers that come and go, as on machines that can be taken "
        "away at any time: a line for each event, with seconds, number of the\n"
        "peer, and join, leave (says goodbye), kill (dies without notice), stop or continue. All join "
        "at 0; then one comes or goes every period. The same options give the\n"
        "same trace.",
    .footer = R"(Examples:
  unisono-lab simulate churn-trace -o churn.txt                     8 peers, at least 4 of them running, for 10 minutes
  unisono-lab simulate churn-trace --law poisson --kill 1           independent events; all that go are killed
  unisono-lab simulate churn-trace --stop 0.5 --kill 0.5 --seed 7   half of them stop, and continue later

Exit code: 0; 1 if the trace cannot be written; 2 for a wrong command line.)"};

struct ChurnOptions {
  std::string peers = "8", peers_min = "4", period = "20s", duration = "10m", law = "regular", seed = "1";
  std::string kill = "0.5", stop = "0", output;
};

constexpr Word<sim::ChurnPlan::Law> law_words[] = {{"regular", sim::ChurnPlan::Law::regular},
                                                   {"poisson", sim::ChurnPlan::Law::poisson}};

void add_churn_options(CLI::App& app, ChurnOptions& o) {
  app.add_option("-n,--peers", o.peers, "peers, numbered from 0 [8]")->type_name("N");
  app.add_option("--min", o.peers_min, "peers at work at any time, at least [4]")->type_name("N");
  app.add_option("--period", o.period, "mean time between two events [20s]")->type_name("TIME");
  app.add_option("--duration", o.duration, "time of the last event, at most [10m]")->type_name("TIME");
  add_choice(app, o.law,
             {.names = "--law",
              .value = "LAW",
              .meaning = "distribution of the times between events",
              .words = names_of(law_words),
              .fallback = "regular"});
  app.add_option("--kill", o.kill, "share of leaving peers that die without notice [0.5]")->type_name("SHARE");
  app.add_option("--stop", o.stop, "share of leaving peers that stop, and continue later [0]")->type_name("SHARE");
  app.add_option("--seed", o.seed, "seed of all random choices [1]")->type_name("N");
  add_output_file(app, o.output, "the trace");
}

Result<sim::ChurnPlan> make_plan(const ChurnOptions& o) {
  sim::ChurnPlan plan;
  const auto kill = parse_number("--kill", o.kill, 0, 1), stop = parse_number("--stop", o.stop, 0, 1);
  if (auto status = first_wrong({set_number(plan.peers, "--peers", o.peers, 1, sim::churn_peers_max),
                                 set_number(plan.peers_min, "--min", o.peers_min, 1, plan.peers),
                                 set_number(plan.seed, "--seed", o.seed, 0, ~uint64_t{0}),
                                 set_time(plan.period, "--period", o.period, millisecond, timeout_max),
                                 set_time(plan.duration, "--duration", o.duration, 0, timeout_max),
                                 set_word(plan.law, "--law", o.law, law_words), kill.status(), stop.status()});
      !status.ok())
    return status;
  plan.kill_share = *kill;
  plan.stop_share = *stop;
  if (*kill + *stop > 1) return invalid(fmt::format("--kill {} and --stop {} are more than 1 together", o.kill, o.stop));
  if (auto status = of_option("--duration, --period", plan.check()); !status.ok()) return status;
  return plan;
}

}  // namespace

CommandSyntax simulate_churn_syntax() { return syntax_of(churn_text, add_churn_options); }

int run_simulate_churn(const Arguments& arguments) {
  ChurnOptions options;
  const auto app = make_app(churn_text);
  add_churn_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto plan = make_plan(options);
  if (!plan.ok()) return usage_error(churn_text.name, plan.status().message());
  const auto trace = sim::make_churn(*plan);
  if (!trace.ok()) return usage_error(churn_text.name, trace.status().message());
  const auto text = fmt::format(
                        "# unisono-lab simulate churn-trace --peers {} --min {} --period {} --duration {} --law {} --kill {} "
                        "--stop {} --seed {}\n",
                        options.peers, options.peers_min, options.period, options.duration, options.law, options.kill,
                        options.stop, options.seed) +
                    trace->to_text();
  const auto written = write_result(options.output, text);
  return written.ok() ? 0 : failed(churn_text, written);
}

}  // namespace unisono::lab
