// The output of `unisono-lab drop-compute search`: a table, JSON lines, pictures. Pure.
#pragma once

#include <string>
#include <vector>

#include "lab/drop_compute/drop_search.h"
#include "lab/drop_compute/drop_study.h"

namespace unisono::cli {

struct DropSearchResult {
  DropSearch what;
  NamedTrace named;
  TraceStudy study;
};
DropSearchResult search_result(const DropSearch& what, NamedTrace named);

// One warning for each rule under which one rank drops far more micro-batches than the others, with advice.
std::vector<std::string> warnings_of(const DropSearchResult& result);

std::string table_of(const DropSearchResult& result);
// One line for the trace, one for each rule and the oracle, one for each warning.
std::string json_of(const DropSearchResult& result);
// Compute times, speed-up against the threshold, times of steps, speed-up against workers.
std::vector<Panel> panels_of(const DropSearchResult& result);

}  // namespace unisono::cli
