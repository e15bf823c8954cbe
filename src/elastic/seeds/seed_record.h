// What a process of an elastic run leaves in a distributed hash table: where it can be reached. Pure functions.
//
// Anybody can put anything there, so reading takes nothing on trust: sizes are bounded, an address counts only if it is one by
// its form and something can listen there, and what is wrong is left out.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unisono {

constexpr size_t seed_record_bytes_max = 1024;
constexpr size_t seed_record_addresses_max = 4;  // the best ones: who dials tries them all

// "unisono-elastic 1\n", then an address ("tcp://10.0.0.1:4040") per line: the first ones of those given, as many as may be.
std::string write_seed_record(std::span<const std::string> addresses);
// The addresses, each once, in the form in which endpoints are written; empty if this is no record.
std::vector<std::string> read_seed_record(std::string_view text);

}  // namespace unisono
