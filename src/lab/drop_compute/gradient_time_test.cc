// Check 24 of docs/design/methods/arc_top_k.md: how long four virtual processes take to average a language model's gradients,
// whole and compressed. The engine is the production code. Links have no latency, and arithmetic takes no time.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "group/api/calls.h"
#include "sim/cluster.h"
#include "unisono/training.h"

namespace unisono::sim {
namespace {

constexpr uint32_t world_size = 4;
constexpr double link_bytes_per_us = 2500;  // payload bytes only
constexpr uint64_t slice_bytes = 1600;      // a slice takes 640 ns, a whole number
// Payload rate, plus headers. The factor 1 - 1e-9 makes a slice take a little more than 640 ns. With a little less, the
// simulator's clock would round down to 639 ns.
constexpr double wire_bytes_per_us = link_bytes_per_us * (slice_bytes + sizeof(FrameHeader)) / slice_bytes * (1 - 1e-9);

// The matrices of check 21 of docs/design/methods/arc_top_k.md. width: h. inner: f.
std::vector<Parameter> llama(uint64_t width, uint64_t inner, int layers) {
  std::vector<Parameter> model{{"embedding", {32000, width}}};
  const auto add = [&](std::vector<uint64_t> shape) { model.push_back({std::to_string(model.size()), std::move(shape)}); };
  for (int layer = 0; layer < layers; ++layer) {
    for (int i = 0; i < 4; ++i) add({width, width});
    for (int i = 0; i < 2; ++i) add({inner, width});
    add({width, inner});
    for (int i = 0; i < 2; ++i) add({width});
  }
  add({width});
  add({32000, width});
  return model;
}

// Times are proportional to the number of elements. So a job simulates 1/factor of the elements, and multiplies the time by
// `factor`.
class Job {
 public:
  explicit Job(uint64_t factor) : factor_(factor), cluster_(settings(), trace_) {
    for (PeerIndex p = 0; p < world_size; ++p) groups_.push_back(&cluster_.make_group(p, 1, {0, 1, 2, 3}, {0, 1, 2, 3}));
  }

  // Simulates an all-reduce of elements / factor elements. Returns its duration in seconds, multiplied by `factor`.
  double all_reduce(uint64_t elements) {
    const auto began = cluster_.now();
    std::vector<std::vector<float>> values(world_size, std::vector<float>(elements / factor_, 1.0f));
    std::vector<std::shared_ptr<Completion>> done(world_size);
    Nanos ended = 0;
    cluster_.on_progress([&](PeerIndex) {
      bool all = true;
      for (const auto& each : done) all = all && each != nullptr && each->done;
      if (all && ended == 0) ended = cluster_.now();
    });
    for (PeerIndex p = 0; p < world_size; ++p) {
      const Tensor tensor{std::span<float>(values[p])};
      auto request = all_reduce_call(
          {p, world_size, 1000 * second}, tensor, tensor,
          {.op = ReduceOp::avg, .order = Order::any, .schedule = ScheduleKind::ring, .slice_bytes = slice_bytes});
      done[p] = cluster_.engine(p).submit(*groups_[p], std::move(*request), 0, cluster_.now());
      cluster_.touched(p);
    }
    cluster_.run_until(began + 100 * second);
    cluster_.on_progress({});
    for (const auto& each : done) EXPECT_TRUE(each->done && each->status.ok()) << each->status.to_string();
    for (const auto& each : values) EXPECT_EQ(each.back(), 1.0f);
    return static_cast<double>(ended - began) * 1e-9 * static_cast<double>(factor_);
  }

 private:
  static ClusterSettings settings() {
    return {.processes = world_size,
            .seed = 1,
            .network = {.latency = 0, .bytes_per_us = wire_bytes_per_us},
            .compute = {},
            .limits = {},
            .topology = {shared_memory_profile(2), network_tcp_profile(2)}};
  }

  const uint64_t factor_;
  Trace trace_;
  Cluster cluster_;
  std::vector<GroupCore*> groups_;
};

// Check 24 of docs/design/methods/arc_top_k.md. The second all-reduce of ARC-Top-K depends on the first, so their times add up.
TEST(GradientTime, a_billion_parameters_take_the_documented_time) {
  const auto model = llama(2048, 5461, 24);
  const auto plan = CompressionPlan::make(model, *Compression::parse("arc:ratio=0.2,rank=4,min_elements=0,max_payload=1"));
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->elements, 1'339'082'752u);
  ASSERT_EQ(plan->payload, 270'394'096u);
  uint64_t rows = 0;
  for (const auto& parameter : plan->parameters) rows += parameter.compressed ? parameter.rows : 0;
  Job whole(256);
  const double dense = whole.all_reduce(plan->elements);
  Job small(64);
  const double sketches = small.all_reduce(rows * 4), values = small.all_reduce(plan->payload - rows * 4);
  std::printf("    whole %.5f s; sketches %.5f s and rows %.5f s: %.5f s\n", dense, sketches, values, sketches + values);
  EXPECT_NEAR(dense, 3.2138, 1e-3 * 3.2138);
  EXPECT_NEAR(sketches + values, 0.64895, 1e-3 * 0.64895);
}

}  // namespace
}  // namespace unisono::sim
