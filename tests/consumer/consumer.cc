// Uses an installed Unisono from C++. Computes one sum over all ranks and checks it. The environment says which ranks there
// are.

#include <cstdio>
#include <vector>

#include <unisono/unisono.h>

int main() {
  auto group = unisono::Group::join();
  if (!group) {
    std::fprintf(stderr, "join: %s\n", group.status().to_string().c_str());
    return 1;
  }
  const auto world_size = group->world_size();
  std::vector<float> values(1001, static_cast<float>(group->rank() + 1));
  const auto report = group->all_reduce(std::span<float>(values));
  if (!report) {
    std::fprintf(stderr, "all_reduce: %s\n", report.status().to_string().c_str());
    return 1;
  }
  const auto expected = static_cast<float>(world_size * (world_size + 1) / 2);
  for (const float value : values) {
    if (value == expected) continue;
    std::fprintf(stderr, "%g instead of %g\n", value, expected);
    return 1;
  }
  std::printf("rank %u of %u: %g from %u contributors\n", group->rank(), world_size, expected, report->contributors);
  return report->contributors == world_size ? 0 : 1;
}
