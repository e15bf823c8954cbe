// How a measurement is shown: the columns of nccl-tests with percentiles, and JSON lines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/bench/bench_run.h"
#include "cli/common/host_facts.h"
#include "cli/launch/link_emulator.h"
#include "unisono/group.h"

namespace unisono::cli {

struct BenchFacts {
  HostFacts host;
  DataPlan data;
  CallOptions call;
  bool barrier = true;
  Across across = Across::mean;
  std::vector<Member> members;  // as rank 0 sees them
  std::string impairment = {};  // what --rate, --loss and --delay do to the links; empty: nothing
  LinkSpeeds speeds = {};       // what schedules are chosen by
};

struct Row {
  std::optional<Measurement> out_of_place;  // none: the collective has no such form
  std::optional<Measurement> in_place;
};

double algorithm_bandwidth(const Measurement& measurement);  // GB/s, GB = 1e9
double bus_bandwidth(const BenchFacts& facts, const Measurement& measurement);

// "a x2, b x2": in the order of the ranks.
std::string host_summary(const std::vector<Member>& members);
// "inside hosts shm x1; between hosts tcp x2": kinds of transport from rank 0 to the others.
std::string link_summary(const std::vector<Member>& members);

// As in nccl-tests: 8.31, 123.4, 28011.
std::string four_digits(double value);

// The machines, the links and what is asked of them: lines of a head that hold for whatever is measured.
std::string table_surroundings(const BenchFacts& facts);
// All lines start with '#'. The head says what the numbers depend on; row_head names the columns of table_row.
std::string table_head(const BenchFacts& facts);
std::string row_head(const BenchFacts& facts);
std::string table_row(const BenchFacts& facts, const Row& row);
// "# Out of bounds values : 0 OK" and "# Avg bus bandwidth : X".
std::string table_foot(const BenchFacts& facts, const std::vector<Row>& rows);
// The counts of the emulated links, which exist on request only.
std::string table_links(const LinkTally& tally);
std::string json_links(const LinkTally& tally);
uint64_t wrong_values(const std::vector<Row>& rows);

// One JSON object per line, with its "kind". json_facts is the first line: what holds for all rows.
std::string json_facts(const BenchFacts& facts);
std::string json_row(const BenchFacts& facts, const Measurement& measurement, bool in_place);

}  // namespace unisono::cli
