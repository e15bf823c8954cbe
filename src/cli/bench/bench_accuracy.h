// Makes inputs for collectives whose elements are encoded, and measures the errors of a result.
//
// The whole numbers of bench_data.h are too easy for codecs. Here, the elements are normally distributed, with mean 0 and
// deviation 1. They are rounded so that every floating-point type for which there are codecs holds them exactly. The expected
// result is computed in doubles from the inputs of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cli/bench/bench_data.h"

namespace unisono::cli {

// Returns the element with the number `index` of a rank's input.
double normal_element(const DataPlan& plan, uint32_t rank, uint64_t index);
void fill_normal(const DataPlan& plan, uint32_t rank, size_t first, size_t count, void* out);

struct Accuracy {
  double signal = 0, noise = 0;  // sums over all elements; signal: (exact value)²; noise: (result - exact value)²
  double largest = 0;            // the largest error of any element
  uint64_t wrong = 0;            // counts elements that are NaN, and elements whose error exceeds error_bound()
  uint64_t bits = 0;             // checksum of the result

  // Returns the signal-to-noise ratio in decibels. It is infinite if the result is exact.
  double snr_db() const;
};

// Returns the largest error that the codec can cause in one element. This assumes that every step of the collective rounds the
// element once.
double error_bound(const DataPlan& plan);
// Returns how accurate this rank's result is. The collective must be all_reduce, reduce_scatter, all_gather or all_to_all.
// `output` has the form that count_wrong() in bench_data.h describes.
Accuracy accuracy_of(const DataPlan& plan, uint32_t rank, size_t block_count, const void* output);

}  // namespace unisono::cli
