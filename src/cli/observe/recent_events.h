// The events in the records of a group's ranks (include/unisono/event.h), as `unisono top` and `unisono explain` show them.
#pragma once

#include <string>
#include <vector>

#include "cli/observe/diagnosis.h"

namespace unisono::cli {

struct RecentEvent {
  Nanos at = 0;           // ns since 1970, by the clock of the rank that reports it
  uint32_t reporter = 0;  // the rank that reports it
  record::KeptEvent event = {};
};

// Returns the events of all ranks, the oldest first.
std::vector<RecentEvent> recent_events(const GroupDiagnosis& diagnosis);
// Returns text such as "14:03:09 rank 1 (host b, pid 42): warning: TEXT".
std::string text_of(const GroupDiagnosis& diagnosis, const RecentEvent& event);

}  // namespace unisono::cli
