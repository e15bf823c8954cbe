#include "cli/launch/launch_links.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "cli/common/command_line.h"
#include "cli/common/spawn.h"
#include "cli/common/text.h"
#include "cli/launch/job.h"
#include "cli/launch/link_emulator.h"
#include "cli/launch/private_network.h"

namespace unisono::cli {
namespace {

constexpr uint32_t private_port = 29500;  // every port is free in a private network

int failed(const std::string& why) {
  fmt::print(stderr, "unisono launch: {}\n", why);
  return 1;
}

}  // namespace

void add_link_options(CLI::App& app, LinkWords& links) {
  app.add_option("--rate", links.rate, "bits per second of each rank's cable, in each direction: 100M, 1G")->type_name("RATE");
  app.add_option("--loss", links.loss, "share of the packets that are lost: 1%")->type_name("SHARE");
  app.add_option("--delay", links.delay, "one-way delay between ranks: 20ms")->type_name("TIME");
}

Result<LinkLimits> make_limits(const LaunchOptions& options) {
  const auto& links = options.links;
  const auto rate = links.rate.empty() ? Result<uint64_t>(uint64_t{0}) : parse_rate(links.rate);
  const auto loss = links.loss.empty() ? Result<double>(0.0) : parse_loss(links.loss);
  const auto delay = links.delay.empty() ? Result<Nanos>(Nanos{0}) : parse_duration(links.delay);
  for (const auto& status : {rate.status(), loss.status()}) {
    if (!status.ok()) return status;
  }
  if (!delay.ok()) return Status(Code::invalid, "--delay: " + delay.status().message());
  const LinkLimits limits{*rate, *loss, *delay};
  if (!limits.any()) return limits;
  if (!options.hosts.empty())
    return Status(Code::invalid, "--rate, --loss and --delay are for ranks on this host alone, not for --hosts");
  if (options.transport == "shm")
    return Status(Code::invalid, "--transport shm has no packets that --rate, --loss and --delay could hold up");
  if (!options.rendezvous.empty() || !options.interface.empty()) {
    return Status(Code::invalid,
                  "--rate, --loss and --delay give each rank a network of its own: omit --rendezvous and --interface");
  }
  return limits;
}

Status choose_private_network(LaunchOptions& options) {
  if (auto possible = try_private_network(); !possible.ok()) {
    return Status(possible.code(), "--rate, --loss and --delay are not possible here: " + possible.message());
  }
  options.rendezvous = fmt::format("tcp://{}:{}", private_address(0), private_port);
  options.transport = "tcp";
  options.private_network = true;
  return {};
}

int run_over_links(LaunchOptions options, const LinkLimits& limits, Arguments program) {
  if (auto chosen = choose_private_network(options); !chosen.ok()) return failed(chosen.to_string());
  if (!program.empty()) program.insert(program.begin(), {own_executable(), emulated_rank_command, "--"});
  auto job = make_job(options, std::move(program));
  if (!job.ok()) return usage_error("unisono launch", job.status().message());
  const auto world_size = job->placements.back().first_rank + job->placements.back().rank_count;
  const auto emulator =
      LinkEmulator::start({.job = job->job, .ranks = world_size, .limits = limits, .faults = {}, .reports_lateness = true});
  if (!emulator.ok()) return failed(emulator.status().to_string());
  return run_job(*job);
}

int run_emulated_rank(const Arguments& arguments) {
  const char* rank = std::getenv("RANK");
  const char* job = std::getenv("UNISONO_JOB");
  const auto number = parse_count(rank == nullptr ? "" : rank, world_size_max - 1);
  if (!number.ok() || job == nullptr || arguments.size() < 2 || arguments.front() != "--")
    return usage_error(fmt::format("unisono {}", emulated_rank_command), "unisono launch starts this, with --rate");
  auto emulated_rank = EmulatedRank::connect(job, static_cast<uint32_t>(*number), true);
  if (!emulated_rank.ok()) return failed(emulated_rank.status().to_string());
  // From now on, if a rank ends, the emulator continues. The program does not inherit the socket and the packet descriptor,
  // because both are closed by exec.
  if (auto begun = emulated_rank->announce_formed(); !begun.ok()) return failed(begun.status().to_string());
  std::vector<char*> words;
  for (size_t i = 1; i < arguments.size(); ++i) words.push_back(const_cast<char*>(arguments[i].c_str()));
  words.push_back(nullptr);
  ::execvp(words.front(), words.data());
  const int error = errno;
  fmt::print(stderr, "unisono launch: cannot start '{}': {}\n", arguments[1], strerrordesc_np(error));
  return exit_code_of_start_error(error);
}

}  // namespace unisono::cli
