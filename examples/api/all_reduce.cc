// This is the smallest program: every rank contributes values, and every rank gets the sum.
#include <unisono/unisono.h>

#include <cstdio>
#include <vector>

int main() {
  auto group = unisono::Group::join();  // reads RANK, WORLD_SIZE, … from the environment
  if (!group) {
    std::fprintf(stderr, "%s\n", group.status().to_string().c_str());
    return 1;
  }
  std::vector<float> values(1000, static_cast<float>(group->rank() + 1));
  auto report = group->all_reduce(std::span<float>(values));  // values becomes the sum
  if (!report) {
    std::fprintf(stderr, "%s\n", report.status().to_string().c_str());
    return 1;
  }
  std::printf("rank %u of %u: %zu times %g\n", group->rank(), group->world_size(), values.size(), values[0]);
  return 0;
}
