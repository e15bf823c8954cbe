// The supervisor of one host's ranks: `unisono agent`, started by the launcher, directly or through ssh.
//
// It speaks records (cli/common/records.h) on its standard input and output. It starts the ranks, each in a process group of
// its own, passes their output on, passes the launcher's signals to them, and says how each one ended. Whatever happens to the
// launcher (its end of the stream closes) or to the agent (the kernel sends the ranks SIGKILL), no process of the job
// stays behind: what leaves its rank's process group comes back to the agent, which is the subreaper of its descendants.
#pragma once

namespace unisono::cli {

int run_agent();

}  // namespace unisono::cli
