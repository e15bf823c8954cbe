// Makes the measurements of `unisono-lab bench compress` on one rank. Uses the public API only.
//
// Every rank runs the same methods in the same order. In each step, every method has one turn, in which it compresses this
// rank's gradients. All ranks end with the same results.
#pragma once

#include <functional>
#include <vector>

#include "lab/compressors/compress_table.h"
#include "unisono/group.h"

namespace unisono::lab {

// This is called before each turn of a method, and never while something is measured. done: the number of turns that have
// ended.
using CompressProgress = std::function<void(uint64_t done, const std::string& what)>;

// Measures the methods in the order of the plan. If a method can use the plan's codec, it is measured twice: first without the
// codec, then with it.
Result<std::vector<CompressRow>> measure_methods(Group& group, const CompressPlan& plan, const CompressProgress& on_progress);
// Returns how many turns measure_methods() gives to all methods together.
uint64_t turns_of(const CompressPlan& plan);

}  // namespace unisono::lab
