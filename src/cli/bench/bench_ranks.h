// How the ranks of `unisono bench` come about: started by this command, here or on other hosts, or by a launcher that sets
// RANK; on the host's network, or each with one of its own where links and faults are asked for.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/common/command_line.h"
#include "cli/launch/injected_faults.h"
#include "cli/launch/launch.h"
#include "cli/launch/link_emulator.h"
#include "cli/launch/thin_links.h"
#include "unisono/group.h"

namespace unisono::cli {

class Sink;

struct BenchRanks {
  std::string name;   // "unisono bench"
  Arguments command;  // the words behind the tool's name: each rank is started with them
  LaunchOptions launch;
  LinkLimits limits;
  std::vector<Fault> faults;  // as typed
  Options group;
  std::string progress;  // a style; auto is decided here, because ranks write into pipes
  std::vector<std::pair<std::string, std::string>> outputs = {};  // option and path of each file that rank 0 writes
  bool needs_link_emulator() const { return limits.any() || !faults.empty(); }
  bool asked() const { return !launch.count.empty() || !launch.hosts.empty(); }
};

// One rank's part; the exit code of its process.
using RankPart = std::function<int(Group& group, std::optional<EmulatedRank>& emulated_rank)>;

// As the launcher starts the ranks with the command and its arguments, as a rank joins and plays its part. The exit code.
int run_bench_ranks(const BenchRanks& ranks, const Arguments& arguments, const RankPart& part);

// Say so on standard error; 1.
int bench_failed(const std::string& name, const Status& status);
int bench_failed(const std::string& name, const Group& group, const std::string& what, const Status& status);

// Writes the counts of the emulated links, if there are any and this rank writes the results.
Status show_links(const LinkLimits& limits, std::optional<EmulatedRank>& emulated_rank, Sink& sink);

// Writes the remaining output and waits for the others: no rank leaves while others still communicate. Returns the exit code.
int leave_bench(const std::string& name, Group& group, Sink& sink);

}  // namespace unisono::cli
