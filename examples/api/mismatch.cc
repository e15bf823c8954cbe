// The calls of the ranks differ. Each rank gets an error that describes both calls. So no rank waits for ever, and the group
// continues.
#include <unisono/unisono.h>

#include <cstdio>
#include <vector>

int main() {
  auto group = unisono::Group::join();
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;

  // --8<-- [start:body]
  std::vector<float> values(group->rank() == 0 ? 1000 : 999);  // the mistake
  auto wrong = group->all_reduce(std::span<float>(values));
  std::printf("%s\n", wrong ? "?" : wrong.status().to_string().c_str());

  values.resize(1000);
  auto right = group->all_reduce(std::span<float>(values));
  // --8<-- [end:body]
  if (!right) return std::fprintf(stderr, "%s\n", right.status().to_string().c_str()), 1;
  std::printf("afterwards: %u contributors\n", right->contributors);
  return 0;
}
