// Runs one program as many ranks, here and on other hosts, until all have ended; what `unisono launch` does.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/common/placement.h"

namespace unisono::cli {

struct JobOptions {
  std::vector<Placement> placements;     // from place()
  std::vector<std::string> program;      // argv
  std::vector<std::string> environment;  // NAME=value, for all ranks; wins over what the launcher sets
  std::vector<std::string> ssh;          // words of the ssh command
  std::string job;                       // UNISONO_JOB
  std::string master_address;            // empty: chosen (127.0.0.1, or the name of rank 0's host)
  uint32_t master_port = 0;              // 0: a free port of rank 0's host, held for the job (cli/common/held_port.h)
  Nanos grace = 5 * second;              // after a failure: to end by themselves, and again between SIGTERM and SIGKILL
  Nanos start_timeout = 30 * second;     // for all hosts to answer
  bool prefix = true;
  bool keep_going = false;  // a failure does not end the others
  bool pin = false;
  std::vector<uint32_t> forgiven = {};  // ranks that may end in any way: their failures are reported, and do not count
};

// Blocks; takes over the process's signals meanwhile. The exit code for the process: see Verdict::exit_code.
int run_job(const JobOptions& options);

}  // namespace unisono::cli
