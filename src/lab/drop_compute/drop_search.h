// The options and the input of `unisono-lab drop-compute search`. Pure, but for reading the file.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lab/common/option_words.h"
#include "training/drop_compute/compute_trace.h"

namespace unisono::cli {

extern const CommandLineText drop_search_text;

// As typed; parsed by make_drop_search.
struct DropSearchOptions {
  std::string trace;
  std::string rule = "all", search = "exact";
  DropChoiceOptions choice;
  std::string json, plot;
};

void add_drop_search_options(CLI::App& app, DropSearchOptions& options);

struct DropSearch {
  std::string trace;
  std::vector<DropRule> rules;
  DropOptions choice;  // of all rules
};
// invalid: which option is wrong and what it takes.
Result<DropSearch> make_drop_search(const DropSearchOptions& options);

// A trace and the numbers that its ranks and steps have there.
struct NamedTrace {
  std::string name;  // of the file, or "standard input"
  ComputeTrace trace;
  std::vector<uint64_t> ranks;  // of its workers
  size_t steps_left_out = 0;    // a rank's line was missing
};
// invalid: what is wrong with the text, and in which line; the name stands before it.
Result<NamedTrace> named_trace(std::string name, std::string_view text);
// unavailable: the file cannot be read. "-" is standard input.
Result<NamedTrace> read_trace(const std::string& path);

}  // namespace unisono::cli
