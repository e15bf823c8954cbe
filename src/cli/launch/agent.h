// The supervisor of one host's ranks: `unisono agent`, started by the launcher, directly or through ssh.
//
// It speaks records (cli/common/records.h) on its standard input and output. It starts the ranks, each in a process group of
// its own, passes their output on, passes the launcher's signals to them, and says how each one ended. No process of the job
// stays behind if the launcher dies (its end of the stream closes) or the agent dies (the kernel sends the ranks SIGKILL). A
// process that leaves its rank's process group comes back to the agent, which is the subreaper of its descendants.
#pragma once

namespace unisono::cli {

int run_agent();

}  // namespace unisono::cli
