// Parses the options of `unisono-lab drop-compute search`, and reads its input. Only read_trace() performs I/O.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "cli/common/result_writer.h"
#include "lab/common/option_words.h"
#include "training/drop_compute/compute_trace.h"

namespace unisono::lab {

extern const cli::CommandLineText drop_search_text;

// Option values as the user typed them; make_drop_search() parses them.
struct DropSearchOptions {
  std::string trace;
  std::string rule = "all", search = "exact";
  DropChoiceOptions choice;
  cli::OutputOptions results = {};
  std::string plot;
};

void add_drop_search_options(CLI::App& app, DropSearchOptions& options);

struct DropSearch {
  std::string trace;
  std::vector<DropRule> rules;
  DropOptions choice;  // options that apply to all rules
};
// Fails with Code::invalid if an option has a value that is not allowed. The message names the option and the allowed values.
Result<DropSearch> make_drop_search(const DropSearchOptions& options);

// A trace (recorded end times of micro-batches), where it came from, and the ranks of its workers.
struct NamedTrace {
  std::string name;  // name of the file, or "standard input"
  ComputeTrace trace;
  std::vector<uint64_t> ranks;  // for each worker of the trace: its rank number in the file
  size_t steps_left_out = 0;    // how many steps were left out because the file lacks a line for one of the ranks
};
// Parses a trace. Fails with Code::invalid; the message contains the name, the number of the line, and what is wrong with it.
Result<NamedTrace> named_trace(std::string name, std::string_view text);
// Reads and parses a trace. The path "-" means standard input. Fails with Code::unavailable if the file cannot be read.
Result<NamedTrace> read_trace(const std::string& path);

}  // namespace unisono::lab
