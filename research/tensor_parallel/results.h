// The results of a run: two tables, summary.json, times.svg and alone.svg.
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

// The quantile of values in any order, by linear interpolation; NaN if there are none. share is 0 to 1.
double quantile(std::vector<double> values, double share);

std::string table(const Results& results);
std::string summary_json(const Results& results);
// Writes the three files to the directory, and creates it if needed.
unisono::Status write_files(const Results& results, const std::string& directory);

}  // namespace tensor_parallel
