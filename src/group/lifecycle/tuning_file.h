// The file that `unisono tune` writes, as a process that joins reads it.
#pragma once

#include <string>

#include "schedules/tuning.h"

namespace unisono {

// invalid: it cannot be read, and why, or which of its lines is wrong.
Result<Tuning> read_tuning(const std::string& path);

}  // namespace unisono
