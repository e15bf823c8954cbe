// Several operations run at the same time: the gradients of one layer are sent while those of the next layer are computed.
#include <unisono/unisono.h>

#include <cstdio>
#include <vector>

// Simulates the backward pass of one layer.
static void compute(std::vector<float>& gradient, uint32_t rank, size_t layer) {
  for (auto& value : gradient) value = static_cast<float>(rank + layer);
}

int main() {
  // --8<-- [start:start]
  auto group = unisono::Group::join();
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;
  // --8<-- [end:start]

  // --8<-- [start:body]
  std::vector<std::vector<float>> gradients(3, std::vector<float>(100'000));  // one per layer
  std::vector<unisono::Work> works;
  for (size_t layer = gradients.size(); layer-- > 0;) {
    compute(gradients[layer], group->rank(), layer);
    works.push_back(group->all_reduce_async(std::span<float>(gradients[layer]), {.op = unisono::ReduceOp::avg}));
  }  // until its operation is done, a gradient must not be moved, read or written
  unisono::Status failure;
  for (auto& work : works) {
    // This waits until the operation's deadline at most. Later operations do not depend on how this one ends.
    auto report = work.wait();
    if (!report && failure.ok()) failure = report.status();
  }
  if (!failure.ok()) return std::fprintf(stderr, "%s\n", failure.to_string().c_str()), 1;
  // --8<-- [end:body]
  if (group->rank() == 0)
    std::printf("layer 0: %g, layer 1: %g, layer 2: %g\n", gradients[0][0], gradients[1][0], gradients[2][0]);
  return 0;
}
