// One frame of `unisono top`. It shows what each rank does, which rank it waits for, and how fast it is. All functions are
// pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/observe/diagnosis.h"

namespace unisono::cli {

// The counters of one rank. The next frame uses them to compute the rates of this rank.
struct Reading {
  Nanos seen = 0;
  uint64_t ended = 0, sent_bytes = 0, received_bytes = 0;
};
using Readings = std::map<std::string, Reading>;  // the key consists of run, epoch, group and rank

struct TopRow {
  uint32_t rank = 0;
  std::string host = {};
  int32_t pid = 0;
  std::string state = {};              // "computing", "all_reduce 17: waits for contributions, round 0"
  Nanos since = 0;                     // how long the rank has been in this state
  std::vector<uint32_t> pending = {};  // the ranks that this rank waits for
  bool is_late = false;                // whether other ranks have waited for this rank longer than `waiting_threshold`
  bool has_rates = false;              // whether the rank was in the previous frame, so that its rates are known
  double operations = 0, sent_bytes = 0, received_bytes = 0;  // per second
  Nanos p50 = 0, p99 = 0;                                     // how long the operations in the record took
  uint64_t ended = 0, failed = 0;
};

struct TopGroup {
  std::string title = {};
  uint32_t world = 0;
  std::vector<TopRow> rows = {};  // only ranks whose records were found
  std::vector<std::string> findings = {};
  std::vector<std::string> events = {};  // the last events of all ranks, the oldest first
};

struct TopFrame {
  std::vector<TopGroup> groups;
  std::vector<std::string> notes;  // describe records that could not be read or were not found
};

// Makes a frame. `readings` must hold the counters of the previous frame. This call replaces them by the counters of the new
// frame.
TopFrame frame_of(const ProcessScan& scan_entries, Readings& readings);
// Formats a frame as text. If `colours` is true, the text contains escape sequences for terminals. Lines have at most `width`
// columns; 0 means no limit.
std::string text_of(const TopFrame& frame, bool colours, size_t width);
std::string json_of(const TopFrame& frame, Nanos wall);

}  // namespace unisono::cli
