// Formats the counters in records as OpenMetrics text, which Prometheus reads. The functions are pure.
//
// The format is version 1.0.0 of https://github.com/prometheus/OpenMetrics. The names of counters end in _total, times are in
// seconds, and the text ends with "# EOF".
#pragma once

#include <string>
#include <vector>

#include "cli/observe/process_scan.h"

namespace unisono::cli {

std::string metrics_text(const std::vector<ScanEntry>& scan_entries);

}  // namespace unisono::cli
