// Finds out for `unisono doctor` which secret key this process would use. The key itself is never among the facts.
#pragma once

#include "cli/doctor/doctor_facts.h"
#include "rendezvous/environment.h"

namespace unisono::cli {

SecurityFacts read_security(const ResolvedOptions& options);

}  // namespace unisono::cli
