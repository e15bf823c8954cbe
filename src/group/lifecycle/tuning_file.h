// Reads the file that `unisono tune` writes. A process reads it when it joins.
#pragma once

#include <string>

#include "schedules/tuning.h"

namespace unisono {

// Returns `invalid`, with the reason, if the file cannot be read or if one of its lines is wrong.
Result<Tuning> read_tuning(const std::string& path);

}  // namespace unisono
