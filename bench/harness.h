// The measuring loop of the comparison. The programs for Unisono and for the other libraries all use it.
//
// A Subject is the collectives of one library in this process. run() checks the first and the last result of every job bit for
// bit. It measures the time of single calls. Before each call, the ranks meet at a barrier of the harness, so the barriers of
// the libraries do not affect the times. Rank 0 prints one line of JSON for each job. The ranks share a Board, which is a small
// file. If a run is killed, the Board shows how far it came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "job.h"
#include "unisono/status.h"

namespace unisono::bench {

class Subject {
 public:
  virtual ~Subject() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t world_size() const = 0;
  // Prepares the job for later calls of call(), which use the given memory. If the job's `algorithm` is empty, the library
  // chooses. Returns unsupported if the library cannot do the job. The harness then skips the job, which gets no result.
  virtual Status prepare(const Job& job, const Buffers& buffers) = 0;
  // Runs the job once. When it returns, all parts of the job are done.
  virtual Status call() = 0;
  // Runs the library's own barrier. When it returns, no bytes of earlier calls may be in flight.
  virtual Status barrier() = 0;
  // Returns how inexact the results of the prepared job may be.
  virtual Tolerance tolerance() const { return {}; }
  // This is called while this rank waits in the harness. A library that moves bytes only inside its calls must move them here.
  virtual void progress() = 0;
};

struct BenchOptions {
  std::vector<Job> jobs;
  std::string board;   // path of the file that the ranks share; it must be a new file for every run
  double seconds = 2;  // Time for each job. At least calls_min calls are timed, even if they take longer.
  // true: every call reads the same input. false: renew_input() writes the input again before each call.
  bool keeps_input = false;
  double idle_seconds = 0;        // how long the idle processes are measured after the jobs
  uint32_t calls_max = 0;         // number of calls that are timed in each job; 0: it depends on the size
  uint32_t limit_seconds = 120;   // After this time, the process kills itself.
  uint32_t reserve_calls = 4096;  // The board has space for this many samples of each rank.
};

inline constexpr uint32_t calls_min = 4;

// Reads --plan, --board, --seconds, --input new|kept, --idle, --calls, --limit. Ignores other arguments.
Result<BenchOptions> parse_options(int argc, char** argv);
// Makes sure that this process ends, even if it spins. An alarm ends it after the time limit, and a signal ends it when its
// parent dies.
void end_in_time(const BenchOptions& options);
// Returns the argument that follows `name` in argv. Returns `fallback` if there is none.
std::string argument(int argc, char** argv, const std::string& name, const std::string& fallback);

// Runs all jobs in order. Rank 0 prints lines of the form "RESULT {...}". If any rank fails, the run ends on all ranks.
Status run(Subject& subject, const BenchOptions& options);

}  // namespace unisono::bench
