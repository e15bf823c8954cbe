#include "group/lifecycle/guarded_state.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace unisono {

GuardedState::GuardedState(const ResolvedOptions& given, PeerId self, std::vector<Link> links)
    : options(given), members(self, std::move(links)), engine(EngineLimits{}, compute) {
  for (const auto& link : members.links()) engine.add_transport(*link.transport);
}

void GuardedState::set_local_world(uint32_t processes) {
  const auto cores = static_cast<uint32_t>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  const auto usable = known ? static_cast<uint32_t>(CPU_COUNT(&set)) : cores;
  yields = processes > cores || usable < 2;
  // Training on processors needs most of them for itself, and a helper thread that has to share its core is worse than none.
  const uint32_t automatic = std::clamp(usable / std::max(1u, processes) / 4, 1u, 4u);
  compute.share_cache(processes, cores);
  compute.hire((options.compute_threads != 0 ? options.compute_threads : automatic) - 1);
}

void GuardedState::know_topology(const Topology& topology) {
  engine.set_topology(topology);
  members.set_topology_known(topology);
}

}  // namespace unisono
