// The measuring loop that every program of the comparison shares, ours and the peers' alike.
//
// A Subject is one library's collectives in this process. run() verifies its first and last result of every job, bit for
// bit, times single calls behind a barrier of the harness's own (the same for all libraries, so that none is helped or
// hurt by its own), and lets rank 0 print one JSON line per job. The ranks meet on a Board: a small shared file, which
// also tells how far a run came that had to be ended.
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
  // Binds what the next call()s do, and the memory that they work on; an empty algorithm is the library's own choice. A job
  // that the library does not have is unsupported: no result, and the next job is taken.
  virtual Status prepare(const Job& job, const Buffers& buffers) = 0;
  // The job once: all its parts are done when it returns.
  virtual Status call() = 0;
  // The library's own barrier: afterwards nothing of earlier calls is left to be moved.
  virtual Status barrier() = 0;
  // The tolerance of the prepared job.
  virtual Tolerance tolerance() const { return {}; }
  // Called while this rank waits in the harness: libraries that move bytes only inside calls move them here.
  virtual void progress() = 0;
};

struct BenchOptions {
  std::vector<Job> jobs;
  std::string board;         // path of the shared file, new for every run
  double seconds = 2;        // per job; at least calls_min calls are timed whatever they take
  bool keeps_input = false;  // the same input lies there for every call; else it is written anew before each: see renew_input()
  double idle_seconds = 0;   // after the jobs: what doing nothing costs for so long
  uint32_t calls_max = 0;    // per job; 0 = by size
  uint32_t limit_seconds = 120;   // the process ends itself after that
  uint32_t reserve_calls = 4096;  // samples per rank that the board can hold
};

inline constexpr uint32_t calls_min = 4;

// Reads --plan, --board, --seconds, --input new|kept, --idle, --calls, --limit; leaves the rest of argv alone.
Result<BenchOptions> parse_options(int argc, char** argv);
// The process will end: by alarm after the limit, and by signal if the parent dies. No run is left behind spinning.
void end_in_time(const BenchOptions& options);
// The value after `name` in argv, or fallback.
std::string argument(int argc, char** argv, const std::string& name, const std::string& fallback);

// All jobs, in order. Prints "RESULT {...}" lines on rank 0. The first failure on any rank ends the run on all.
Status run(Subject& subject, const BenchOptions& options);

}  // namespace unisono::bench
