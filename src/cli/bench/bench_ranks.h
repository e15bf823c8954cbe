// How `unisono bench` gets its ranks. Either it starts them itself, on this host or on other hosts. Or another launcher has
// started them and has set RANK. Emulated links and injected faults need ranks that this command starts on this host. With
// emulated links, each rank has a private network. Without them, the ranks use the network of the host.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/common/command_line.h"
#include "cli/common/result_writer.h"
#include "cli/launch/injected_faults.h"
#include "cli/launch/launch.h"
#include "cli/launch/link_emulator.h"
#include "cli/launch/thin_links.h"
#include "unisono/group.h"

namespace unisono::cli {

struct BenchRanks {
  std::string name;   // "unisono bench"
  Arguments command;  // the command that each rank runs, without "unisono"
  LaunchOptions launch;
  LinkLimits limits;
  std::vector<Fault> faults;  // in the order in which the user gave them
  Options group;
  // the style of the progress display; if it is "auto", this process chooses a style, because the ranks write into pipes
  std::string progress;
  std::vector<OutputFile> outputs = {};  // the files that rank 0 writes
  bool needs_link_emulator() const { return limits.any() || !faults.empty(); }
  bool asked() const { return !launch.count.empty() || !launch.hosts.empty(); }
};

// The work of one rank. The function returns the exit code of the rank's process.
using RankPart = std::function<int(Group& group, std::optional<EmulatedRank>& emulated_rank)>;

// In the launcher, this starts the ranks; they run the command with its arguments. In a rank, it joins the group and calls
// `part`. Returns the exit code.
int run_bench_ranks(const BenchRanks& ranks, const Arguments& arguments, const RankPart& part);

// These print the error to standard error, and return exit code 1.
int bench_failed(const std::string& name, const Status& status);
int bench_failed(const std::string& name, const Group& group, const std::string& what, const Status& status);

// Writes what the link emulator has counted. Does nothing if links are not emulated, or if another rank writes the results.
Status show_links(const LinkLimits& limits, std::optional<EmulatedRank>& emulated_rank, Sink& sink);

// Writes the remaining output. Then waits for the other ranks, so that no rank leaves the group while others still communicate.
// Returns the exit code.
int leave_bench(const std::string& name, Group& group, Sink& sink);

}  // namespace unisono::cli
