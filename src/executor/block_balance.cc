#include "executor/block_balance.h"

#include "base/random.h"

namespace unisono {
namespace {

// An odd weight: a single difference of two hashes never vanishes, whatever the weight.
uint64_t weight(Rank from, Rank to) { return mix64(uint64_t{from} << 32 | to) | 1; }

}  // namespace

uint64_t balance_share(const OperationRequest& q, Rank self, uint32_t world) {
  if (q.send_counts.empty()) return even_share(even_weight(self, world), q.count);
  uint64_t sum = 0;
  for (Rank other = 0; other < world; ++other) {
    if (other == self) continue;
    sum += weight(self, other) * mix64(q.send_counts[other]) - weight(other, self) * mix64(q.recv_counts[other]);
  }
  return share_of_sum(sum);
}

uint64_t even_weight(Rank self, uint32_t world) {
  uint64_t sum = 0;
  for (Rank other = 0; other < world; ++other) {
    if (other != self) sum += weight(self, other) - weight(other, self);
  }
  return sum;
}

uint64_t even_share(uint64_t weight, uint64_t count) { return share_of_sum(weight * mix64(count)); }

}  // namespace unisono
