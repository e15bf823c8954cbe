#include "lab/loss/loss_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/text.h"
#include "cli/common/threads.h"
#include "lab/common/option_words.h"
#include "sim/settings_text.h"

namespace unisono::lab {

using cli::add_choice;
using cli::add_output_options;
using cli::check_progress;
using cli::CommandLineText;
using cli::first_wrong;
using cli::invalid;
using cli::jobs_max;
using cli::names_of;
using cli::of_option;
using cli::parse_bytes;
using cli::parse_number;
using cli::parse_seed_list;
using cli::parse_word;
using cli::progress_names;
using cli::set_number;
using cli::set_word;
using cli::Word;

const CommandLineText loss_text{.name = "unisono-lab simulate loss",
                                .usage = "unisono-lab simulate loss [OPTIONS]",
                                .description =
                                    "Trains with lossy delivery in virtual ranks: contributions and results get lost by a "
                                    "model. The estimator, the counting of arrivals\n"
                                    "and the sharded state are those that ship. Prints what was "
                                    "measured beside the values of the formulae:\n"
                                    "is the mean gradient unbiased, how noisy is it, how far do replicas drift, and where does "
                                    "training settle? With --network it runs whole\n"
                                    "ranks over a network of rates, queues and delays, in virtual time: what do losses, "
                                    "incast, dead and slow peers do to lossy all-reduces?",
                                .footer = R"(Examples:
  unisono-lab simulate loss                                               8 ranks that lose 10 %
  unisono-lab simulate loss --peers 64 --loss 0.1 --steps 10000 --seeds 3 --plot loss.svg
  unisono-lab simulate loss --loss gilbert_elliott:p=0.1,burst=8          bursts
  unisono-lab simulate loss --loss chain:p=0.1,recovery=0.25 --stale-max 8 --problem drift
  unisono-lab simulate loss --estimator zero_fill                         a negative control: nothing is done about losses
  unisono-lab simulate loss --travel differences --problem drift          why values travel: differences drift without end
  unisono-lab simulate loss --network rate=100M,queue=64K,delay=200us --loss 0.01 --peers 16          many senders, thin ports
  unisono-lab simulate loss --network kill=3@2s,slow=5x10 --plot network.svg  which rank notices, and when

Models of loss: a share, as 0.1 (iid:0.1); gilbert_elliott:p=,burst= with good= and bad=, the loss in either state;
chain:p=,recovery=, each range of a stream lost for a while; joint:p=,both=, two receivers of one sender;
links:p=,0>1=0.3,2>*=0.1, by link. Then granularity=shard, a stream lost as a whole; dead=3@100-200, a rank cut off in
these steps; slow=3x0.2, this share of what it sends comes too late.

Problems: estimates, every estimator on fixed, unequal gradients; drift, owner against replica (O) and two replicas
(P), in units of the second moment of an update; fixed-point, rank i drawn to i^2 with gradients at its own stale
copy; network, lossy all-reduces through the engine and the UDP transport.

Networks: rate=, bits/s of each port; queue=, bytes before a port in: what does not fit is dropped; delay=, jitter=;
datagram=, bytes of the longest; compute=, time between two operations; spread=, its largest random addition. Peers:
dead=3@2s or dead=3@2s-2.5s, nothing to or from it arrives; kill=3@2s, the process dies; stop=3@2s-2.1s, it does
nothing; slow=5x10, its ports and its own work take ten times as long.

Verdicts: ok, within what is allowed, which is the tolerance or 4.5 standard errors; OFF; unsure, too few steps for
the tolerance; control, a negative control that is not meant to hold; - where no formula is known. 2p/(1+p) is the
form that has been attributed to the paper, unconfirmed.

Exit code: 0; 1 if something is OFF, or a file cannot be written; 2 for a wrong command line.)"};

namespace {

constexpr uint64_t peers_limit = 1024, steps_limit = 10'000'000, seeds_limit = 1000, ranges_limit = 4096,
                   elements_limit = 16'352, stale_limit = 1'000'000;
constexpr uint64_t steps_usual = 4000, network_steps_usual = 200,
                   network_burn_in = 50;  // this number is from check E3 of docs/design/methods/packet_loss.md
constexpr uint64_t burn_in_least = 300;   // in the problem `fixed-point`, the influence of the start falls to 1/e in 20 steps

constexpr Word<OnEmpty> on_empty_words[] = {{"hold", OnEmpty::hold}, {"own", OnEmpty::own}, {"zero", OnEmpty::zero}};
constexpr Word<sim::Travel> travel_words[] = {{"values", sim::Travel::values}, {"differences", sim::Travel::differences}};
constexpr Word<sim::Missed> missed_words[] = {{"stale", sim::Missed::stale}, {"zero", sim::Missed::zero}};
constexpr std::string_view problem_words[] = {"all", "estimates", "drift", "fixed-point", "network"};

std::vector<std::string> estimator_names() {
  std::vector<std::string> names;
  for (const auto each : sim::estimators) names.emplace_back(sim::name(each));
  return names;
}

Status set_sizes(const LossOptions& o, sim::LossRanksOptions& ranks) {
  sim::choose_sizes(ranks);
  const auto chosen = ranks;
  if (!o.ranges.empty()) {
    if (auto status = set_number(ranks.ranges, "--ranges", o.ranges, 1, ranges_limit); !status.ok()) return status;
    if (ranks.ranges > 1) ranks.elements = std::max(ranks.elements, 128u);
    if (ranks.ranges == 1 && chosen.ranges > 1) ranks.elements = 16;
  }
  if (!o.elements.empty()) {
    if (auto status = set_number(ranks.elements, "--elements", o.elements, 16, elements_limit); !status.ok()) return status;
  }
  const uint32_t least = ranks.ranges > 1 ? 128 : 16;
  if (ranks.elements % 16 != 0 || ranks.elements < least)
    return invalid(fmt::format("--elements '{}': expected a multiple of 16, at least {} with {} ranges in a shard",
                               ranks.elements, least, ranks.ranges));
  return {};
}

Status set_ranks(const LossOptions& o, sim::LossRanksOptions& ranks) {
  auto model = sim::LossModel::parse(o.loss);
  if (!model.ok()) return invalid(fmt::format("--loss {}: {}", o.loss, model.status().message()));
  ranks.model = *std::move(model);
  const auto estimator = parse_word("--estimator", o.estimator, estimator_names());
  if (auto status = first_wrong({set_number(ranks.peers, "--peers", o.peers, 2, peers_limit), estimator.status(),
                                 set_word(ranks.on_empty, "--on-empty", o.on_empty, on_empty_words),
                                 set_number(ranks.stale_max, "--stale-max", o.stale_max, 0, stale_limit),
                                 set_word(ranks.travel, "--travel", o.travel, travel_words),
                                 set_word(ranks.missed, "--missed", o.missed, missed_words)});
      !status.ok())
    return status;
  ranks.estimator = sim::estimators[*estimator];
  if (auto status = ranks.model.check(ranks.peers); !status.ok())
    return invalid(fmt::format("--loss {}: {}", o.loss, status.message()));
  if (ranks.estimator == Estimator::horvitz_thompson && ranks.model.kind != sim::LossModel::Kind::none && ranks.model.loss >= 1)
    return invalid("--estimator horvitz_thompson divides by 1 - p: p must be less than 1");
  return set_sizes(o, ranks);
}

// Fails with Code::invalid if an option is given that this problem does not use.
Status refuse_given(const LossOptions& o, bool is_network) {
  const LossOptions usual;
  struct Given {
    const char* name;
    std::string LossOptions::*value;
    bool of_network;
  };
  constexpr Given all[] = {{"--estimator", &LossOptions::estimator, false}, {"--on-empty", &LossOptions::on_empty, false},
                           {"--stale-max", &LossOptions::stale_max, false}, {"--rho", &LossOptions::rho, false},
                           {"--travel", &LossOptions::travel, false},       {"--missed", &LossOptions::missed, false},
                           {"--ranges", &LossOptions::ranges, false},       {"--elements", &LossOptions::elements, false},
                           {"--lossy", &LossOptions::lossy, true},          {"--bytes", &LossOptions::bytes, true}};
  for (const auto& each : all) {
    if (each.of_network == is_network || o.*each.value == usual.*each.value) continue;
    return invalid(
        is_network ? fmt::format("{} has no effect in the problem network, whose options are --network, --lossy and --bytes",
                                 each.name)
                   : fmt::format("{} needs --network or --problem network", each.name));
  }
  return {};
}

Status set_network(const LossOptions& o, LossPlan& plan) {
  sim::UdpRunSettings network;
  const auto model = sim::UdpModel::parse(o.network);
  if (!model.ok()) return invalid(fmt::format("--network {}: {}", o.network, model.status().message()));
  const auto loss = sim::LossModel::parse(o.loss);
  if (!loss.ok()) return invalid(fmt::format("--loss {}: {}", o.loss, loss.status().message()));
  const auto lossy = DeliveryOptions::parse(o.lossy);
  if (!lossy.ok()) return invalid(fmt::format("--lossy {}: {}", o.lossy, lossy.status().message()));
  const auto bytes = o.bytes.empty() ? Result<uint64_t>(network.bytes) : parse_bytes(o.bytes);
  if (!bytes.ok()) return invalid(fmt::format("--bytes: {}", bytes.status().message()));
  if (*bytes < sizeof(float) || *bytes % sizeof(float) != 0 || *bytes > sim::udp_bytes_max)
    return invalid(fmt::format("--bytes '{}': expected a multiple of 4, from 4 to 256M", o.bytes));
  if (!loss->dead.empty() || !loss->slow.empty())
    return invalid(
        fmt::format("--loss {}: dead= and slow= count in steps; over a network use --network dead=3@2s or slow=5x10", o.loss));
  network.model = *model;
  network.loss = *loss;
  network.delivery = *lossy;
  network.bytes = *bytes;
  network.operations = plan.settings.steps;
  network.seed = plan.seeds.front();
  network.burn_in = std::min(network_burn_in, network.operations / 2);
  if (auto status = first_wrong(
          {set_number(network.peers, "--peers", o.peers, 2, 256),
           o.burn_in.empty() ? Status() : set_number(network.burn_in, "--burn-in", o.burn_in, 0, network.operations - 1)});
      !status.ok())
    return status;
  if (auto status =
          first_wrong({of_option("--network", model->check(network.peers)), of_option("--loss", loss->check(network.peers)),
                       of_option("--lossy", lossy->check()), of_option("--peers, --bytes, --network", sim::check(network))});
      !status.ok())
    return status;
  plan.network = network;
  plan.estimates = plan.drift = plan.fixed_point = false;
  return {};
}

}  // namespace

void add_loss_options(CLI::App& app, LossOptions& o) {
  add_choice(app, o.problem,
             {.names = "-p,--problem",
              .value = "PROBLEM",
              .meaning = "which problem is run",
              .words = {std::begin(problem_words), std::end(problem_words)},
              .fallback = "all"});
  app.add_option("-n,--peers", o.peers, "virtual ranks, 2 to 1024 [8]")->type_name("N");
  app.add_option("-l,--loss", o.loss, "a share, or a model with its parameters [0.1]")->type_name("MODEL");
  app.add_option("--steps", o.steps, "steps of a run, or operations, 1 to 10,000,000 [4000; network: 200]")->type_name("N");
  app.add_option("-s,--seeds", o.seeds, "number of seeds, or a range of seeds [1]")->type_name("COUNT|A-B");
  app.add_option("--burn-in", o.burn_in, "steps at the start that are not measured [a tenth, at least 300; network: 50]")
      ->type_name("N");
  add_choice(app, o.estimator,
             {.names = "-e,--estimator",
              .value = "NAME",
              .meaning = "estimator of drift and fixed-point",
              .words = estimator_names(),
              .fallback = "stratified"});
  add_choice(app, o.on_empty,
             {.names = "--on-empty",
              .value = "RULE",
              .meaning = "rule for a range of which nothing arrived",
              .words = names_of(on_empty_words),
              .fallback = "hold"});
  app.add_option("--stale-max", o.stale_max, "a copy this many steps old is fetched reliably; 0: never [0]")
      ->type_name("STEPS");
  app.add_option("--rho", o.rho, "autocorrelation of updates from step to step, 0 to 0.999 [0]")->type_name("NUMBER");
  add_choice(app, o.travel,
             {.names = "--travel",
              .value = "WHAT",
              .meaning = "what owners send; differences are a negative control",
              .words = names_of(travel_words),
              .fallback = "values"});
  add_choice(app, o.missed,
             {.names = "--missed",
              .value = "WHAT",
              .meaning = "what replaces a missed result; zero is a negative control",
              .words = names_of(missed_words),
              .fallback = "stale"});
  app.add_option("--ranges", o.ranges, "ranges (datagrams) of a shard [by the number of peers]")->type_name("N");
  app.add_option("--elements", o.elements, "elements of a range, a multiple of 16 [likewise]")->type_name("N");
  app.add_option("--network", o.network,
                 "ports, queues, delays and peers of the problem network, which it chooses [rate=1G,queue=256K,delay=50us]")
      ->type_name("SETTINGS");
  app.add_option("--lossy", o.lossy, "network: options of lossy delivery, as loss_budget=0.2,deadline=20ms [those of a call]")
      ->type_name("OPTIONS");
  app.add_option("-b,--bytes", o.bytes, "network: size of the tensor [1M]")->type_name("SIZE");
  app.add_option("--plot", o.plot, "draw what was measured over the steps there, as SVG")->type_name("FILE");
  add_output_options(app, o.results);
  app.add_option("-j,--jobs", o.jobs, "runs at the same time [1]")->type_name("N");
  add_choice(
      app, o.progress,
      {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
}

uint64_t LossPlan::steps() const {
  if (network) return network->operations * seeds.size();
  return settings.steps * seeds.size() *
         (static_cast<uint64_t>(estimates) + static_cast<uint64_t>(drift) + static_cast<uint64_t>(fixed_point));
}

Result<LossPlan> make_loss_plan(const LossOptions& o) {
  LossPlan plan;
  plan.plot = o.plot;
  plan.results = o.results;
  plan.progress = o.progress;
  auto& settings = plan.settings;
  const auto problem = parse_word("--problem", o.problem, {std::begin(problem_words), std::end(problem_words)});
  const auto seeds = parse_seed_list(o.seeds, 0, seeds_limit);
  const auto rho = parse_number("--rho", o.rho, 0, .999);
  if (!problem.ok()) return problem.status();
  const bool is_network = problem_words[*problem] == "network" || !o.network.empty();
  if (is_network && *problem != 0 && problem_words[*problem] != "network")
    return invalid(
        fmt::format("--problem {} has no network; without --problem, or with --problem network, --network is run", o.problem));
  settings.steps = is_network ? network_steps_usual : steps_usual;
  if (auto status = first_wrong({refuse_given(o, is_network),
                                 o.steps.empty() ? Status() : set_number(settings.steps, "--steps", o.steps, 1, steps_limit),
                                 seeds.status(), rho.status(), set_number(plan.jobs, "--jobs", o.jobs, 1, jobs_max)});
      !status.ok())
    return status;
  plan.seeds = *seeds;
  if (auto status = check_progress(o.progress); !status.ok()) return status;
  if (is_network) {
    if (auto status = set_network(o, plan); !status.ok()) return status;
    return plan;
  }
  if (auto status = set_ranks(o, settings.ranks); !status.ok()) return status;
  settings.burn_in = std::max(settings.steps / 10, std::min(burn_in_least, settings.steps / 2));
  if (!o.burn_in.empty()) {
    if (auto status = set_number(settings.burn_in, "--burn-in", o.burn_in, 0, settings.steps - 1); !status.ok()) return status;
  }
  settings.rho = *rho;
  settings.ranks.seed = seeds->front();
  plan.estimates = *problem == 0 || *problem == 1;
  plan.drift = *problem == 0 || *problem == 2;
  plan.fixed_point = *problem == 0 || *problem == 3;
  if (settings.ranks.stale_max > 0 && settings.ranks.travel == sim::Travel::differences)
    return invalid("--stale-max has no effect with --travel differences: nobody knows how old a copy is");
  if (auto status = of_option("--peers, --ranges, --elements", sim::check(settings)); !status.ok()) return status;
  return plan;
}

std::string_view name(OnEmpty on_empty) {
  for (const auto& word : on_empty_words) {
    if (word.value == on_empty) return word.name;
  }
  return "automatic";
}

}  // namespace unisono::lab
