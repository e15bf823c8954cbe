// The facts about one machine, for `unisono doctor`. They are read from /proc, /sys and system calls; nothing is changed.
#pragma once

#include <string>

#include "cli/doctor/doctor_facts.h"

namespace unisono::cli {

// interface: as --interface gives it; empty = all. Takes up to two seconds where the host's own name does not resolve.
// Shared memory (arena_error, memory_place) is not filled in: whoever makes the transport knows.
MachineFacts read_machine(const std::string& interface);

}  // namespace unisono::cli
