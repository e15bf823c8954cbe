// Prints what an operation has cost, and for which rank it waited.
#include <unisono/unisono.h>

#include <cstdio>
#include <vector>

int main() {
  auto group = unisono::Group::join();
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;
  // --8<-- [start:body]
  if (group->rank() == 0) {  // This is printed before the sum. After the sum, other ranks may leave, and then their links end.
    for (const auto& member : group->members()) std::printf("rank %u: %s\n", member.rank, member.link.c_str());
  }
  std::vector<unisono::bfloat16> values(4 << 20);
  auto report = group->all_reduce(std::span<unisono::bfloat16>(values));
  if (!report) return std::fprintf(stderr, "%s\n", report.status().to_string().c_str()), 1;
  if (group->rank() == 0) {
    std::printf("%s by %s: %llu bytes sent, %u of %u contributed\n", report->operation.data(), report->schedule.data(),
                static_cast<unsigned long long>(report->sent_bytes), report->contributors, report->world_size);
    std::printf("%s\n", report->to_string().c_str());
    std::printf("%s\n", group->link_speeds().to_string().c_str());
  }
  // --8<-- [end:body]
  return 0;
}
