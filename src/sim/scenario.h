// One simulated run from its settings and a seed to an outcome: the entry for the command line and the tests.
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
  all_reduce,  // one all-reduce of everybody
  random,      // random programs
  wrong,       // random programs in which one process errs
  reform,      // processes die or stop; the others re-form the group and go on
};
const char* name(ScenarioKind kind);
Result<ScenarioKind> parse_scenario_kind(std::string_view text);

struct ScenarioSettings {
  ScenarioKind kind = ScenarioKind::all_reduce;
  uint32_t peers = 0;  // 0 = 2 … 9, by seed
  FaultProfile faults = FaultProfile::mixed;
  // Of all_reduce:
  uint64_t bytes = 64u << 10;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  Order order = Order::automatic;
  ScheduleKind schedule = ScheduleKind::automatic;
  uint64_t slice_bytes = 0;
  uint32_t ranks_per_host = 1;
  // Of all: what handing a message over costs, by which schedules are chosen; 0: as over TCP at 10 Gbit/s. Where it is dear,
  // short sums are relayed.
  uint32_t message_us = 0;
  // Injected: the n-th call of its kind fails.
  uint64_t fail_send = 0, fail_receive = 0, fail_credit = 0, fail_acquire = 0;
};

struct Outcome {
  uint64_t seed = 0;
  std::string plan;                   // what went wrong on purpose
  std::vector<std::string> problems;  // what went wrong; empty = passed
  uint64_t trace_hash = 0;
  uint64_t operations_ok = 0;
  std::map<Code, uint64_t> errors;  // operations by error
  Nanos virtual_time = 0;           // until the last operation ended
  NetworkCounters network;
  uint64_t events = 0;
  std::string schedule;  // of all_reduce
};

// trace_text: null, or where the trace goes.
Outcome run_scenario(const ScenarioSettings& settings, uint64_t seed, std::string* trace_text = nullptr);

}  // namespace unisono::sim
