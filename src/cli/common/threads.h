// The same work on several threads: each takes from it what no other has taken yet, as --jobs wants it.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

namespace unisono::cli {

constexpr uint32_t jobs_max = 256;

// Calls work() so many times at once, one of them here, and returns when all have.
template <typename Work>
void on_threads(uint64_t count, const Work& work) {
  std::vector<std::thread> helpers;
  for (uint64_t i = 1; i < count; ++i) helpers.emplace_back([&work] { work(); });
  work();
  for (auto& helper : helpers) helper.join();
}

}  // namespace unisono::cli
