// The record that a process of an elastic run stores in a distributed hash table. It lists the addresses at which other
// processes reach this process. Pure functions.
//
// Anybody can store records, so reading trusts no input, and sizes are bounded. A line is skipped unless it has the form of an
// address at which a process can listen.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unisono {

constexpr size_t seed_record_bytes_max = 1024;
// A record has at most this many addresses. The number is small, because a process that uses the record dials all of them.
constexpr size_t seed_record_addresses_max = 4;

// Returns the line "unisono-elastic 1", and then one line for each address, such as "tcp://10.0.0.1:4040". If there are more
// than seed_record_addresses_max addresses, the first ones are used.
std::string write_seed_record(std::span<const std::string> addresses);
// Returns the record's addresses, each once, in the form of endpoints. Returns nothing if the text is not a record.
std::vector<std::string> read_seed_record(std::string_view text);

}  // namespace unisono
