// How a measurement is shown: the columns of nccl-tests with percentiles, and JSON lines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/bench_run.h"
#include "cli/host_facts.h"
#include "unisono/group.h"

namespace unisono::cli {

struct BenchFacts {
  HostFacts host;
  DataPlan data;
  CallOptions call;
  bool barrier = true;
  Across across = Across::mean;
  std::vector<std::string> links;   // of rank 0 to the others: "shm", "tcp 10.0.0.2:4711 (eth0)"
  LinkSpeeds speeds = {};           // what schedules are chosen by
};

struct Row {
  std::optional<Measurement> out_of_place;  // none: the collective has no such form
  std::optional<Measurement> in_place;
};

double algorithm_bandwidth(const Measurement& measurement);  // GB/s, GB = 1e9
double bus_bandwidth(const BenchFacts& facts, const Measurement& measurement);

// All lines start with '#'.
std::string table_head(const BenchFacts& facts);
std::string table_row(const BenchFacts& facts, const Row& row);
// "# Out of bounds values : 0 OK" and "# Avg bus bandwidth : X".
std::string table_foot(const BenchFacts& facts, const std::vector<Row>& rows);
uint64_t wrong_values(const std::vector<Row>& rows);

// One JSON object per line, with its "kind".
std::string json_facts(const BenchFacts& facts);
std::string json_row(const BenchFacts& facts, const Measurement& measurement, bool in_place);

}  // namespace unisono::cli
