// One frame of `unisono top`: what each rank does, which rank it waits for, and how fast it goes. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/observe/diagnosis.h"

namespace unisono::cli {

// The numbers of a rank that are kept to compute its speed in the next frame.
struct Reading {
  Nanos seen = 0;
  uint64_t ended = 0, sent_bytes = 0, received_bytes = 0;
};
using Readings = std::map<std::string, Reading>;  // by run, epoch, group and rank

struct TopRow {
  uint32_t rank = 0;
  std::string host = {};
  int32_t pid = 0;
  std::string state = {};                                     // "computing", "all_reduce 17: waits for contributions, round 0"
  Nanos since = 0;                                            // for how long
  std::vector<uint32_t> pending = {};                         // ranks it waits for
  bool is_late = false;                                       // others have waited for it for longer than patience
  bool has_rates = false;                                     // it was seen before
  double operations = 0, sent_bytes = 0, received_bytes = 0;  // per second
  Nanos p50 = 0, p99 = 0;                                     // of the operations in the record
  uint64_t ended = 0, failed = 0;
};

struct TopGroup {
  std::string title = {};
  uint32_t world = 0;
  std::vector<TopRow> rows = {};  // of the ranks that were found
  std::vector<std::string> findings = {};
};

struct TopFrame {
  std::vector<TopGroup> groups;
  std::vector<std::string> notes;  // what could not be read, or is not where it was asked to be
};

// `readings` is what was seen before, and then what is seen now.
TopFrame frame_of(const ProcessScan& scan_entries, Readings& readings);
// With colours for a terminal; width 0: no limit.
std::string text_of(const TopFrame& frame, bool colours, size_t width);
std::string json_of(const TopFrame& frame, Nanos wall);

}  // namespace unisono::cli
