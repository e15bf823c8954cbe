// Runs one simulation. It takes settings and a seed, and returns an outcome. The command line and tests use this entry point.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/faults.h"
#include "sim/program.h"
#include "unisono/status.h"

namespace unisono::sim {

enum class ScenarioKind : uint8_t {
  all_reduce,  // one all-reduce of all processes
  random,      // random programs
  wrong,       // random programs in which one process makes a wrong call
  reform,      // processes die or stop; the others re-form the group and continue
};
const char* name(ScenarioKind kind);
Result<ScenarioKind> parse_scenario_kind(std::string_view text);

struct ScenarioSettings {
  ScenarioKind kind = ScenarioKind::all_reduce;
  uint32_t peers = 0;  // number of processes; 0: the seed chooses a number from 2 to 9
  FaultProfile faults = FaultProfile::mixed;
  // The members from here to ranks_per_host are used only by ScenarioKind::all_reduce.
  uint64_t bytes = 64u << 10;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  Order order = Order::automatic;
  ScheduleKind schedule = ScheduleKind::automatic;
  uint64_t slice_bytes = 0;
  uint32_t ranks_per_host = 1;
  // For all kinds: the schedules are chosen as if a message cost this many microseconds. If the cost is high, short sums are
  // relayed (ranks pass values on). 0: the cost of TCP at 10 Gbit/s.
  uint32_t message_us = 0;
  // Injected faults: the n-th call of each kind fails. With 0, no call fails.
  uint64_t fail_send = 0, fail_receive = 0, fail_credit = 0, fail_acquire = 0;
};

struct Outcome {
  uint64_t seed = 0;
  std::string plan;                   // description of the injected faults
  std::vector<std::string> problems;  // failed checks; empty if the run passed
  uint64_t trace_hash = 0;
  uint64_t operations_ok = 0;
  std::map<Code, uint64_t> errors;  // number of failed operations by error code
  Nanos virtual_time = 0;           // time at which the last operation ended
  NetworkCounters network;
  uint64_t events = 0;
  std::string schedule;  // set for ScenarioKind::all_reduce
};

// If `trace_text` is not null, the trace is written to it.
Outcome run_scenario(const ScenarioSettings& settings, uint64_t seed, std::string* trace_text = nullptr);

}  // namespace unisono::sim
