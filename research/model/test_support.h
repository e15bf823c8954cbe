// Helper functions of several tests of the language model.
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
#include "research/model/data_parallel.h"
#include "research/model/text.h"
#include "research/model/trainer.h"

namespace language_model {

// Makes a new group. Every rank, in its own thread, runs body(rank, result of make_group_exchange). options(rank) need not set
// the rendezvous, because with_ranks() sets it.
inline void with_ranks(uint32_t ranks, const std::function<ExchangeOptions(uint32_t)>& options,
                       const std::function<void(uint32_t, unisono::Result<std::unique_ptr<GradientExchange>>)>& body) {
  static std::atomic<int> group_count{0};
  const auto folder =
      std::filesystem::temp_directory_path() / (unisono::concat("language_model_exchange_", getpid(), "_", group_count++));
  std::filesystem::create_directory(folder);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto own = options(rank);
      own.join.rank = static_cast<int32_t>(rank);
      own.join.world_size = static_cast<int32_t>(ranks);
      own.join.rendezvous = "file://" + folder.string();
      body(rank, make_group_exchange(own));
    });
  }
  for (auto& thread : threads) thread.join();
  std::filesystem::remove_all(folder);
}

// Runs body(exchange) for every rank of a new group. All ranks have the same options, and making the exchange must succeed.
inline void with_group(uint32_t ranks, const ExchangeOptions& options, const std::function<void(GradientExchange&)>& body) {
  with_ranks(
      ranks, [&](uint32_t) { return options; },
      [&](uint32_t rank, unisono::Result<std::unique_ptr<GradientExchange>> exchange) {
        ASSERT_TRUE(exchange.ok()) << exchange.status().to_string();
        ASSERT_EQ((*exchange)->rank(), rank);
        body(**exchange);
      });
}

inline Text repeating_text(size_t context) {
  std::string text;
  while (text.size() < 20'000) text += unisono::concat("the quick brown fox jumps over the lazy dog; ", text.size() % 97, "\n");
  return Text::from_bytes({text.begin(), text.end()}, 0.1, context).value();
}

}  // namespace language_model
