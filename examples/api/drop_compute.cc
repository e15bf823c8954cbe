// A training loop whose ranks leave out micro-batches when they are late. Each micro-batch takes a while by chance, a few take
// long.
#include <unisono/unisono.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

namespace {

// Stands for a forward and a backward pass: 0.2 ms, and one in thirty takes ten times as long.
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
    if (auto begun = drop->begin_step(); !begun.ok()) return fail(begun);  // the step's time begins
    gradients.assign(gradients.size(), 0.0f);
    while (drop->next()) backward(drop->position(), 1.0f / 12, gradients, chance);  // twelve times, or until it is late
    auto averaged = group->all_reduce(std::span(gradients), {.op = unisono::ReduceOp::avg});
    if (!averaged) return fail(averaged.status());
    auto done = drop->end_step();
    if (!done) return fail(done.status());
    for (size_t i = 0; i < parameters.size() && done->applied; ++i) parameters[i] -= 0.1f * done->scale * gradients[i];
  }
  auto all = drop->finish();  // the same on all ranks
  if (!all) return fail(all.status());
  if (group->rank() == 0)
    std::printf("left out %.1f %% of the micro-batches; a step took %.1f ms, with a deviation of %.1f ms\n", 100 * all->drop,
                1e3 * all->step_mean, 1e3 * all->step_deviation);
  // --8<-- [end:body]
  return 0;
}
