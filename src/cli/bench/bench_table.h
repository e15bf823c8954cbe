// Formats measurements, either as a table or as JSON lines. The table has the columns of nccl-tests, and percentiles.
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
  std::vector<Member> members;  // the members as rank 0 sees them
  std::string impairment = {};  // describes --rate, --loss and --delay; empty: links are not emulated
  LinkSpeeds speeds = {};       // the library chooses schedules according to these link speeds
};

struct Row {
  std::optional<Measurement> out_of_place;  // nullopt: it was not measured, or the collective cannot run out of place
  std::optional<Measurement> in_place;
};

double algorithm_bandwidth(const Measurement& measurement);  // in GB/s; 1 GB = 1e9 bytes
double bus_bandwidth(const BenchFacts& facts, const Measurement& measurement);

// Returns how many ranks each host has, such as "a x2, b x2". The hosts are in the order of the ranks.
std::string host_summary(const std::vector<Member>& members);
// Returns how many links of rank 0 use each transport, such as "inside hosts shm x1; between hosts tcp x2".
std::string link_summary(const std::vector<Member>& members);

// Formats a number in the same way as nccl-tests: 8.31, 123.4, 28011.
std::string four_digits(double value);

// Returns the lines at the head of the table that do not depend on what is measured. They describe the machines, the links and
// how the links are emulated.
std::string table_surroundings(const BenchFacts& facts);
// Return lines of the table. The lines of table_head() begin with '#' and say what the numbers depend on. row_head() names the
// columns of table_row().
std::string table_head(const BenchFacts& facts);
std::string row_head(const BenchFacts& facts);
std::string table_row(const BenchFacts& facts, const Row& row);
// Returns two lines: "# Out of bounds values : 0 OK" and "# Avg bus bandwidth : X".
std::string table_foot(const BenchFacts& facts, const std::vector<Row>& rows);
// Formats what the link emulator has counted. Call this only if links are emulated.
std::string table_links(const LinkTally& tally);
std::string json_links(const LinkTally& tally);
uint64_t wrong_values(const std::vector<Row>& rows);

// Each of these formats one line with a JSON object. The value of "kind" in it says what the object describes. json_facts()
// gives the first line, with facts that hold for all rows.
std::string json_facts(const BenchFacts& facts);
std::string json_row(const BenchFacts& facts, const Measurement& measurement, bool in_place);

}  // namespace unisono::cli
