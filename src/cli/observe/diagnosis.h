// Combines the records of several ranks into one diagnosis: which rank waits for which other rank, since when, and why. All
// functions are pure.
//
// The record of one rank shows only what this rank waits for. The records of all ranks together show the rank that is the
// cause: it has not made a call, it has made another call than the other ranks, it is stopped, or it is gone. Findings name the
// causes, and leave out what follows from them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/observe/process_scan.h"

namespace unisono::cli {

enum class Cause : uint8_t { gone, stopped, differs, not_called, not_seen, link_lost, failed, slow };
const char* name(Cause cause);

struct GroupDiagnosis {
  struct Finding {
    Cause cause;
    std::vector<uint32_t> ranks;  // the ranks that are the cause
    std::string text;             // one or two sentences
  };
  uint64_t run = 0;
  uint32_t group = 0, epoch = 0, world = 0;
  std::vector<const ScanEntry*> ranks;  // ranks[rank] is the record of this rank; null: no record was found
  // The time of the scan, in ns since 1970. If no process is left, it is the time of the last change in any record.
  Nanos now = 0;
  // waiters[rank]: the ranks that have waited for this rank longer than `waiting_threshold`
  std::map<uint32_t, std::vector<uint32_t>> waiters;
  std::vector<Finding> findings;  // the causes come first
};

// An operation that has been running for longer than this is suspicious.
inline constexpr Nanos waiting_threshold = 100 * millisecond;

// Returns one diagnosis for each group. They are sorted by run, epoch and group. `scan_entries` must outlive the diagnoses.
std::vector<GroupDiagnosis> diagnose(const std::vector<ScanEntry>& scan_entries);

// Returns text such as "group 1 of run 1f3a, epoch 1: 4 ranks".
std::string title_of(const GroupDiagnosis& diagnosis);
// Returns text such as "rank 2 (host b, pid 42)".
std::string rank_name(const GroupDiagnosis& diagnosis, uint32_t rank);
// Says what the rank does now: "computing", "all_reduce 17, contributions, round 0", "stopped in …", "gone", "left".
std::string activity_of(const ScanEntry& scan_entry);
// Returns the oldest operation that is still running, or null if there is none.
const record::RunningOperation* current(const ScanEntry& scan_entry);
// Returns when the record changed last, by the clock of the process that wrote it, in ns since 1970.
Nanos last_change(const ScanEntry& scan_entry);
// Returns how long the rank has been doing what it does now.
Nanos since(const GroupDiagnosis& diagnosis, const ScanEntry& scan_entry);

}  // namespace unisono::cli
