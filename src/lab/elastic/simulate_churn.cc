// `unisono-lab simulate churn-trace`: writes when peers come and go, as benches replay it with real processes.
#include "cli/common/command_line.h"
#include "cli/common/text.h"
#include "lab/common/commands.h"
#include "lab/elastic/churn_trace.h"

#include <fmt/format.h>

#include <cstdio>

namespace unisono::cli {
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
  unisono-lab simulate churn-trace > churn.txt                      8 peers, at least 4 at work, an event every 20 s for 10 minutes
  unisono-lab simulate churn-trace --law poisson --kill 1           independent events; all that go are killed
  unisono-lab simulate churn-trace --stop 0.5 --kill 0.5 --seed 7   half of them stop, and continue later

Exit code: 0; 2 for a wrong command line.)"};

struct ChurnOptions {
  std::string peers = "8", peers_min = "4", period = "20s", duration = "10m", law = "regular", seed = "1";
  double kill = 0.5, stop = 0;
};

void add_churn_options(CLI::App& app, ChurnOptions& o) {
  app.add_option("-n,--peers", o.peers, "peers, numbered from 0 [8]")->type_name("N");
  app.add_option("--min", o.peers_min, "peers at work at any time, at least [4]")->type_name("N");
  app.add_option("--period", o.period, "mean time between two events [20s]")->type_name("TIME");
  app.add_option("--duration", o.duration, "time of the last event, at most [10m]")->type_name("TIME");
  add_choice(app, o.law,
             {.names = "--law",
              .value = "LAW",
              .meaning = "of the times between events",
              .words = {"regular", "poisson"},
              .fallback = "regular"});
  app.add_option("--kill", o.kill, "share of leaving peers that die without notice [0.5]")->type_name("SHARE");
  app.add_option("--stop", o.stop, "share of leaving peers that stop, and continue later [0]")->type_name("SHARE");
  app.add_option("--seed", o.seed, "seed of all random choices [1]")->type_name("N");
}

Result<sim::ChurnPlan> make_plan(const ChurnOptions& o) {
  const auto peers = parse_between("--peers", o.peers, 1, sim::churn_peers_max),
             peers_min = parse_between("--min", o.peers_min, 1, sim::churn_peers_max);
  const auto seed = parse_count(o.seed, ~uint64_t{0});
  const auto period = parse_duration(o.period), duration = parse_duration(o.duration);
  for (const auto& status : {peers.status(), peers_min.status(), seed.status(), period.status(), duration.status()}) {
    if (!status.ok()) return status;
  }
  if (o.law != "regular" && o.law != "poisson")
    return Status(Code::invalid, fmt::format("--law '{}' is none of regular, poisson", o.law));
  sim::ChurnPlan plan{.peers = static_cast<uint32_t>(*peers),
                      .peers_min = static_cast<uint32_t>(*peers_min),
                      .period = *period,
                      .duration = *duration,
                      .law = o.law == "poisson" ? sim::ChurnPlan::Law::poisson : sim::ChurnPlan::Law::regular,
                      .kill_share = o.kill,
                      .stop_share = o.stop,
                      .seed = *seed};
  if (auto checked = plan.check(); !checked.ok()) return checked;
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
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace unisono::cli
