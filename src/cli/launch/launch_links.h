// The options --rate, --loss and --delay of `unisono launch` and `unisono bench`. With these options, each rank runs on this
// host in a private network. The link emulator (cli/launch/link_emulator.h) carries the packets between these networks.
//
// The ranks of `unisono bench` move into their networks themselves. Other programs are started as `unisono emulated-rank --
// PROGRAM`. This command moves into the network, and then executes PROGRAM.
#pragma once

#include <CLI/App.hpp>

#include <string>

#include "cli/common/command_line.h"
#include "cli/launch/launch.h"
#include "cli/launch/thin_links.h"
#include "unisono/status.h"

namespace unisono::cli {

void add_link_options(CLI::App& app, LinkWords& links);

// If the result is Code::invalid, the message names the option that is wrong or that contradicts another option.
Result<LinkLimits> make_limits(const LaunchOptions& options);

// Sets the rendezvous address and the transport for ranks in private networks. Returns Code::unsupported if this system does
// not allow private networks; the message says why.
Status choose_private_network(LaunchOptions& options);

// Runs `unisono launch` with emulated links. Returns the exit code.
int run_over_links(LaunchOptions options, const LinkLimits& limits, Arguments program);

// The command `unisono emulated-rank -- PROGRAM [ARGUMENTS]`. It returns only if PROGRAM cannot be executed.
inline constexpr const char* emulated_rank_command = "emulated-rank";
int run_emulated_rank(const Arguments& arguments);

}  // namespace unisono::cli
