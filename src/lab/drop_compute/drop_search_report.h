// Formats the output of `unisono-lab drop-compute search`: a table, JSON lines, plots. Performs no I/O.
#pragma once

#include <string>
#include <vector>

#include "lab/drop_compute/drop_search.h"
#include "lab/drop_compute/drop_study.h"

namespace unisono::lab {

struct DropSearchResult {
  DropSearch what;
  NamedTrace named;
  TraceStudy study;
};
DropSearchResult search_result(const DropSearch& what, NamedTrace named);

// Returns a warning, with advice, for each rule under which one rank drops far more than the others.
std::vector<std::string> warnings_of(const DropSearchResult& result);

std::string table_of(const DropSearchResult& result);
// Returns JSON lines: one for the trace, one for each rule, one for the oracle, and one for each warning.
std::string json_of(const DropSearchResult& result);
// Returns four plots: the compute times, the speed-up against the threshold, the step times, and the speed-up against the
// number of workers.
std::vector<cli::Panel> panels_of(const DropSearchResult& result);

}  // namespace unisono::lab
