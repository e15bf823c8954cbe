// Ends processes that outlive their parents.
#pragma once

#include "base/clock.h"

namespace unisono::cli {

// Makes orphaned descendants children of this process instead of init's.
void adopt_orphans();

// SIGKILL to every child and, as they become children, to every descendant; returns when all are gone or the time is up
// (a process that the kernel holds in a device or a dead network file system cannot be waited for). False in that case.
bool kill_child_processes(Nanos time);

}  // namespace unisono::cli
