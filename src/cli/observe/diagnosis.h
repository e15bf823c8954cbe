// From the records of several ranks to one account: which rank waits for which, since when, and the cause. Pure.
//
// Each rank's record knows only what it waits for. Together they say which rank has not made a call, is stopped or
// gone, or makes another call than the others. Causes come first; consequences of them are left out.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/observe/process_scan.h"

namespace unisono::cli {

enum class Cause : uint8_t { gone, stopped, differs, not_called, not_seen, link_lost, failed, slow };
const char* name(Cause cause);

struct Account {
  struct Finding {
    Cause cause;
    std::vector<uint32_t> ranks;  // the cause
    std::string text;             // one or two sentences
  };
  uint64_t run = 0;
  uint32_t group = 0, epoch = 0, world = 0;
  std::vector<const ScanEntry*> ranks;  // by rank; null: no record was found
  Nanos now = 0;  // ns since 1970: when it was looked at, or, if no process is left, the last sign of life
  std::map<uint32_t, std::vector<uint32_t>> waiters;  // by rank: the ranks that have waited for it longer than patience
  std::vector<Finding> findings;                      // causes first
};

// An operation younger than this need not mean anything.
inline constexpr Nanos patience = 100 * millisecond;

// One per group, in order of run, epoch and group; the sightings must outlive them.
std::vector<Account> accounts_of(const std::vector<ScanEntry>& scan_entries);

// "group 1 of run 1f3a, epoch 1: 4 ranks"
std::string title_of(const Account& account);
// "rank 2 (host b, pid 42)"
std::string who(const Account& account, uint32_t rank);
// The rank's current activity: "computing", "all_reduce 17, contributions, round 0", "stopped in …", "gone", "left".
std::string doing(const ScanEntry& scan_entry);
// The oldest operation in flight, or nothing.
const record::RunningOperation* current(const ScanEntry& scan_entry);
// When the record last changed, by its own clock: ns since 1970.
Nanos last_sign(const ScanEntry& scan_entry);
// How long the rank has been in its current activity.
Nanos since(const Account& account, const ScanEntry& scan_entry);

}  // namespace unisono::cli
