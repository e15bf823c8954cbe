// The log of this process. All groups and runs of the process share it, so that "one line per kind and minute" holds for the
// whole process. It is therefore the one object of the library that is not owned by a group or a run.
#pragma once

#include "events/event_log.h"

namespace unisono {

// Returns the log for this target. The first call with a target opens its file. If the file cannot be opened, the log writes to
// standard error instead, and `problem` says why; it is ok otherwise. `clock` is used by the first call with a target.
EventLog& process_log(const LogTarget& target, EventLog::Clock clock, Status& problem);

}  // namespace unisono
