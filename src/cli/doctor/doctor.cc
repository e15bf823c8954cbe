#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/spawn.h"
#include "cli/common/text.h"
#include "cli/common/verdict.h"
#include "cli/common/version.h"
#include "cli/doctor/doctor_findings.h"
#include "cli/doctor/doctor_probe.h"
#include "cli/doctor/doctor_rounds.h"
#include "cli/doctor/doctor_table.h"
#include "cli/launch/launch.h"
#include "rendezvous/environment.h"

namespace unisono::cli {
namespace {

const CommandLineText doctor_text{
    .name = "unisono doctor",
    .usage = "unisono doctor [-n COUNT] [OPTIONS]",
    .description = "Examines this machine, and every pair of ranks of a group; says what is wrong and how to mend it.",
    .footer = R"(Examples:
  unisono doctor                              this machine alone
  unisono doctor -n 4                         four ranks on this machine, pair by pair
  unisono doctor --hosts a:2,b:2              two ranks on each of two hosts, through ssh
  srun unisono doctor --timeout 60s           ranks from the environment (torchrun, Slurm, Open MPI, unisono launch)

It looks at limits, shared memory, cores, names and interfaces, dials every address of every rank in both directions, and
measures round trip, bandwidth, long frames and clocks. It works where no group can form, and reports what fails. A rank
that cannot reach rank 0 prints a report of its own.

Exit code: 0 if there are no errors (warnings and hints do not count), 1 if there are, 2 for a wrong command line.)"};

struct DoctorOptions {
  std::string timeout = "15s";
  std::string json;
  bool verbose = false;
  LaunchOptions launch;
};

bool is_rank_already() {
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  return set("UNISONO_RANK") || set("RANK") || set("OMPI_COMM_WORLD_RANK") || set("PMI_RANK") || set("SLURM_PROCID");
}

// One write, so that what two ranks say does not mix.
void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

Status write_json(const std::string& path, const std::string& text) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "we");
  if (file == nullptr) return {Code::invalid, fmt::format("cannot write {}: {}", path, strerrordesc_np(errno))};
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (file != stdout) std::fclose(file);
  return written ? Status() : Status(Code::unavailable, fmt::format("cannot write {}", path));
}

int report(const DoctorOptions& options, const ClusterFacts& cluster) {
  const auto findings = findings_of(cluster);
  if (options.json != "-") {
    const auto where = cluster.rendezvous == "none" ? std::string("this machine alone")
                                                    : fmt::format("{} of {} ranks, meeting at {}", cluster.ranks.size(),
                                                                  cluster.world_size, cluster.rendezvous);
    const auto who = cluster.trouble && cluster.trouble->rank != 0 ? fmt::format("rank {} by itself, ", cluster.trouble->rank)
                                                                   : std::string();
    print(fmt::format("unisono doctor {}: {}{}\n\n", version_text, who, where) + machine_text(cluster, options.verbose) +
          pair_text(cluster, options.verbose) + findings_text(findings));
  }
  // One file for the group: that of rank 0.
  if (!options.json.empty() && cluster.find(0) != nullptr) {
    if (auto status = write_json(options.json, report_json(cluster, findings)); !status.ok()) {
      fmt::print(stderr, "unisono doctor: --json: {}\n", status.message());
      return exit_code_usage;
    }
  }
  const bool bad =
      std::any_of(findings.begin(), findings.end(), [](const Finding& finding) { return finding.severity == Severity::error; });
  return bad ? 1 : 0;
}

int examine(const DoctorOptions& options, const ResolvedOptions& resolved, Nanos patience) {
  auto prober = Prober::make(resolved);
  if (!prober.ok()) {
    fmt::print(stderr, "unisono doctor: rank {}: {}\n", resolved.rank, prober.status().to_string());
    return 1;
  }
  const Examination examination{resolved, patience};
  if (resolved.rank == 0) return report(options, lead(examination, **prober));
  auto trouble = follow(examination, **prober);
  if (!trouble) return 0;  // rank 0 reports
  ClusterFacts cluster;
  cluster.world_size = resolved.world_size;
  cluster.rendezvous = resolved.rendezvous.to_string();
  cluster.ranks = {(*prober)->facts()};
  cluster.trouble = std::move(trouble);
  return report(options, cluster);
}

// The same command once per rank; one that fails does not end the others, which can report about it.
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
  if (!is_rank_already()) {
    group.rank = 0;
    group.world_size = 1;
  }
  return resolve_options(group, process_environment());
}

void add_doctor_options(CLI::App& app, DoctorOptions& options) {
  app.add_option("--timeout", options.timeout, "how long the ranks wait for each other [15s]")->type_name("TIME");
  app.add_option("--json", options.json, "write all facts and findings there, as JSON; - writes them instead of the text")
      ->type_name("FILE");
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
  const auto patience = parse_duration(options.timeout);
  if (!patience.ok()) return usage_error(doctor_text.name, "--timeout: " + patience.status().message());
  if (*patience < 100 * millisecond) return usage_error(doctor_text.name, "--timeout: at least 100ms");
  const bool asked = !options.launch.count.empty() || !options.launch.hosts.empty();
  if (asked && !is_rank_already()) return run_as_launcher(options, arguments);
  const auto resolved = resolve(options);
  if (!resolved.ok()) return usage_error(doctor_text.name, resolved.status().message());
  return examine(options, *resolved, *patience);
}

}  // namespace unisono::cli
