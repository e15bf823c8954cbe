// From what was measured to what is wrong: one sentence of what was seen, with the numbers, one of what mends it.
//
// Pure: the same facts give the same findings. Pairs of the same two hosts that suffer from the same thing are one finding.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/doctor_facts.h"

namespace unisono::cli {

enum class Severity : uint8_t { error, warning, hint };
const char* name(Severity severity);

struct Finding {
  Severity severity = Severity::hint;
  std::string code;  // one word, for programs: "one_direction"
  std::string seen;
  std::string mend;
};

// Errors first: a group would not form, or its operations would fail. Warnings: it works, slowly or by luck. Hints: good to
// know.
std::vector<Finding> findings_of(const ClusterFacts& cluster);

// The parts of it.
void find_in_machines(const ClusterFacts& cluster, std::vector<Finding>& findings);
void find_in_meeting(const ClusterFacts& cluster, std::vector<Finding>& findings);
void find_in_addresses(const ClusterFacts& cluster, std::vector<Finding>& findings);
void find_in_pairs(const ClusterFacts& cluster, std::vector<Finding>& findings);

// "1.25 GB/s", "940 kB/s".
std::string format_rate(double bytes_per_second);
// "0.8 ms", "57 µs".
std::string format_us(double us);
// Without its port: "10.0.0.1", "fe80::1%eth0".
std::string host_part(const std::string& address);
// The interface of this machine that has the address; empty if none has.
std::string interface_of(const MachineFacts& machine, const std::string& address);

}  // namespace unisono::cli
