// Records (docs/guides/troubleshooting.md) as they are found: in the memory of processes that run on this host, and in files.
#pragma once

#include <sys/types.h>

#include <CLI/App.hpp>

#include <string>
#include <vector>

#include "base/clock.h"
#include "record/snapshot.h"

namespace unisono::cli {

// The state of the process that wrote a record.
enum class Life : uint8_t {
  runs,
  stopped,  // by a signal or a debugger
  left,     // it left the group in order, or because the group was re-formed
  gone,     // it does not exist any more, and never left the group
  unknown,  // of another host
};

struct ScanEntry {
  record::Snapshot record = {};
  std::string source = {};  // "pid 42", or the file's name
  Life life = Life::unknown;
  Nanos seen = 0;  // when, as ns since 1970
  // Time from `monotonic`, on the record's clock, until the record was seen; never negative.
  Nanos ago(Nanos monotonic) const { return seen > record.wall(monotonic) ? seen - record.wall(monotonic) : 0; }
};

struct ProcessScan {
  std::vector<ScanEntry> all;
  std::vector<std::string> troubles;  // what looked like a record and could not be read, and why
};

// Records of these processes; none given: of all processes whose memory this one may read.
ProcessScan look_at_processes(const std::vector<pid_t>& pids);
// Files, and folders with files whose names end with ".record".
ProcessScan look_at_files(const std::vector<std::string>& paths);

// The records that a command of this family reads: files and folders, or some processes, or all of this host.
struct Places {
  std::vector<std::string> paths;
  std::vector<std::string> pids;
};
void add_places(CLI::App& app, Places& places);
// invalid: what is wrong with them.
Result<ProcessScan> look_at(const Places& places);

}  // namespace unisono::cli
