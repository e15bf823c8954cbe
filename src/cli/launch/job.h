// Does the work of `unisono launch`: runs one program as many ranks, on this host and on other hosts, until all ranks have
// ended.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/common/placement.h"
#include "tls/secret_key.h"

namespace unisono::cli {

struct JobOptions {
  std::vector<Placement> placements;     // the hosts and their ranks, from place_ranks()
  std::vector<std::string> program;      // argv
  std::vector<std::string> environment;  // NAME=value for all ranks; these replace what the launcher itself sets
  std::vector<std::string> ssh;          // the words of the ssh command
  std::string job;                       // the name of the job; the ranks get it as UNISONO_JOB
  std::optional<SecretKey> key = {};     // the ranks get it in a descriptor, as UNISONO_KEY_FD says
  // If this is empty, the address is 127.0.0.1, or the name of rank 0's host if there are several hosts.
  std::string master_address;
  // If this is 0, the port is a free one on rank 0's host, which is reserved for the job (cli/common/held_port.h).
  uint32_t master_port = 0;
  // After a failure, ranks get this much time to end by themselves, and again this much between SIGTERM and SIGKILL.
  Nanos grace = 5 * second;
  Nanos start_timeout = 30 * second;  // all hosts must answer within this time
  bool prefix = true;
  bool keep_going = false;  // true: if a rank fails, the others continue
  bool pin = false;
  std::vector<uint32_t> may_fail = {};  // if one of these ranks fails, this is reported, but the job does not count as failed
};

// Runs the job, and blocks until it has ended. Meanwhile, it handles the signals that this process gets. Returns the exit code
// that JobOutcome::exit_code describes.
int run_job(const JobOptions& options);

}  // namespace unisono::cli
