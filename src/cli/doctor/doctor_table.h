// The output of `unisono doctor`: the machines, the pairs, the findings. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/doctor_findings.h"

namespace unisono::cli {

// verbose: every address of every host, and what came of dialling each.
std::string machine_text(const ClusterFacts& cluster, bool verbose);
std::string pair_text(const ClusterFacts& cluster, bool verbose);
std::string findings_text(const std::vector<Finding>& findings);
// Facts and findings: one JSON object and a line's end.
std::string report_json(const ClusterFacts& cluster, const std::vector<Finding>& findings);

}  // namespace unisono::cli
