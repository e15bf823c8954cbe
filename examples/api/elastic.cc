// A process joins a running group. Two ranks begin; the third process waits to be taken in, as a machine that comes later
// would.
#include <unisono/unisono.h>

#include <cstdio>
#include <cstdlib>
#include <string>

int main() {
  const std::string place = std::getenv("RANK");
  unisono::Options options;
  // --8<-- [start:body]
  if (place == "2") {
    options.join_running = true;  // needs no rank: it gets one
  } else {
    options.rank = std::stoi(place);
    options.world_size = 2;
  }
  auto group = unisono::Group::join(options);
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;

  while (group->world_size() < 3) {   // a real program trains here, and re-forms every few minutes
    auto reformed = group->reform();  // also admits waiting processes; harmless if there are none
    if (!reformed) return std::fprintf(stderr, "%s\n", reformed.status().to_string().c_str()), 1;
  }
  int32_t ones[] = {1};
  auto report = group->all_reduce(std::span<int32_t>(ones));
  // --8<-- [end:body]
  if (!report) return std::fprintf(stderr, "%s\n", report.status().to_string().c_str()), 1;
  std::printf("rank %u of %u: %d\n", group->rank(), group->world_size(), ones[0]);
  return 0;
}
