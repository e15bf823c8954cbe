// Runs one function on several threads, for the option --jobs. The function itself fetches the next piece of work, for example
// from an atomic counter.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

namespace unisono::cli {

constexpr uint32_t jobs_max = 256;

// Calls work() on `count` threads at once; the calling thread is one of them. Returns when all calls have returned.
template <typename Work>
void on_threads(uint64_t count, const Work& work) {
  std::vector<std::thread> helpers;
  for (uint64_t i = 1; i < count; ++i) helpers.emplace_back([&work] { work(); });
  work();
  for (auto& helper : helpers) helper.join();
}

}  // namespace unisono::cli
