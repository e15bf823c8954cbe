#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/result_writer.h"
#include "cli/common/spawn.h"
#include "cli/common/text.h"
#include "cli/common/version.h"
#include "cli/doctor/doctor_findings.h"
#include "cli/doctor/doctor_probe.h"
#include "cli/doctor/doctor_rounds.h"
#include "cli/doctor/doctor_table.h"
#include "cli/launch/job_key.h"
#include "cli/launch/launch.h"
#include "rendezvous/environment.h"

namespace unisono::cli {
namespace {

const CommandLineText doctor_text{
    .name = "unisono doctor",
    .usage = "unisono doctor [-n COUNT] [OPTIONS]",
    .description = "Examines this machine, and every pair of ranks of a group; says what is wrong and how to fix it.",
    .footer = R"(Examples:
  unisono doctor                              this machine alone
  unisono doctor -n 4                         four ranks on this machine, pair by pair
  unisono doctor --hosts a:2,b:2              two ranks on each of two hosts, through ssh
  unisono doctor --output facts.json          all facts and findings as JSON, beside the report
  srun unisono doctor --timeout 60s           ranks from the environment (torchrun, Slurm, Open MPI, unisono launch)

It looks at limits, shared memory, cores, names and interfaces, dials every address of every rank in both directions,
and measures round trip, bandwidth, long frames and clocks. It works where no group can form, and reports what fails.
A rank that cannot reach rank 0 prints a report of its own.

Exit code: 0 if there are no errors (warnings and hints do not count); 1 if there are, or if the output cannot be
written; 2 for a wrong command line.)"};

struct DoctorOptions {
  std::string timeout = "15s";
  OutputOptions results;
  bool verbose = false;
  LaunchOptions launch;
};

bool is_rank_already() {
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  return set("UNISONO_RANK") || set("RANK") || set("OMPI_COMM_WORLD_RANK") || set("PMI_RANK") || set("SLURM_PROCID");
}

std::string report_text(const DoctorOptions& options, const ClusterFacts& cluster, const std::vector<Finding>& findings) {
  const auto where = cluster.rendezvous == "none" ? std::string("this machine alone")
                                                  : fmt::format("{} of {} ranks, rendezvous at {}", cluster.ranks.size(),
                                                                cluster.world_size, cluster.rendezvous);
  const auto who = cluster.rendezvous_failure && cluster.rendezvous_failure->rank != 0
                       ? fmt::format("rank {} by itself, ", cluster.rendezvous_failure->rank)
                       : std::string();
  return fmt::format("unisono doctor {}: {}{}\n\n", version_text, who, where) + machine_text(cluster, options.verbose) +
         pair_text(cluster, options.verbose) + findings_text(findings);
}

int report(const DoctorOptions& options, const ClusterFacts& cluster) {
  const auto findings = findings_of(cluster);
  // There is one file for the whole group, so only rank 0 writes it. With --json, only rank 0 writes to standard output.
  auto results = options.results;
  const bool leads = cluster.find(0) != nullptr;
  if (!leads && results.output != "-") results.output.clear();
  Sink sink(results);
  if (auto opened = sink.open(true); !opened.ok()) return failed(doctor_text, opened);
  // The whole text is written in one call, so that the output of two ranks cannot mix.
  sink.table(report_text(options, cluster, findings));
  if (leads) sink.json(report_json(cluster, findings));
  if (auto written = sink.finish(); !written.ok()) return failed(doctor_text, written);
  const bool bad =
      std::any_of(findings.begin(), findings.end(), [](const Finding& finding) { return finding.severity == Severity::error; });
  return bad ? 1 : 0;
}

int examine(const DoctorOptions& options, const ResolvedOptions& resolved, Nanos timeout) {
  auto prober = Prober::make(resolved);
  if (!prober.ok()) {
    fmt::print(stderr, "unisono doctor: rank {}: {}\n", resolved.rank, prober.status().to_string());
    return 1;
  }
  const Examination examination{resolved, timeout};
  if (resolved.rank == 0) return report(options, lead(examination, **prober));
  auto failure = follow(examination, **prober);
  if (!failure) return 0;  // rank 0 prints the report for all ranks
  ClusterFacts cluster;
  cluster.world_size = resolved.world_size;
  cluster.rendezvous = resolved.rendezvous.to_string();
  cluster.ranks = {(*prober)->facts()};
  cluster.rendezvous_failure = std::move(failure);
  return report(options, cluster);
}

// Launches this command once for each rank. If a rank fails, the other ranks continue, because they can report its failure.
int run_as_launcher(const DoctorOptions& options, const Arguments& arguments) {
  Arguments program{own_executable(), "doctor"};
  program.insert(program.end(), arguments.begin(), arguments.end());
  auto launch = options.launch;
  launch.no_prefix = true;
  launch.keep_going = true;
  auto job = make_job(launch, std::move(program));
  if (!job.ok()) return usage_error(doctor_text.name, job.status().message());
  return run_job(*job);
}

Result<ResolvedOptions> resolve(const DoctorOptions& options) {
  Options group;
  group.interface = options.launch.interface;
  group.transport = options.launch.transport;
  const auto& address = options.launch.rendezvous;
  if (!address.empty()) group.rendezvous = address.find("://") == std::string::npos ? "tcp://" + address : address;
  if (auto status = set_group_security(options.launch, group); !status.ok()) return status;
  if (!is_rank_already()) {
    group.rank = 0;
    group.world_size = 1;
  }
  return resolve_options(group, process_environment());
}

void add_doctor_options(CLI::App& app, DoctorOptions& options) {
  app.add_option("--timeout", options.timeout, "how long the ranks wait for each other [15s]")->type_name("TIME");
  add_output_options(app, options.results);
  app.add_flag("--verbose", options.verbose, "show every address, and the outcome of dialling it");
  add_launch_options(app, options.launch);
}

}  // namespace

CommandSyntax doctor_syntax() { return syntax_of(doctor_text, add_doctor_options); }

int run_doctor(const Arguments& arguments) {
  DoctorOptions options;
  const auto app = make_app(doctor_text);
  add_doctor_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto timeout = parse_duration(options.timeout);
  if (!timeout.ok()) return usage_error(doctor_text.name, "--timeout: " + timeout.status().message());
  if (*timeout < 100 * millisecond) return usage_error(doctor_text.name, "--timeout: at least 100ms");
  const bool asked = !options.launch.count.empty() || !options.launch.hosts.empty();
  if (asked && !is_rank_already()) return run_as_launcher(options, arguments);
  const auto resolved = resolve(options);
  if (!resolved.ok()) return usage_error(doctor_text.name, resolved.status().message());
  return examine(options, *resolved, *timeout);
}

}  // namespace unisono::cli
