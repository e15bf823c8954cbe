// Derives findings from the measurements. A finding has two sentences. The first says what was seen, with the numbers; the
// second says how to fix it.
//
// All functions are pure. If several pairs of ranks on the same two hosts have the same problem, they share one finding.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/doctor_facts.h"

namespace unisono::cli {

enum class Severity : uint8_t { error, warning, hint };
const char* name(Severity severity);

struct Finding {
  Severity severity = Severity::hint;
  std::string code;  // one word that programs can check, such as "one_direction"
  std::string seen;
  std::string remedy;
};

// Returns all findings, the errors first. An error means that a group would not form, or that its operations would fail. A
// warning means that a group works slowly, or only sometimes. A hint is something good to know.
std::vector<Finding> findings_of(const ClusterFacts& cluster);

// The parts of findings_of(). Each of them appends its findings.
void find_in_security(const ClusterFacts& cluster, std::vector<Finding>& findings);
void find_in_machines(const ClusterFacts& cluster, std::vector<Finding>& findings);
void find_in_rendezvous(const ClusterFacts& cluster, std::vector<Finding>& findings);
void find_in_addresses(const ClusterFacts& cluster, std::vector<Finding>& findings);
void find_in_pairs(const ClusterFacts& cluster, std::vector<Finding>& findings);

// Returns text such as "1.25 GB/s", "940 kB/s".
std::string format_rate(double bytes_per_second);
// Returns text such as "0.8 ms", "57 µs".
std::string format_us(double us);
// Returns the address without its port: "10.0.0.1", "fe80::1%eth0".
std::string host_part(const std::string& address);
// Returns the interface of this machine that has the address. The text is empty if there is none.
std::string interface_of(const MachineFacts& machine, const std::string& address);

}  // namespace unisono::cli
