// Floating-point addition is not associative, so the order in which a sum is computed decides its last bits.
#include <unisono/unisono.h>

#include <cstdio>
#include <cstring>
#include <vector>

static bool failed = false;

static std::vector<float> sum(unisono::Group& group, const std::vector<float>& values, const unisono::CallOptions& options) {
  std::vector<float> result(values.size());
  auto report = group.all_reduce(std::span<const float>(values), std::span<float>(result), options);
  if (!report) std::fprintf(stderr, "%s\n", report.status().to_string().c_str()), failed = true;
  return result;
}

static const char* compare(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0 ? "the same bits" : "other bits";
}

int main() {
  auto group = unisono::Group::join();
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;
  std::vector<float> values(100'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / static_cast<float>(1 + i * (group->rank() + 1) % 1013);

  // --8<-- [start:body]
  using unisono::Order, unisono::ScheduleKind;
  const auto strict = sum(*group, values, {.order = Order::in_rank_order, .schedule = ScheduleKind::two_step});
  const auto other_schedule = sum(*group, values, {.order = Order::in_rank_order, .schedule = ScheduleKind::one_shot});
  const auto small_slices = sum(*group, values, {.order = Order::in_rank_order, .slice_bytes = 4096});
  const auto ring = sum(*group, values, {.order = Order::any, .schedule = ScheduleKind::ring});
  // --8<-- [end:body]
  if (failed) return 1;
  if (group->rank() == 0) {
    std::printf("in rank order, two_step and one_shot: %s\n", compare(strict, other_schedule));
    std::printf("in rank order, slices of 4 KiB:       %s\n", compare(strict, small_slices));
    std::printf("any order, ring:                      %s\n", compare(strict, ring));
  }
  auto refused = group->all_reduce(std::span<float>(values), {.order = Order::in_rank_order, .schedule = ScheduleKind::ring});
  if (group->rank() == 0) std::printf("in rank order, ring: %s\n", refused.status().to_string().c_str());
  return refused ? 1 : 0;
}
