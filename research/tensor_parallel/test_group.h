// Groups of threads for the tests: every rank of a new group in a thread of its own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "unisono/unisono.h"

namespace tensor_parallel {

inline void with_group(uint32_t ranks, const std::function<void(unisono::Group&)>& body) {
  static std::atomic<int> group_count{0};
  const auto place = std::filesystem::temp_directory_path() /
                     ("tensor_parallel_" + std::to_string(getpid()) + "_" + std::to_string(group_count++));
  std::filesystem::create_directory(place);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      unisono::Options join;
      join.rank = static_cast<int32_t>(rank);
      join.world_size = static_cast<int32_t>(ranks);
      join.rendezvous = "file://" + place.string();
      auto group = unisono::Group::join(join);
      ASSERT_TRUE(group.ok()) << group.status().to_string();
      body(*group);
    });
  }
  for (auto& thread : threads) thread.join();
  std::filesystem::remove_all(place);
}

}  // namespace tensor_parallel
