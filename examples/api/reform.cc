// A rank dies. The ranks that are alive re-form the group in the same processes, and repeat the step with the new number of
// ranks.
#include <unisono/unisono.h>

#include <csignal>
#include <cstdio>
#include <vector>

int main() {
  auto group = unisono::Group::join();
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;

  // --8<-- [start:body]
  for (int32_t step = 0; step < 3;) {
    if (step == 1 && group->rank() == 1 && group->world_size() == 3) std::raise(SIGKILL);  // simulates that a machine is lost
    std::vector<float> gradient(1000, 1.0f);
    auto report = group->all_reduce(std::span<float>(gradient));
    if (report) {
      std::printf("step %d: sum of %g over %u ranks\n", step++, gradient[0], group->world_size());
      continue;
    }
    std::printf("step %d: %s\n", step, report.status().to_string().c_str());
    auto reformed = group->reform();  // every living rank calls this after the error peer_lost or late
    if (!reformed) return std::fprintf(stderr, "%s\n", reformed.status().to_string().c_str()), 1;
    std::printf("now rank %u of %u, lost rank %u\n", reformed->rank, reformed->world_size, reformed->lost.at(0).rank);
    // The operation may have succeeded on one rank and failed on another. So the ranks must agree on the step that comes next.
    auto agreed = group->all_reduce(std::span<int32_t>(&step, 1), {.op = unisono::ReduceOp::min});
    if (!agreed) return std::fprintf(stderr, "%s\n", agreed.status().to_string().c_str()), 1;
  }
  // --8<-- [end:body]
  return 0;
}
