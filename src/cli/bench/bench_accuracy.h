// Inputs for collectives whose elements are encoded, and how near a result is to the exact one.
//
// Whole numbers, as bench_data has them, fit codes too well. Here the elements are normally distributed, mean 0 and deviation
// 1, rounded so that every floating type that is encoded holds them exactly. The expected result is computed in doubles from
// all ranks' inputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cli/bench/bench_data.h"

namespace unisono::cli {

// Element of a rank's input.
double normal_element(const DataPlan& plan, uint32_t rank, uint64_t index);
void fill_normal(const DataPlan& plan, uint32_t rank, size_t first, size_t count, void* out);

struct Accuracy {
  double signal = 0, noise = 0;  // sums of squares: of the exact elements, and of what the result's are off by
  double largest = 0;            // error of an element
  uint64_t wrong = 0;            // elements that are further off than the codec can explain, or no numbers
  uint64_t bits = 0;             // checksum of the result

  // Decibels; infinite where nothing is lost.
  double snr_db() const;
};

// How far an element may be off: a rounding in each step.
double error_bound(const DataPlan& plan);
// The accuracy of this rank's result, in the form that count_wrong of bench_data.h describes. It covers all_reduce,
// reduce_scatter, all_gather and all_to_all.
Accuracy accuracy_of(const DataPlan& plan, uint32_t rank, size_t block_count, const void* output);

}  // namespace unisono::cli
