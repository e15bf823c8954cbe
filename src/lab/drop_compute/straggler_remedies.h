// Applies a remedy for stragglers (slow workers) to the latencies of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lab/drop_compute/straggler_run.h"

namespace unisono::sim {

// Converts seconds to nanoseconds, and rounds to the nearest.
int64_t ns_of(double seconds);
int64_t sum_of(std::span<const int64_t> latencies);
// Draws the latencies of all micro-batches in a step, in ns. They are ordered by worker, then by micro-batch.
void draw_latencies(const StragglerSettings& settings, uint64_t step, std::vector<int64_t>& latencies);
// Returns T_i, the time when the slowest worker ends its last micro-batch if nothing is dropped.
int64_t slowest_ns(std::span<const int64_t> latencies, uint32_t micro_batches);
// Appends the step to the trace in the form in which it would be recorded if nothing were dropped.
void append_step(ComputeTrace& trace, std::span<const int64_t> latencies, int64_t other_ns);

// This function is called for each step; steps are numbered from 1. It returns D_i, the time when the all-reduce can begin, in
// ns from the start of the step. dropped: an entry for each worker, to which the function adds how many micro-batches the
// worker drops.
using RemedyStep = std::function<int64_t(uint64_t step, std::span<const int64_t> latencies, std::span<uint32_t> dropped)>;
// Makes the function that applies a remedy. The function stores chosen thresholds in `outcome`. `outcome` and `settings` must
// outlive the function.
RemedyStep make_remedy(const StragglerSettings& settings, const Remedy& remedy, StragglerOutcome& outcome);

}  // namespace unisono::sim
