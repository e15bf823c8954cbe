// The measurement of `unisono-lab bench compress`: one rank's part, against the public API only.
//
// Every rank runs the same methods in the same order, in turn in each step, on gradients of its own; in the end all hold the
// same numbers.
#pragma once

#include <functional>
#include <vector>

#include "lab/compressors/compress_table.h"
#include "unisono/group.h"

namespace unisono::cli {

// Told before each method's turn; never while the clock runs.
using CompressProgress = std::function<void(uint64_t done, const std::string& what)>;

// Each method once, or twice where there is a codec that it takes; in the order of the plan.
Result<std::vector<CompressRow>> measure_methods(Group& group, const CompressPlan& plan, const CompressProgress& on_progress);
// Turns of methods that it takes.
uint64_t turns_of(const CompressPlan& plan);

}  // namespace unisono::cli
