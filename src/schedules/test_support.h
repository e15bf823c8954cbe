// Helpers for the tests of this folder: the schedules of all ranks, and every existing combination of collective and kind.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "schedules/checker.h"
#include "schedules/collective_facts.h"
#include "schedules/make.h"

namespace unisono::test {

inline constexpr Collective scheduled_collectives[] = {
    Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather, Collective::broadcast, Collective::reduce,
    Collective::gather,     Collective::scatter,        Collective::all_to_all, Collective::barrier};

// With sanitizers, the checker is about 20 times slower, so only a few world sizes around powers of two are tested.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr uint32_t world_sizes_limit = 18;
#else
inline constexpr uint32_t world_sizes_limit = 64;
#endif
inline std::vector<uint32_t> world_sizes() {
  std::vector<uint32_t> sizes;
  for (uint32_t world = 1; world <= world_sizes_limit; ++world) sizes.push_back(world);
  if (world_sizes_limit < 64) sizes.insert(sizes.end(), {31, 33, 64});
  return sizes;
}

inline std::vector<Schedule> make_all(ScheduleRequest request) {
  std::vector<Schedule> schedules;
  for (request.rank = 0; request.rank < request.world; ++request.rank) {
    auto made = make_schedule(request);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return {};
    schedules.push_back(std::move(*made));
  }
  return schedules;
}

inline Result<Proof> prove(const ScheduleRequest& request) {
  const auto schedules = make_all(request);
  return check_schedules({.collective = request.collective, .root = request.root, .schedules = schedules});
}

// Proves one kind for all tested world sizes, with roots at the first, second, middle and last rank.
inline void expect_proof_for_every_world(Collective collective, ScheduleKind kind) {
  for (const auto world : world_sizes()) {
    for (const Rank root : {0u, 1u, world / 2, world - 1}) {
      if (root >= world || (root != 0 && !is_rooted(collective))) continue;
      const auto proof = prove({.collective = collective, .kind = kind, .world = world, .root = root});
      ASSERT_TRUE(proof.ok()) << "root " << root << ": " << proof.status().to_string();
      ASSERT_TRUE(proof->overwrite_safe) << name(kind) << " " << name(collective) << " of " << world;
    }
  }
}

}  // namespace unisono::test
