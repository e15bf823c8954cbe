// The record that a process of an elastic run puts into a distributed hash table: the addresses where it can be reached. Pure
// functions.
//
// Anybody can put anything there, so reading trusts no input. Sizes are bounded. An address counts only if its form is right
// and a process can listen there; wrong lines are skipped.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unisono {

constexpr size_t seed_record_bytes_max = 1024;
constexpr size_t seed_record_addresses_max = 4;  // the best ones; a process that dials tries all of them

// "unisono-elastic 1
// ", then one address per line ("tcp://10.0.0.1:4040"): the first of those given, within the limits.
std::string write_seed_record(std::span<const std::string> addresses);
// The addresses, each once, written as endpoints are; empty if the text is not a record.
std::vector<std::string> read_seed_record(std::string_view text);

}  // namespace unisono
