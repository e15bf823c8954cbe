// One simulated run, from settings and seed to an outcome: the entry point of command line and tests.
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
  uint32_t peers = 0;  // 0: 2 … 9, by seed
  FaultProfile faults = FaultProfile::mixed;
  // For all_reduce:
  uint64_t bytes = 64u << 10;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  Order order = Order::automatic;
  ScheduleKind schedule = ScheduleKind::automatic;
  uint64_t slice_bytes = 0;
  uint32_t ranks_per_host = 1;
  // For all: cost of handing over a message, by which schedules are chosen; 0: as over TCP at 10 Gbit/s. If it is high, short
  // sums are relayed.
  uint32_t message_us = 0;
  // Injected fault: the n-th call of its kind fails.
  uint64_t fail_send = 0, fail_receive = 0, fail_credit = 0, fail_acquire = 0;
};

struct Outcome {
  uint64_t seed = 0;
  std::string plan;                   // description of the injected faults
  std::vector<std::string> problems;  // failed checks; empty: passed
  uint64_t trace_hash = 0;
  uint64_t operations_ok = 0;
  std::map<Code, uint64_t> errors;  // number of operations by error
  Nanos virtual_time = 0;           // until the last operation ended
  NetworkCounters network;
  uint64_t events = 0;
  std::string schedule;  // of all_reduce
};

// trace_text: null, or the destination of the trace.
Outcome run_scenario(const ScenarioSettings& settings, uint64_t seed, std::string* trace_text = nullptr);

}  // namespace unisono::sim
