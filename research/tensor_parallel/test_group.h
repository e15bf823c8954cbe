// Groups for tests. Every rank of a group runs in its own thread.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/concat.h"
#include "unisono/unisono.h"

namespace tensor_parallel {

inline void with_group(uint32_t ranks, const std::function<void(unisono::Group&)>& body) {
  static std::atomic<int> group_count{0};
  const auto folder =
      std::filesystem::temp_directory_path() / (unisono::concat("tensor_parallel_", getpid(), "_", group_count++));
  std::filesystem::create_directory(folder);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      unisono::Options join;
      join.rank = static_cast<int32_t>(rank);
      join.world_size = static_cast<int32_t>(ranks);
      join.rendezvous = "file://" + folder.string();
      auto group = unisono::Group::join(join);
      ASSERT_TRUE(group.ok()) << group.status().to_string();
      body(*group);
    });
  }
  for (auto& thread : threads) thread.join();
  std::filesystem::remove_all(folder);
}

}  // namespace tensor_parallel
