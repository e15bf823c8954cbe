// The counters of records as OpenMetrics text: what Prometheus and its relatives read. Pure.
//
// The format: https://github.com/prometheus/OpenMetrics, version 1.0.0. Counters end in _total, times are seconds, and "# EOF"
// ends it.
#pragma once

#include <string>
#include <vector>

#include "cli/observe/process_scan.h"

namespace unisono::cli {

std::string metrics_text(const std::vector<ScanEntry>& scan_entries);

}  // namespace unisono::cli
