#include "engine/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/inline_compute.h"
#include "unisono/unisono.h"

namespace unisono {
namespace {

TEST(ThreadPool, does_every_piece_once_before_it_returns) {
  for (const uint32_t helpers : {0u, 1u, 3u, 15u}) {
    ThreadPool thread_pool;
    thread_pool.set_helpers(helpers);
    EXPECT_EQ(thread_pool.helpers(), helpers);
    // Not atomic, so that ThreadSanitizer detects pieces that run after parallel_for() has returned.
    std::vector<uint32_t> done(100);
    for (uint32_t call = 1; call <= 300; ++call) {
      const uint32_t pieces = call % 100;
      thread_pool.parallel_for(pieces, [&](uint32_t piece) { ++done[piece]; });
      uint32_t sum = 0;
      for (auto& count : done) sum += std::exchange(count, 0);
      ASSERT_EQ(sum, pieces) << helpers << " helpers, call " << call;
    }
  }
}

TEST(ThreadPool, helpers_that_sleep_are_woken) {
  ThreadPool thread_pool;
  thread_pool.set_helpers(1);
  // Each piece waits until two threads are inside a piece, so the helper must take one.
  for (int call = 0; call < 20; ++call) {
    std::atomic<int> inside{0};
    thread_pool.parallel_for(2, [&](uint32_t) {
      ++inside;
      while (inside < 2) std::this_thread::yield();
    });
    EXPECT_EQ(inside, 2);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
  }
}

TEST(ThreadPool, may_be_destroyed_without_having_worked) {
  ThreadPool thread_pool;
  thread_pool.set_helpers(4);
}

// Number of helper threads in this process. Other threads, such as a sanitizer's, do not count.
size_t helpers_here() {
  size_t helpers = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == ThreadPool::thread_name) ++helpers;
  }
  return helpers;
}

TEST(ThreadPool, has_the_size_of_the_options_including_the_calling_thread) {
  for (const uint32_t compute_threads : {1u, 4u}) {
    Options options;
    options.rank = 0;
    options.world_size = 1;
    options.compute_threads = compute_threads;
    const auto group = Group::join(options);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    EXPECT_EQ(helpers_here(), compute_threads - 1);
  }
}

struct Coded {
  std::vector<std::byte> message, result_message;
  std::vector<float> error, decoded, sum;
  kernels::BlockCounts counts;
};

// Encodes, decodes and folds three messages with the given compute object.
Coded coded(InlineCompute& compute, const StepCodec& step, const std::vector<float>& values) {
  const auto codec = wire_codec(step, DType::f32, DType::f32, false);
  const size_t count = values.size(), bytes = codec.message_bytes(count);
  Coded c{.message = std::vector<std::byte>(bytes),
          .result_message = std::vector<std::byte>(bytes),
          .error = std::vector<float>(count),
          .decoded = values,
          .sum = values,
          .counts = {}};
  compute.encode(
      {.codec = codec, .elements = values.data(), .count = count, .message = c.message.data(), .error = c.error.data()},
      c.counts);
  compute.decode({.codec = codec, .message = c.message.data(), .elements = c.decoded.data(), .count = count}, c.counts, 0);
  const void* const messages[] = {c.message.data(), nullptr, c.message.data()};
  compute.fold({.from = codec,
                .messages = messages,
                .own = c.sum.data(),
                .count = count,
                .divisor = 3,
                .to = &codec,
                .message = c.result_message.data(),
                .output = c.sum.data(),
                .error = c.error.data()},
               c.counts, 0);
  return c;
}

TEST(ThreadPool, encoded_elements_have_the_same_bits_with_any_number_of_threads) {
  Random random(17);
  for (const uint8_t bits : {2, 3, 4, 5, 6, 7, 8}) {
    std::vector<float> values(200'000 + bits);
    for (auto& v : values) v = static_cast<float>(random.unit() - 0.5);
    values[70'001] = std::numeric_limits<float>::quiet_NaN();
    values[150'000] = 1e38f;
    const StepCodec step{.kind = StepCodec::Kind::quantize, .bits = bits, .group = 64, .metadata = StepCodec::Metadata::f16};
    InlineCompute alone;
    const auto expected = coded(alone, step, values);
    EXPECT_GT(expected.counts.saturated, 0u);
    for (const uint32_t helpers : {1u, 2u, 15u}) {
      InlineCompute compute;
      compute.set_helpers(helpers);
      const auto got = coded(compute, step, values);
      const auto same = [](const auto& a, const auto& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
      };
      EXPECT_TRUE(same(got.message, expected.message) && same(got.result_message, expected.result_message))
          << int{bits} << " bits, " << helpers << " helpers";
      EXPECT_TRUE(same(got.error, expected.error) && same(got.decoded, expected.decoded) && same(got.sum, expected.sum));
      EXPECT_EQ(got.counts.saturated, expected.counts.saturated);
      EXPECT_EQ(got.counts.nonfinite_groups, expected.counts.nonfinite_groups);
    }
  }
}

}  // namespace
}  // namespace unisono
