// Rank 2 does not call the operation before the deadline. The other ranks learn which rank is late, and the group continues.
#include <unisono/unisono.h>

#include <cstdio>
#include <vector>

using namespace std::chrono_literals;

int main() {
  auto group = unisono::Group::join();
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;
  const uint32_t rank = group->rank();

  // --8<-- [start:body]
  std::vector<float> values(100, 1.0f);
  char word[] = {0};
  if (rank == 2) {
    // stands for other work that keeps rank 2 busy; it ends when rank 0's call has failed
    auto held_up = group->recv(std::span<char>(word), 0);
    if (!held_up) return 1;
  } else {
    auto report = group->all_reduce(std::span<float>(values), {.timeout = 300ms, .id = 1});
    std::printf("%s\n", report ? "?" : report.status().to_string().c_str());
    if (rank == 0 && !group->send(std::span<const char>(word), 2)) return 1;
  }
  auto report = group->all_reduce(std::span<float>(values), {.id = 2});  // now the late rank takes part again
  // --8<-- [end:body]
  if (!report) return std::fprintf(stderr, "%s\n", report.status().to_string().c_str()), 1;
  std::printf("afterwards: %u contributors\n", report->contributors);
  return 0;
}
