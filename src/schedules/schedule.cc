#include "schedules/schedule.h"

namespace unisono {

const char* name(Collective collective) {
  switch (collective) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_gather: return "all_gather";
    case Collective::broadcast: return "broadcast";
    case Collective::reduce: return "reduce";
    case Collective::gather: return "gather";
    case Collective::scatter: return "scatter";
    case Collective::all_to_all: return "all_to_all";
    case Collective::barrier: return "barrier";
    case Collective::send: return "send";
    case Collective::recv: return "recv";
  }
  return "unknown";
}

const char* name(ScheduleKind kind) {
  const auto number = static_cast<size_t>(kind);
  return is_schedule(number) ? schedule_names[number] : "unknown";
}

}  // namespace unisono
