// Reads the output of `unisono bench --output`, and compares two such results.
//
// A row of one file matches a row of the other if both measured the same call (ResultRow::what). The medians of matching rows
// are compared. Each row also has a spread: the times of the middle half of its iterations (25th to 75th percentile). A row
// counts as changed only if the two spreads do not overlap; otherwise it is "same". A file may hold several runs of a row. Then
// the median of the row is the median of the runs' medians, and its spread covers the spreads of all runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/status.h"

namespace unisono::cli {

struct ResultRow {
  std::string collective;
  std::string what;  // Two rows are compared if this text is equal. Example: "all_reduce f32 sum, 4 ranks, in place, …".
  bool in_place = false;
  uint64_t bytes = 0;
  double p25_us = 0, p50_us = 0, p75_us = 0, p99_us = 0;
  double bus_bandwidth = 0;  // in GB/s, computed from the median time
  uint64_t wrong = 0;
  size_t runs = 1;
};

struct Results {
  std::string name;  // name of the file
  // Properties of the machine and of the build. If they differ between two files, they may explain different times.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<ResultRow> rows;  // in the order of the file; several runs of one row have been merged
};

// Parses JSON lines. Lines that hold no results are skipped. If the result is Code::invalid, the message names the line and
// what is missing in it.
Result<Results> parse_results(std::string name, std::string_view text);
// Reads and parses a file. Returns Code::unavailable if the file cannot be read.
Result<Results> read_results(const std::string& path);

enum class Change : uint8_t { same, faster, slower, wrong };  // `wrong`: the new results contain wrong elements

struct Comparison {
  ResultRow before, now;
  double ratio = 1;  // the median of `now` divided by the median of `before`; 0 if the median of `before` is 0
  Change change = Change::same;
};

// Compares the rows that are in both files. The comparisons are in the order of `now`.
std::vector<Comparison> compare_rows(const Results& before, const Results& now);
// Returns those rows of `results` that `other` does not have.
std::vector<std::string> rows_without(const Results& results, const Results& other);

std::string comparison_table(const Results& before, const Results& now, const std::vector<Comparison>& rows);
// Returns true if a row has wrong elements, or if its time has grown by more than the factor `limit`. For example, 1.05 allows
// five percent. If the limit is 0, times do not matter.
bool fails(const std::vector<Comparison>& rows, double limit);

// Plots time and bus bandwidth against size, with one line for each collective. If a collective was measured in place, its line
// shows those rows. If `now` is not null, the lines of `now` are solid and the lines of `before` are dashed. Returns
// Code::unavailable if the file cannot be written.
Status plot_results(const std::string& path, const Results& before, const Results* now);

}  // namespace unisono::cli
