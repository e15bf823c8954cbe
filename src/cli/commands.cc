#include "cli/common/commands.h"

#include <fmt/format.h>

#include "cli/common/text.h"
#include "cli/common/verdict.h"
#include "cli/common/version.h"
#include "cli/launch/agent.h"
#include "cli/launch/launch_links.h"

namespace unisono::cli {
namespace {

constexpr Command table[] = {
    {"launch", "run a program as many ranks, here or on several hosts", run_launch, launch_syntax},
    {"bench", "measure all-reduce and its relatives, and check every result", run_bench, bench_syntax},
    {"bench compress", "compare methods that make gradients smaller: bytes, times, errors", run_compress, compress_syntax},
    {"tune", "find out which schedules are quickest here, for groups to choose by", run_tune, tune_syntax},
    {"doctor", "examine this machine, or every pair of a group, and say what mends it", run_doctor, doctor_syntax},
    {"top", "show live what each rank does, and whom it waits for", run_top, top_syntax},
    {"explain", "say in words who holds up or broke a group", run_explain, explain_syntax},
    {"trace", "write the last operations of all ranks as a Chrome trace", run_trace, trace_syntax},
    {"metrics", "print the counters of all groups as OpenMetrics text", run_metrics, metrics_syntax},
    {"simulate", "run the engine over virtual links with faults, by seed", run_simulate, simulate_syntax},
    {"simulate arc", "train with compressed gradients, beside what is specified", run_simulate_arc, simulate_arc_syntax},
    {"simulate averaging", "how many rounds until all hold the mean, if peers are absent", run_simulate_averaging,
     simulate_averaging_syntax},
    {"simulate loss", "train over links that lose, beside what the formulae say", run_simulate_loss, simulate_loss_syntax},
    {"simulate elastic", "peers that come and go in virtual time, every round of them checked", run_simulate_elastic,
     simulate_elastic_syntax},
    {"simulate churn-trace", "write when peers come and go, as machines that can be taken away do", run_simulate_churn,
     simulate_churn_syntax},
    {"drop-compute", "bound how long a step waits for its slowest worker: is it worth it?", run_drop_compute,
     drop_compute_syntax},
    {"drop-compute plan", "by closed forms, before anything has run", run_drop_plan, drop_plan_syntax},
    {"drop-compute search", "by recorded times: the best threshold of each stop rule", run_drop_search, drop_search_syntax},
    {"drop-compute simulate", "under simulated delays, beside other remedies", run_drop_simulate, drop_simulate_syntax},
    {"codec", "try the codecs on elements of your own: how small, how exact", run_codec, codec_syntax},
    {"rendezvous", "serve the meeting point of jobs, standing alone", run_rendezvous, rendezvous_syntax},
    {"completion", "print what makes bash, zsh or fish complete words of this tool", run_completion, completion_syntax},
    {"man", "print the manual page", run_manual, manual_syntax},
    {"agent", "", [](const Arguments&) { return run_agent(); }, nullptr},  // what launch starts on each host
    {"seat", "", run_emulated_rank, nullptr},                              // and, with --rate, as each rank
};

constexpr std::string_view first_steps = R"(
First steps:
  unisono launch -n 4 -- ./train --epochs 3       four ranks on this machine
  unisono launch --hosts a:2,b:2 -- ./train       two ranks on each of two hosts, through ssh
  unisono bench all-reduce -n 4                   how fast is it here, and is it right?
  unisono tune -n 4                               could it be quicker, by another schedule?
  unisono doctor --hosts a:2,b:2                  what is wrong with these machines and their links?
  unisono explain                                 why does the job hang?
  unisono launch --help                           each command explains itself

Exit codes: 0 all is well; 1 a measurement or check failed; 2 the command line is wrong; 125 to 127 and 128 + signal:
see 'unisono launch --help'. Standard output carries data, standard error everything else.
)";

std::string overview() {
  std::string text =
      "Unisono: all-reduce for clusters that straggle, drop packets and change.\n\n"
      "Usage: unisono COMMAND [OPTIONS]\n\nCommands:\n";
  for (const auto& command : table) {
    if (!command.summary.empty()) text += fmt::format("  {:<22} {}\n", command.name, command.summary);
  }
  text += fmt::format("  {:<22} {}\n", "help", "this page, or 'unisono help COMMAND'");
  text += fmt::format("  {:<22} {}\n", "--version", "the version");
  return text + std::string(first_steps);
}

struct Found {
  const Command* command = nullptr;
  size_t words = 1;  // of its name
};

// By the first two words, or the first alone.
Found find_command(std::span<const std::string> words) {
  Found found;
  for (const auto& command : table) {
    if (words.size() > 1 && command.name == words[0] + " " + words[1]) return {&command, 2};
    if (command.name == words[0]) found.command = &command;
  }
  return found;
}

int unknown_command(const std::string& name) {
  std::vector<std::string> names{"help", "--help", "--version"};
  for (const auto& command : table) {
    if (!command.summary.empty()) names.emplace_back(command.name);
  }
  const auto meant = nearest_name(name, names);
  fmt::print(stderr, "unisono: there is no command '{}'.{}\n", name,
             meant.empty() ? "" : fmt::format(" Did you mean '{}'?", meant));
  fmt::print(stderr, "Try 'unisono --help'.\n");
  return exit_code_usage;
}

}  // namespace

std::span<const Command> commands() { return table; }

std::vector<CommandSyntax> command_syntaxes() {
  std::vector<CommandSyntax> all;
  for (const auto& command : table) {
    if (command.syntax == nullptr) continue;
    all.push_back(command.syntax());
    all.back().summary = command.summary;
  }
  return all;
}

int run_tool(const Arguments& arguments) {
  if (arguments.empty()) {
    fmt::print(stderr, "{}", overview());
    return exit_code_usage;
  }
  const auto& name = arguments.front();
  if (name == "--version" || name == "-V") {
    fmt::print("unisono {} ({})\n", version_text, commit_text());
    return 0;
  }
  const bool help = name == "--help" || name == "-h" || name == "help";
  if (help && arguments.size() < 2) {
    fmt::print("{}", overview());
    return 0;
  }
  const auto words = std::span(arguments).subspan(help ? 1 : 0);
  const auto [command, count] = find_command(words);
  if (command == nullptr) return unknown_command(words[0]);
  return command->run(help ? Arguments{"--help"} : Arguments(words.begin() + static_cast<std::ptrdiff_t>(count), words.end()));
}

}  // namespace unisono::cli
