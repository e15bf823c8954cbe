// A training loop with compressed gradients. Each step sends a tenth of the rows, and keeps the other rows for later steps. One
// rank dies during the training.
#include <unisono/unisono.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <vector>

namespace {

// Simulates the gradient of this rank, which pulls weight i towards f * sin(i). The factor f is 1.2 on rank 0 and 0.9 on the
// other ranks.
void backward(const std::vector<float>& weights, std::vector<float>& gradient, uint32_t rank) {
  for (size_t i = 0; i < weights.size(); ++i)
    gradient[i] = weights[i] - std::sin(static_cast<float>(i)) * (rank == 0 ? 1.2f : 0.9f);
}

void step(std::vector<float>& weights, const std::vector<float>& gradient) {
  for (size_t i = 0; i < weights.size(); ++i) weights[i] -= 0.1f * gradient[i];
}

int fail(const unisono::Status& status) { return std::fprintf(stderr, "%s\n", status.to_string().c_str()), 1; }

}  // namespace

int main() {
  auto group = unisono::Group::join();
  if (!group) return fail(group.status());
  // --8<-- [start:body]
  const std::vector<unisono::Parameter> parameters{{"layer.weight", {512, 100}}, {"layer.bias", {512}}};
  const auto compression = unisono::Compression::parse("arc:ratio=0.1,rank=4,start=0,auto_off=off").value();
  if (group->rank() == 0) std::printf("%s\n", unisono::CompressionPlan::make(parameters, compression)->to_string().c_str());
  auto reducer = unisono::GradientReducer::make(*group, parameters, compression);
  if (!reducer) return fail(reducer.status());

  std::vector<float> weight(51'200), bias(512), weight_gradient(weight.size()), bias_gradient(bias.size());
  while (reducer->step() < 100) {
    if (reducer->step() == 50 && group->rank() == 2) std::raise(SIGKILL);  // simulates that a machine is lost
    backward(bias, bias_gradient, group->rank());
    // this gradient is sent while the next one is computed
    auto given = reducer->reduce(std::vector<unisono::Gradient>{{"layer.bias", bias_gradient.data()}});
    if (!given.ok()) return fail(given);
    backward(weight, weight_gradient, group->rank());
    given = reducer->reduce(std::vector<unisono::Gradient>{{"layer.weight", weight_gradient.data()}});
    if (!given.ok()) return fail(given);
    auto report = reducer->finish();
    if (report && report->applied) {
      step(weight, weight_gradient), step(bias, bias_gradient);
      if (group->rank() == 0 && report->step % 33 == 0) {
        std::printf("step %2d: %.3f of all values sent, %.2f of what was to be sent in them; left over on a rank %.1f\n",
                    static_cast<int>(report->step), report->payload_ratio(), report->captured, report->residual_norm_mean);
      }
    } else if (!report) {
      // The error is peer_lost or late. Training continues without the lost rank. The residuals, which were not sent yet, are
      // kept.
      if (auto reformed = group->reform(); !reformed) return fail(reformed.status());
      auto resumed = reducer->resume(*group);
      if (!resumed) return fail(resumed.status());
      if (group->rank() == 0)
        std::printf("lost rank %u; going on with step %d and the parameters of rank %u\n", resumed->lost.at(0).member.rank,
                    static_cast<int>(resumed->step), resumed->parameters_from);
      for (auto* each : {&weight, &bias}) {
        if (auto sent = group->broadcast(std::span<float>(*each), resumed->parameters_from); !sent) return fail(sent.status());
      }
    }
  }
  // --8<-- [end:body]
  const float last = weight[51'199];
  if (group->rank() == 0)
    std::printf("last weight %.2f; without compression it would be close to %.2f\n", last, 1.05f * std::sin(51'199.0f));
  return 0;
}
