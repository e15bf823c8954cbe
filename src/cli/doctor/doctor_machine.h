// Reads the facts about one machine for `unisono doctor`. They come from /proc, /sys and system calls. Nothing is changed.
#pragma once

#include <string>

#include "cli/doctor/doctor_facts.h"

namespace unisono::cli {

// `interface` is the value of --interface; an empty text means all interfaces. The call takes up to two seconds if the name of
// this host does not resolve. It leaves arena_error and memory_place empty: the caller learns these values when it creates the
// transport.
MachineFacts read_machine(const std::string& interface);

}  // namespace unisono::cli
