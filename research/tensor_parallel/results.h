// What a run shows for itself: two tables, summary.json, times.svg and alone.svg.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "research/tensor_parallel/measure.h"
#include "unisono/status.h"

namespace tensor_parallel {

struct Results {
  Shape shape;
  MeasureOptions options;
  uint32_t world_size = 0;
  std::string links;        // as the group measured them
  std::string kernels;      // of the matrix products
  size_t weight_bytes = 0;  // per rank
  Measured measured = {};
};

// Of sorted or unsorted values, by linear interpolation; NaN if there are none. share is 0 to 1.
double quantile(std::vector<double> values, double share);

std::string table(const Results& results);
std::string summary_json(const Results& results);
// The three files in the directory, which is made if need be.
unisono::Status write_files(const Results& results, const std::string& directory);

}  // namespace tensor_parallel
