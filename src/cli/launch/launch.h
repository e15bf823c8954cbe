// The options of `unisono launch`, from words to a job.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

#include "cli/launch/job.h"
#include "unisono/status.h"

namespace unisono::cli {

// As typed; parsed by make_limits (cli/launch/launch_links.h).
struct LinkWords {
  std::string rate, loss, delay;
};

// As typed; parsed by make_job.
struct LaunchOptions {
  std::string count;  // -n; empty: all slots of the hosts
  std::string hosts;
  std::string rendezvous;  // tcp://host:port, host:port or file:///path
  std::string job;
  std::string interface;
  std::string transport;
  std::string grace = "5s";
  std::string start_timeout = "30s";
  std::string ssh = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3";
  std::vector<std::string> environment;  // NAME=value, or NAME for the launcher's own value
  bool no_prefix = false;
  bool keep_going = false;
  bool pin = false;
  LinkWords links;  // of launch and bench alone
};

// invalid: which option is wrong and what it takes.
Result<JobOptions> make_job(const LaunchOptions& options, std::vector<std::string> program);

// The options that launch shares with commands that launch themselves (bench).
void add_launch_options(CLI::App& app, LaunchOptions& options);

}  // namespace unisono::cli
