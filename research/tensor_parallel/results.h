// The results of a run. They are written as two tables, and as the files summary.json, times.svg and alone.svg.
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
  std::string links;        // the measured speed of the group's links
  std::string kernels;      // name of the kernels that compute the matrix products
  size_t weight_bytes = 0;  // bytes of the weights that one rank has
  Measured measured = {};
};

// Returns the quantile `share` (0 to 1) of the values, which need not be sorted. Interpolates linearly between values. Returns
// NaN if there are no values.
double quantile(std::vector<double> values, double share);

std::string table(const Results& results);
std::string summary_json(const Results& results);
// Writes summary.json, times.svg and alone.svg to the directory. Creates the directory if it does not exist.
unisono::Status write_files(const Results& results, const std::string& directory);

}  // namespace tensor_parallel
