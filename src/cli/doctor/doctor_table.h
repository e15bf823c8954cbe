// Formats the output of `unisono doctor`: tables of machines and pairs, and the findings. All functions are pure.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/doctor_findings.h"

namespace unisono::cli {

// If `verbose` is true, the texts list every address of every host, and what happened when it was dialled.
std::string machine_text(const ClusterFacts& cluster, bool verbose);
std::string pair_text(const ClusterFacts& cluster, bool verbose);
std::string findings_text(const std::vector<Finding>& findings);
// Returns the facts and the findings as one JSON object, in a single line.
std::string report_json(const ClusterFacts& cluster, const std::vector<Finding>& findings);

}  // namespace unisono::cli
