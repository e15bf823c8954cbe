// The options of `unisono launch`, and how a job is made from them.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

#include "cli/launch/job.h"
#include "unisono/status.h"

namespace unisono::cli {

// The options as the user typed them. make_limits() (cli/launch/launch_links.h) parses them.
struct LinkWords {
  std::string rate, loss, delay;
};

// The options as the user typed them. make_job() parses them.
struct LaunchOptions {
  std::string count;  // the value of -n; empty: all slots of the hosts are filled
  std::string hosts;
  std::string rendezvous;  // tcp://host:port, host:port or file:///path
  std::string job;
  std::string interface;
  std::string transport;
  std::string key_file;
  std::string security;  // auto, required or off; empty: UNISONO_SECURITY
  std::string grace = "5s";
  std::string start_timeout = "30s";
  std::string ssh = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3";
  std::vector<std::string> environment;  // NAME=value, or NAME alone to pass on the value that the launcher has
  bool no_prefix = false;
  bool keep_going = false;
  bool pin = false;
  bool private_network = false;  // true: `rendezvous` lies in the private network of the job
  LinkWords links;               // only `launch` and `bench` have these options
};

// If the result is Code::invalid, the message names the option that is wrong, and the values that it can have.
Result<JobOptions> make_job(const LaunchOptions& options, std::vector<std::string> program);

// Adds the options that `launch` shares with commands that launch their own ranks, such as `bench`.
void add_launch_options(CLI::App& app, LaunchOptions& options);

}  // namespace unisono::cli
