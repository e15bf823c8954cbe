// Unisono's all-reduce under the measuring loop that the peers run under too. One process per rank:
//
//   RANK=0 WORLD_SIZE=2 UNISONO_TRANSPORT=shm UNISONO_RENDEZVOUS=file:///path all_reduce_bench --board FILE
//     [--plan BYTES[=ALGORITHM],…] [--seconds S] [--calls N]
// ALGORITHM: a schedule ("ring", "two_step", …), an order ("in_rank_order", "any"), or both: "ring+any".
// bench/versus starts it beside the peers.

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "harness.h"
#include "unisono/unisono.h"

namespace {

using unisono::CallOptions;
using unisono::Code;
using unisono::Order;
using unisono::Result;
using unisono::ScheduleKind;
using unisono::Status;

constexpr std::pair<const char*, ScheduleKind> schedules[] = {
    {"ring", ScheduleKind::ring},
    {"two_step", ScheduleKind::two_step},
    {"halving_doubling", ScheduleKind::halving_doubling},
    {"hierarchical", ScheduleKind::hierarchical},
    {"one_shot", ScheduleKind::one_shot},
    {"direct", ScheduleKind::direct},
    {"tree", ScheduleKind::tree},
};

Result<CallOptions> parse_algorithm(const std::string& text) {
  CallOptions options;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('+', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (word == "in_rank_order" || word == "any") {
      options.order = word == "any" ? Order::any : Order::in_rank_order;
      continue;
    }
    bool known = false;
    for (const auto& [name, kind] : schedules) {
      if (word != name) continue;
      options.schedule = kind;
      known = true;
    }
    if (!known) return Status(Code::invalid, "no schedule or order is called \"" + word + "\"");
  }
  return options;
}

class UnisonoSubject final : public unisono::bench::Subject {
 public:
  explicit UnisonoSubject(unisono::Group group) : group_(std::move(group)) {}

  uint32_t rank() const override { return group_.rank(); }
  uint32_t world_size() const override { return group_.world_size(); }
  Status prepare(const std::string& algorithm, float* data, size_t count) override {
    auto parsed = parse_algorithm(algorithm);
    if (!parsed) return parsed.status();
    options_ = *parsed;
    tensor_ = unisono::Tensor(data, count, unisono::DType::f32);
    return {};
  }
  Status all_reduce() override { return group_.all_reduce(tensor_, options_).status(); }
  Status barrier() override { return group_.barrier().status(); }
  void progress() override {}  // outstanding work is driven by the library's own thread

 private:
  unisono::Group group_;
  CallOptions options_;
  unisono::Tensor tensor_;
};

}  // namespace

int main(int argc, char** argv) {
  auto options = unisono::bench::parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr, "%s\n", options.status().to_string().c_str());
    return 2;
  }
  unisono::bench::end_in_time(*options);
  auto group = unisono::Group::join();
  if (!group) {
    std::fprintf(stderr, "%s\n", group.status().to_string().c_str());
    return 1;
  }
  UnisonoSubject subject(*group);
  const auto status = unisono::bench::run(subject, *options);
  if (!status.ok()) std::fprintf(stderr, "rank %u: %s\n", subject.rank(), status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
