#include "group/lifecycle/guarded_state.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace unisono {

GuardedState::GuardedState(const ResolvedOptions& given, PeerId self, std::vector<Link> links, EventQueue& event_queue)
    : options(given), members(self, std::move(links)), engine(EngineLimits{}, compute), events(event_queue) {
  for (const auto& link : members.links()) engine.add_transport(*link.transport);
}

void GuardedState::set_local_world(uint32_t processes) {
  const auto cores = static_cast<uint32_t>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  const auto usable = known ? static_cast<uint32_t>(CPU_COUNT(&set)) : cores;
  yields = processes > cores || usable < 2;
  // Use few helper threads. Training on CPUs needs most of the cores, and a helper thread that shares a core with the training
  // does more harm than good.
  const uint32_t automatic = std::clamp(usable / std::max(1u, processes) / 4, 1u, 4u);
  compute.share_cache(processes, cores);
  compute.set_helpers((options.compute_threads != 0 ? options.compute_threads : automatic) - 1);
}

void GuardedState::apply_topology(const Topology& topology) {
  engine.set_topology(topology);
  members.set_topology_known(topology);
}

}  // namespace unisono
