// Reads the output of `unisono bench --json`, and compares two such results.
//
// Rows of two files match if they measured the same: collective, world size, bytes, type, operation, root, form, order,
// schedule asked for. The medians are compared. A median has changed only if the middle halves of the iterations' times (25th
// to 75th percentile) do not overlap: a change that is smaller than that spread is "same". A file may hold several runs: then a
// row's median is the median of theirs, and its spread reaches over all of them.
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
  std::string what;  // everything that must be equal to compare, in words: "all_reduce f32 sum, 4 ranks, in place, …"
  bool in_place = false;
  uint64_t bytes = 0;
  double p25_us = 0, p50_us = 0, p75_us = 0, p99_us = 0;
  double bus_bandwidth = 0;  // GB/s, of the median
  uint64_t wrong = 0;
  size_t runs = 1;
};

struct Results {
  std::string name;                                              // the file's
  std::vector<std::pair<std::string, std::string>> environment;  // what may explain a difference
  std::vector<ResultRow> rows;                                   // in the order of the file, each once
};

// JSON lines. Lines of other kinds are passed over. invalid: the line, and what it lacks.
Result<Results> parse_results(std::string name, std::string_view text);
// unavailable: the file cannot be read.
Result<Results> read_results(const std::string& path);

enum class Change : uint8_t { same, faster, slower, wrong };  // wrong: new values were

struct Comparison {
  ResultRow before, now;
  double ratio = 1;  // now's median / before's; 0 if before's is 0
  Change change = Change::same;
};

// Rows of both, in the order of `now`.
std::vector<Comparison> compare_rows(const Results& before, const Results& now);
// The rows that `results` has and `other` lacks.
std::vector<std::string> rows_without(const Results& results, const Results& other);

std::string comparison_table(const Results& before, const Results& now, const std::vector<Comparison>& rows);
// A row is slower by more than the limit (1.05: five percent), or wrong; a limit of 0 counts wrong rows only.
bool fails(const std::vector<Comparison>& rows, double limit);

// Time and bus bandwidth against size, a line per collective: its rows in place if it has any. With `now`, that is drawn full
// and `before` dashed. unavailable: the file cannot be written.
Status plot_results(const std::string& path, const Results& before, const Results* now);

}  // namespace unisono::cli
