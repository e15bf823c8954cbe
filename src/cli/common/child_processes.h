// Kills descendants of this process, including those whose parents have ended.
#pragma once

#include "base/clock.h"

namespace unisono::cli {

// From now on, if the parent of one of this process's descendants ends, this process becomes its parent. Otherwise init would
// become its parent.
void adopt_orphans();

// Sends SIGKILL to every child, and to every other descendant as soon as it becomes a child. Returns true when all of them are
// gone. Returns false after `time`, because a process may hang in a device or in a dead network file system.
bool kill_child_processes(Nanos time);

}  // namespace unisono::cli
