// Several operations in flight: communication of one part while the next one is computed.
#include <unisono/unisono.h>

#include <cstdio>
#include <vector>

// Stands for the backward pass of one layer.
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
  }  // gradients must stay where they are, and must not be touched, until their operation is done
  unisono::Status failure;
  for (auto& work : works) {
    auto report = work.wait();  // returns by the operation's deadline in any case; the others go on whatever became of it
    if (!report && failure.ok()) failure = report.status();
  }
  if (!failure.ok()) return std::fprintf(stderr, "%s\n", failure.to_string().c_str()), 1;
  // --8<-- [end:body]
  if (group->rank() == 0)
    std::printf("layer 0: %g, layer 1: %g, layer 2: %g\n", gradients[0][0], gradients[1][0], gradients[2][0]);
  return 0;
}
