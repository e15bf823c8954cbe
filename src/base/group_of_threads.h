// For tests: threads of this process that form a group over shared memory, a rank each. Who uses it links the library.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "base/temporary_folder.h"
#include "unisono/group.h"

namespace unisono::testing {

inline void in_group(uint32_t world, const std::function<void(Group&)>& body, const Options& common = {}) {
  const TemporaryFolder folder;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto options = common;
      options.rank = static_cast<int32_t>(rank);
      options.world_size = static_cast<int32_t>(world);
      options.rendezvous = "file://" + folder.path() + "/meet";
      auto group = Group::join(options);
      ASSERT_TRUE(group.ok()) << group.status().to_string();
      body(*group);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace unisono::testing
