// For tests: threads of this process that form a group over shared memory, one rank each. The test must link the whole library.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "testing/temporary_folder.h"
#include "unisono/group.h"

namespace unisono::test {

namespace detail {
inline void member(const Options& options, const std::function<void(Group&)>& body) {
  auto group = Group::join(options);
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  body(*group);
}
}  // namespace detail

// Runs `body` on `world` threads, one rank per thread. newcomer: runs on one more thread, which joins when the others re-form
// the group; null: no such thread.
inline void in_group(uint32_t world, const std::function<void(Group&)>& body, const Options& common = {},
                     const std::function<void(Group&)>& newcomer = {}) {
  const TemporaryFolder folder;
  auto options = common;
  options.rendezvous = "file://" + folder.path() + "/meet";
  options.world_size = static_cast<int32_t>(world);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank) {
    options.rank = static_cast<int32_t>(rank);
    threads.emplace_back(detail::member, options, body);
  }
  if (newcomer) {
    options.rank = options.world_size = -1;
    options.join_running = true;
    threads.emplace_back(detail::member, options, newcomer);
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace unisono::test
