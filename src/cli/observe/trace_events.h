// Formats records as a Chrome trace. Perfetto and speedscope can read this format, too. In the trace, a rank is a process, and
// its operations are on a track. The functions are pure.
#pragma once

#include <string>
#include <vector>

#include "cli/observe/process_scan.h"

namespace unisono::cli {

// Returns a JSON document. Operations that ran at the same time are on different tracks. The phases of an operation are drawn
// inside it. If the wall clocks of two hosts differ, this is not corrected.
std::string trace_json(const std::vector<ScanEntry>& scan_entries);

}  // namespace unisono::cli
