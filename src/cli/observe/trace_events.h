// Records as a Chrome trace (also read by Perfetto and speedscope): one process per rank, one track for its operations. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/observe/process_scan.h"

namespace unisono::cli {

// A JSON document. Operations of one track never overlap: those that ran at once are on tracks of their own. Inside each, the
// phases of its record. Times of several hosts are put together by their wall clocks.
std::string trace_json(const std::vector<ScanEntry>& scan_entries);

}  // namespace unisono::cli
