// Training over links that lose packets: each rank owns a part of the parameters, and sends it to the others without repair.
// Run with UNISONO_TRANSPORT=udp.
#include <unisono/unisono.h>

#include <cstdio>
#include <random>
#include <vector>

namespace {

int fail(const unisono::Status& status) { return std::fprintf(stderr, "%s\n", status.to_string().c_str()), 1; }

}  // namespace

int main() {
  auto group = unisono::Group::join();
  if (!group) return fail(group.status());
  std::mt19937 chance(group->rank());
  std::normal_distribution<float> noise(0, 0.1f);
  // --8<-- [start:body]
  std::vector<float> initial(100'000), gradient(initial.size());
  auto options = unisono::ShardedOptions::parse("loss_budget=0.4,drift=100").value();  // up to 40 % of a stream may be missing
  auto step = unisono::ShardedStep::make(*group, initial, unisono::make_sgd({.rate = 0.05}), options);
  if (!step) return fail(step.status());
  uint64_t stale = 0, ranges = 0;
  while (step->step() < 200) {                   // a rank that was away for some makes fewer
    const auto parameters = step->parameters();  // the model computes with these
    for (size_t j = 0; j < gradient.size(); ++j) gradient[j] = parameters[j] + noise(chance);  // stands for a backward pass
    auto report = step->run(gradient);                                                         // reduced, updated and broadcast
    if (!report) return fail(report.status());  // peer_lost: group->reform(), then step->resume(*group)
    stale += report->stale_ranges, ranges += report->ranges;
    if (report->drift && group->rank() == 0) {
      std::printf("step %u: replicas are %.1e from the owners' values, %.1e expected\n", report->step, report->drift->owner,
                  report->drift->owner_expected);
    }
  }
  if (auto equal = step->resync(); !equal.ok())
    return fail(equal);  // all replicas the same to the bit, to be evaluated or saved
  // --8<-- [end:body]
  if (group->rank() == 0) {
    std::printf("%.0f %% of the other ranks' values were older than the step\n",
                100.0 * static_cast<double>(stale) / static_cast<double>(ranges));
  }
  return 0;
}
