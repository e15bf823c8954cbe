// Applies each remedy for stragglers to a step's times.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lab/drop_compute/straggler_run.h"

namespace unisono::sim {

// To the nearest ns.
int64_t ns_of(double seconds);
int64_t sum_of(std::span<const int64_t> latencies);
// Draws the latencies of all workers' micro-batches in a step: [worker][micro-batch], ns.
void draw_latencies(const StragglerSettings& settings, uint64_t step, std::vector<int64_t>& latencies);
// T_i: when the last worker is through with all of its micro-batches.
int64_t slowest_ns(std::span<const int64_t> latencies, uint32_t micro_batches);
// The step as it would be recorded if nothing was dropped.
void append_step(ComputeTrace& trace, std::span<const int64_t> latencies, int64_t other_ns);

// Called for each step from 1 on. Returns D_i, when the all-reduce can begin, ns from the step's begin, and adds to `dropped`,
// by worker, how many micro-batches it goes without.
using RemedyStep = std::function<int64_t(uint64_t step, std::span<const int64_t> latencies, std::span<uint32_t> dropped)>;
// Chosen thresholds are added to `outcome`. `outcome` and `settings` must outlive the returned object.
RemedyStep make_remedy(const StragglerSettings& settings, const Remedy& remedy, StragglerOutcome& outcome);

}  // namespace unisono::sim
