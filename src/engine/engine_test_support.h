// Values and expectations for tests that run collectives over several engines in one process.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/test_cluster.h"

namespace unisono::test {

using Ints = std::vector<int32_t>;

inline int32_t element(Rank rank, size_t i) { return static_cast<int32_t>((i * 7 + rank * 13) % 1009) - 300; }

inline Ints test_values(Rank rank, size_t count, size_t offset = 0) {
  Ints values(count);
  for (size_t i = 0; i < count; ++i) values[i] = element(rank, offset + i);
  return values;
}

inline Ints sums(uint32_t world, size_t count) {
  Ints values(count);
  for (Rank r = 0; r < world; ++r) {
    for (size_t i = 0; i < count; ++i) values[i] += element(r, i);
  }
  return values;
}

inline ConstTensor in(const Ints& v) { return std::span<const int32_t>(v); }
inline Tensor out(Ints& v) { return std::span<int32_t>(v); }

inline void expect_ok(const std::vector<std::shared_ptr<Completion>>& done) {
  for (size_t r = 0; r < done.size(); ++r) {
    ASSERT_TRUE(done[r]->done) << "rank " << r;
    ASSERT_TRUE(done[r]->status.ok()) << "rank " << r << ": " << done[r]->status.to_string();
  }
}

inline void expect_nothing_held(TestCluster& cluster) {
  for (Rank r = 0; r < cluster.world(); ++r)
    EXPECT_EQ(cluster.engine(r).held_bytes() + cluster.engine(r).in_flight_bytes(), 0u) << "rank " << r;
}

}  // namespace unisono::test
