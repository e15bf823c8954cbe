// `unisono agent` supervises the ranks of one host. The launcher starts it, either directly or through ssh.
//
// The agent and the launcher exchange records (cli/common/records.h) over the agent's standard input and output. The agent
// starts each rank in its own process group, forwards the output of the ranks and the signals of the launcher, and reports how
// each rank ended.
//
// No process of the job remains when the job is over. If the launcher dies, the stream of records is closed, and the agent
// kills the ranks. If the agent dies, the kernel sends SIGKILL to the ranks. A process may have left the process group of its
// rank. When the parent of this process ends, the agent becomes its parent, and kills it.
#pragma once

namespace unisono::cli {

int run_agent();

}  // namespace unisono::cli
