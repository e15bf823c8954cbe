// A process joins a group that is already running. Two ranks form the group. A third process, which could be on a machine that
// starts later, waits until the group admits it.
#include <unisono/unisono.h>

#include <cstdio>
#include <cstdlib>
#include <string>

int main() {
  const std::string rank = std::getenv("RANK");
  unisono::Options options;
  // --8<-- [start:body]
  if (rank == "2") {
    options.join_running = true;  // a process that joins has no rank yet; the group assigns one
  } else {
    options.rank = std::stoi(rank);
    options.world_size = 2;
  }
  auto group = unisono::Group::join(options);
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;

  while (group->world_size() < 3) {   // a real program would train here, and re-form every few minutes
    auto reformed = group->reform();  // admits processes that wait; it does no harm if there are none
    if (!reformed) return std::fprintf(stderr, "%s\n", reformed.status().to_string().c_str()), 1;
  }
  int32_t ones[] = {1};
  auto report = group->all_reduce(std::span<int32_t>(ones));
  // --8<-- [end:body]
  if (!report) return std::fprintf(stderr, "%s\n", report.status().to_string().c_str()), 1;
  std::printf("rank %u of %u: %d\n", group->rank(), group->world_size(), ones[0]);
  return 0;
}
