// A table of the commands of `unisono-lab`, and the help texts about all of them.
#include "lab/commands.h"

#include "cli/launch/agent.h"
#include "cli/launch/launch_links.h"
#include "lab/common/commands.h"

namespace unisono::lab {

using cli::Arguments;
using cli::Command;
using cli::ExitStatus;
using cli::run_agent;
using cli::Tool;

namespace {

constexpr Command command_table[] = {
    {"simulate", "study a method in virtual ranks or peers", nullptr, nullptr,
     "Studies of methods in virtual ranks or peers: training with compressed gradients, averaging in groups among peers that\n"
     "come and go, training over links that lose packets, and whole elastic runs. A study sets what it measures beside what\n"
     "the method's formulae say. (The engine itself: 'unisono simulate'.)"},
    {"simulate arc", "train with compressed gradients, beside what is specified", run_simulate_arc, simulate_arc_syntax},
    {"simulate averaging", "how many rounds until all peers hold the mean, if some are absent", run_simulate_averaging,
     simulate_averaging_syntax},
    {"simulate loss", "train over links that lose packets, beside what the formulae say", run_simulate_loss,
     simulate_loss_syntax},
    {"simulate elastic", "whole elastic runs in virtual time, every round of them checked", run_simulate_elastic,
     simulate_elastic_syntax},
    {"simulate churn-trace", "write when peers come and go, as on machines that can be taken away", run_simulate_churn,
     simulate_churn_syntax},
    {"drop-compute", "what a compute threshold is worth", nullptr, nullptr,
     "A compute threshold bounds how long a training step waits for its slowest worker: a worker that is later leaves out its\n"
     "remaining micro-batches (DropCompute, arXiv:2306.10598). These commands say what that is worth, and which threshold is\n"
     "best."},
    {"drop-compute plan", "by closed forms, before anything has run, or for more workers than a trace has", run_drop_plan,
     drop_plan_syntax},
    {"drop-compute search", "by recorded times: the best threshold of each stop rule", run_drop_search, drop_search_syntax},
    {"drop-compute simulate", "under simulated delays, beside other remedies", run_drop_simulate, drop_simulate_syntax},
    {"bench", "measure a method with real ranks", nullptr, nullptr,
     "Measurements of methods with real ranks. (The collectives themselves: 'unisono bench'.)"},
    {"bench compress", "compare methods that make gradients smaller: bytes, times, errors", run_compress, compress_syntax},
    {"agent", "", [](const Arguments&) { return run_agent(); }, nullptr},  // bench compress starts one agent on each host
};

constexpr std::string_view first_steps = R"(
First steps:
  unisono-lab drop-compute plan --workers 200 --micro-batches 12 --mean 1s --sd 250ms --comm 500ms
  unisono-lab simulate loss --peers 16 --loss 0.1       is the mean unbiased if packets get lost?
  unisono-lab simulate averaging --compare              how many rounds until all peers hold the mean?
  unisono-lab bench compress -n 4                       what does each compressor cost, and lose?
  unisono-lab simulate arc --help                       each command explains itself

Exit codes: 0 all is well; 1 a value is not as it should be, or a measurement failed; 2 the command line is wrong.
Standard output carries data, standard error everything else.
)";

constexpr ExitStatus exit_statuses[] = {
    {"0", "All is well."},
    {"1", "A value is not as it should be, or a measurement failed."},
    {"2", "The command line is wrong; standard error says how."},
    {"any other", "bench compress: as unisono launch."},
};

constexpr std::string_view examples = R"(What is a compute threshold worth for 200 workers?
  unisono-lab drop-compute plan --workers 200 --micro-batches 12 --mean 1s --sd 250ms --comm 500ms
Is the mean unbiased, and how far do replicas drift apart, if a tenth of the packets get lost?
  unisono-lab simulate loss --peers 16 --loss 0.1
Elastic runs whose peers come and go, every round checked:
  unisono-lab simulate elastic --churn period=5s,kill=1 --seeds 0-9
What does each compressor cost, and lose?
  unisono-lab bench compress -n 4)";

}  // namespace

const Tool& lab_tool() {
  static constexpr Tool tool{
      .name = "unisono-lab",
      .title = "studies of the methods in Unisono",
      .commands = command_table,
      .moved = {},
      .first_steps = first_steps,
      .manual = {.description =
                     "Answers what Unisono's methods for thin links, lossy links, stragglers and changing peers are worth: by "
                     "simulation, by closed forms, and by measurement. Standard output carries data, standard error "
                     "everything else.",
                 .environment = "The ranks of bench compress read the variables that the manual page of unisono explains.",
                 .variables = {},
                 .exit_statuses = exit_statuses,
                 .examples = examples,
                 .see_also =
                     ".BR unisono (1)\n.PP\nAmong the installed documents: docs/design/methods explains each method and its "
                     "formulae, docs/design/simulator.md what is simulated.\n"}};
  return tool;
}

}  // namespace unisono::lab
