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
  switch (kind) {
    case ScheduleKind::automatic: return "automatic";
    case ScheduleKind::ring: return "ring";
    case ScheduleKind::two_step: return "two_step";
    case ScheduleKind::halving_doubling: return "halving_doubling";
    case ScheduleKind::hierarchical: return "hierarchical";
    case ScheduleKind::one_shot: return "one_shot";
    case ScheduleKind::direct: return "direct";
    case ScheduleKind::tree: return "tree";
  }
  return "unknown";
}

}  // namespace unisono
