// A training loop in which slow ranks skip their last micro-batches. A micro-batch takes a random time, and a few of them take
// long.
#include <unisono/unisono.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

namespace {

// Simulates a forward and a backward pass. It takes 0.2 ms, but one call in thirty takes 2 ms.
void backward(uint64_t position, float weight, std::vector<float>& gradients, std::mt19937& chance) {
  std::this_thread::sleep_for(std::chrono::microseconds(chance() % 30 == 0 ? 2000 : 200));
  for (float& gradient : gradients) gradient += weight / static_cast<float>(1 + position % 7);
}

int fail(const unisono::Status& status) { return std::fprintf(stderr, "%s\n", status.to_string().c_str()), 1; }

}  // namespace

int main() {
  auto group = unisono::Group::join();
  if (!group) return fail(group.status());
  std::mt19937 chance(group->rank());
  // --8<-- [start:body]
  std::vector<float> parameters(1000), gradients(1000);
  auto drop = unisono::DropCompute::make(*group, 12, unisono::DropOptions::parse("auto:max_drop=0.3").value());
  if (!drop) return fail(drop.status());
  for (int step = 0; step < 260; ++step) {
    // from here on, the compute time of the step is measured
    if (auto begun = drop->begin_step(); !begun.ok()) return fail(begun);
    gradients.assign(gradients.size(), 0.0f);
    // runs twelve times, or until this rank is late
    while (drop->next()) backward(drop->position(), 1.0f / 12, gradients, chance);
    auto averaged = group->all_reduce(std::span(gradients), {.op = unisono::ReduceOp::avg});
    if (!averaged) return fail(averaged.status());
    auto done = drop->end_step();
    if (!done) return fail(done.status());
    for (size_t i = 0; i < parameters.size() && done->applied; ++i) parameters[i] -= 0.1f * done->scale * gradients[i];
  }
  auto all = drop->finish();  // the report is equal on all ranks
  if (!all) return fail(all.status());
  if (group->rank() == 0)
    std::printf("left out %.1f %% of the micro-batches; a step took %.1f ms, with a deviation of %.1f ms\n", 100 * all->drop,
                1e3 * all->step_mean, 1e3 * all->step_deviation);
  // --8<-- [end:body]
  return 0;
}
