// Training over links that lose packets. Each rank owns a part of the parameters, and sends this part to the other ranks.
// Packets that are lost are not repaired. Run this with UNISONO_TRANSPORT=udp.
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
  // up to 40 % of the data that one rank sends to another may be missing
  auto options = unisono::ShardedOptions::parse("loss_budget=0.4,drift=100").value();
  auto step = unisono::ShardedStep::make(*group, initial, unisono::make_sgd({.rate = 0.05}), options);
  if (!step) return fail(step.status());
  uint64_t stale = 0, ranges = 0;
  while (step->step() < 200) {                   // a rank that was away for some steps runs fewer steps
    const auto parameters = step->parameters();  // the model uses these parameters
    for (size_t j = 0; j < gradient.size(); ++j) gradient[j] = parameters[j] + noise(chance);  // simulates a backward pass
    auto report = step->run(gradient);          // reduces, updates and broadcasts
    if (!report) return fail(report.status());  // after peer_lost: call group->reform(), then step->resume(*group)
    stale += report->stale_ranges, ranges += report->ranges;
    if (report->drift && group->rank() == 0) {
      std::printf("step %u: replicas are %.1e from the owners' values, %.1e expected\n", report->step, report->drift->owner,
                  report->drift->owner_expected);
    }
  }
  // Call resync() before the model is evaluated or saved. It makes the copies of the parameters on all ranks bitwise equal.
  if (auto equal = step->resync(); !equal.ok()) return fail(equal);
  // --8<-- [end:body]
  if (group->rank() == 0) {
    std::printf("%.0f %% of the other ranks' values were older than the step\n",
                100.0 * static_cast<double>(stale) / static_cast<double>(ranges));
  }
  return 0;
}
