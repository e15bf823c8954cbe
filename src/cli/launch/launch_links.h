// --rate, --loss and --delay of `unisono launch` and `unisono bench`: each rank runs on this host in a network of its own, and
// the link emulator (cli/launch/link_emulator.h) carries the packets.
//
// The ranks of bench move there themselves. For any other program, the launcher starts `unisono emulated-rank -- PROGRAM` as
// each rank, which moves into its network and becomes PROGRAM.
#pragma once

#include <CLI/App.hpp>

#include <string>

#include "cli/common/command_line.h"
#include "cli/launch/launch.h"
#include "cli/launch/thin_links.h"
#include "unisono/status.h"

namespace unisono::cli {

void add_link_options(CLI::App& app, LinkWords& links);

// invalid: which option is wrong, or contradicts another one.
Result<LinkLimits> make_limits(const LaunchOptions& options);

// The ranks' meeting point and transport there. unsupported: networks of their own are not possible here, and why.
Status choose_private_network(LaunchOptions& options);

// `unisono launch` with limits. The exit code.
int run_over_links(LaunchOptions options, const LinkLimits& limits, Arguments program);

// `unisono emulated-rank -- PROGRAM [ARGUMENTS]`: returns only if it fails.
inline constexpr const char* emulated_rank_command = "emulated-rank";
int run_emulated_rank(const Arguments& arguments);

}  // namespace unisono::cli
