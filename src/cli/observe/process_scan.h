// Finds records (docs/guides/troubleshooting.md). They are in the memory of processes that run on this host, or in files.
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
  stopped,  // stopped by a signal or a debugger
  left,     // left the group properly, or because the group was re-formed
  gone,     // ended, but did not leave the group first
  unknown,  // not known, because the process is or was on another host
};

struct ScanEntry {
  record::Snapshot record = {};
  std::string source = {};  // "pid 42", or the name of the file
  Life life = Life::unknown;
  Nanos seen = 0;  // when the record was read, in ns since 1970
  // Returns how much time passed between `monotonic`, a time of the record's clock, and the reading of the record. The result
  // is never negative.
  Nanos ago(Nanos monotonic) const { return seen > record.wall(monotonic) ? seen - record.wall(monotonic) : 0; }
};

struct ProcessScan {
  std::vector<ScanEntry> all;
  std::vector<std::string> read_errors;  // one description for each record that could not be read
};

// Reads the records of these processes. An empty list means all processes whose memory this process may read.
ProcessScan scan_processes(const std::vector<pid_t>& pids);
// Reads these files. If a path is a folder, reads all files in it whose names end with ".record".
ProcessScan scan_files(const std::vector<std::string>& paths);

// Where top, explain, trace and metrics look for records: in files and folders, or in processes. If both lists are empty, they
// look in all processes on this host.
struct RecordSources {
  std::vector<std::string> paths;
  std::vector<std::string> pids;
};
void add_record_sources(CLI::App& app, RecordSources& sources);
// Reads the records. Returns Code::invalid if the arguments are wrong; the message says why.
Result<ProcessScan> scan_records(const RecordSources& sources);

}  // namespace unisono::cli
