#include "cli/bench/bench_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "cli/bench/bench_table.h"
#include "cli/common/command_line.h"
#include "cli/common/job_outcome.h"
#include "cli/common/result_writer.h"
#include "cli/common/spawn.h"
#include "cli/common/text.h"
#include "cli/launch/job_key.h"
#include "cli/launch/launch_links.h"

namespace unisono::cli {
namespace {

// Returns the options with which ranks join the group. They are the same for ranks that this command launches and for ranks
// that another launcher has started.
Result<Options> join_options(const BenchRanks& ranks) {
  auto join = ranks.group;
  const auto& address = ranks.launch.rendezvous;
  if (!address.empty()) join.rendezvous = address.find("://") == std::string::npos ? "tcp://" + address : address;
  join.interface = ranks.launch.interface;
  join.transport = ranks.launch.transport;
  join.job = ranks.launch.job;
  if (auto status = set_group_security(ranks.launch, join); !status.ok()) return status;
  return join;
}

// This must run before the process starts a thread, because it may move the process into a private network.
Result<std::optional<EmulatedRank>> connect_emulated_rank(const BenchRanks& ranks) {
  if (!ranks.needs_link_emulator()) return std::optional<EmulatedRank>();
  const char* rank = std::getenv("RANK");
  const char* job = std::getenv("UNISONO_JOB");
  const auto number = parse_count(rank == nullptr ? "" : rank, world_size_max - 1);
  if (!number.ok() || job == nullptr)
    return Status(Code::invalid,
                  "emulated links and injected faults need ranks that this command starts itself, on this host: give -n COUNT, "
                  "without another launcher");
  auto emulated_rank = EmulatedRank::connect(job, static_cast<uint32_t>(*number), ranks.limits.any());
  if (!emulated_rank.ok()) return emulated_rank.status();
  return std::optional<EmulatedRank>(*std::move(emulated_rank));
}

int run_rank(const BenchRanks& ranks, const RankPart& part) {
  auto emulated_rank = connect_emulated_rank(ranks);
  if (!emulated_rank.ok() && emulated_rank.status().code() == Code::invalid)
    return usage_error(ranks.name, emulated_rank.status().message());
  if (!emulated_rank.ok()) return bench_failed(ranks.name, emulated_rank.status());
  const auto join = join_options(ranks);
  if (!join.ok()) return usage_error(ranks.name, join.status().message());
  auto group = Group::join(*join);
  if (!group.ok()) {
    fmt::print(stderr, "{}: cannot join: {}\n", ranks.name, group.status().to_string());
    return 1;
  }
  return part(*group, *emulated_rank);
}

// Returns true if a launcher started this process as a rank. `unisono launch`, torchrun or the user sets RANK; Open MPI, PMI
// and Slurm set the other variables. If the user gave -n and RANK is not set, this command launches ranks itself, whatever the
// other variables say.
bool is_rank_already() {
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  return set("RANK") || set("OMPI_COMM_WORLD_RANK") || set("PMI_RANK") || set("SLURM_PROCID");
}

// Launches this command once per rank. Each process finds its rank in the environment.
int run_as_launcher(const BenchRanks& ranks, const Arguments& arguments) {
  Arguments program{own_executable()};
  program.insert(program.end(), ranks.command.begin(), ranks.command.end());
  program.insert(program.end(), arguments.begin(), arguments.end());
  // The ranks write into pipes. Only this process knows whether its output is a terminal, so it chooses the style.
  if (ranks.progress == "auto" && ::isatty(STDERR_FILENO) == 1) program.insert(program.end(), {"--progress", "bar"});
  auto launch = ranks.launch;
  launch.no_prefix = true;
  if (ranks.limits.any()) {
    if (auto chosen = choose_private_network(launch); !chosen.ok()) return bench_failed(ranks.name, chosen);
  }
  launch.keep_going = !ranks.faults.empty();
  auto job = make_job(launch, std::move(program));
  if (!job.ok()) return usage_error(ranks.name, job.status().message());
  if (!ranks.needs_link_emulator()) return run_job(*job);
  const auto world_size = job->placements.back().first_rank + job->placements.back().rank_count;
  auto faults = arrange_faults(ranks.faults, world_size);
  if (!faults.ok()) return usage_error(ranks.name, faults.status().message());
  job->may_fail = victims_of(*faults);
  const auto emulator =
      LinkEmulator::start({.job = job->job, .ranks = world_size, .limits = ranks.limits, .faults = *std::move(faults)});
  if (!emulator.ok()) return bench_failed(ranks.name, emulator.status());
  return run_job(*job);
}

}  // namespace

int bench_failed(const std::string& name, const Status& status) {
  fmt::print(stderr, "{}: {}\n", name, status.to_string());
  return 1;
}

int bench_failed(const std::string& name, const Group& group, const std::string& what, const Status& status) {
  fmt::print(stderr, "{}: rank {}: {}: {}\n", name, group.rank(), what, status.to_string());
  return 1;
}

// Checks before the measurement whether the output files can be written. Only rank 0 writes these files. So the check is
// skipped if rank 0 is another process or on another host.
Status check_outputs(const BenchRanks& ranks, bool is_rank) {
  if (is_rank ? std::string_view(std::getenv("RANK")) != "0" : !ranks.launch.hosts.empty()) return {};
  for (const auto& file : ranks.outputs) {
    if (auto status = check_writable(file); !status.ok()) return status;
  }
  return {};
}

int run_bench_ranks(const BenchRanks& ranks, const Arguments& arguments, const RankPart& part) {
  const char* world = std::getenv("WORLD_SIZE");
  const bool is_rank = std::getenv("RANK") != nullptr;
  const auto& count = ranks.launch.count;
  if (is_rank && !count.empty() && world != nullptr && count != world)
    return usage_error(ranks.name, fmt::format("-n {} contradicts WORLD_SIZE={} of the environment", count, world));
  if (auto status = check_outputs(ranks, is_rank); !status.ok()) return usage_error(ranks.name, status.message());
  if (ranks.asked() && !is_rank) return run_as_launcher(ranks, arguments);
  if (!is_rank_already())
    return usage_error(ranks.name, "how many ranks? Give -n 4, or start it with a launcher that sets RANK");
  return run_rank(ranks, part);
}

Status show_links(const LinkLimits& limits, std::optional<EmulatedRank>& emulated_rank, Sink& sink) {
  if (!limits.any() || !sink.is_open()) return {};
  auto tally = emulated_rank->tally();
  if (!tally.ok()) return tally.status();
  sink.table(table_links(*tally));
  sink.json(json_links(*tally));
  return {};
}

int leave_bench(const std::string& name, Group& group, Sink& sink) {
  if (auto written = sink.finish(); !written.ok()) return bench_failed(name, group, "results", written);
  auto met = group.barrier();
  return met.ok() ? 0 : bench_failed(name, group, "last barrier", met.status());
}

}  // namespace unisono::cli
