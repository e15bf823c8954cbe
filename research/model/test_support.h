// Helpers that several tests of the language model share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "research/model/data_parallel.h"
#include "research/model/text.h"
#include "research/model/trainer.h"

namespace language_model {

// Runs body(rank, result of make_group_exchange) for every rank of a new group, each in its own thread. options(rank) need not
// name a rendezvous.
inline void with_ranks(uint32_t ranks, const std::function<ExchangeOptions(uint32_t)>& options,
                       const std::function<void(uint32_t, unisono::Result<std::unique_ptr<GradientExchange>>)>& body) {
  static std::atomic<int> group_count{0};
  const auto place = std::filesystem::temp_directory_path() /
                     ("language_model_exchange_" + std::to_string(getpid()) + "_" + std::to_string(group_count++));
  std::filesystem::create_directory(place);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto own = options(rank);
      own.join.rank = static_cast<int32_t>(rank);
      own.join.world_size = static_cast<int32_t>(ranks);
      own.join.rendezvous = "file://" + place.string();
      body(rank, make_group_exchange(own));
    });
  }
  for (auto& thread : threads) thread.join();
  std::filesystem::remove_all(place);
}

// The same for ranks with equal options, where making the exchange must succeed.
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
  while (text.size() < 20'000)
    text += "the quick brown fox jumps over the lazy dog; " + std::to_string(text.size() % 97) + "\n";
  return Text::from_bytes({text.begin(), text.end()}, 0.1, context).value();
}

}  // namespace language_model
