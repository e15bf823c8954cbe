#include "transports/tcp/resend_memory.h"

#include <gtest/gtest.h>

#include <thread>

namespace unisono {
namespace {

TEST(ResendMemory, counts_up_to_its_limit) {
  ResendMemory memory(100);
  EXPECT_TRUE(memory.take(60));
  EXPECT_FALSE(memory.take(41));
  EXPECT_TRUE(memory.take(40));
  EXPECT_EQ(memory.used(), 100u);
  memory.give(60);
  EXPECT_EQ(memory.used(), 40u);
  EXPECT_FALSE(memory.take(SIZE_MAX));
}

TEST(ResendMemory, a_link_stops_at_the_limit_of_the_process_and_counts_nothing) {
  ResendMemory process(100);
  ResendMemory first(80, &process), second(80, &process);
  EXPECT_TRUE(first.take(80));
  EXPECT_FALSE(second.take(21));
  EXPECT_EQ(second.used(), 0u);
  EXPECT_TRUE(second.take(20));
  EXPECT_EQ(process.used(), 100u);
  first.give(80);
  EXPECT_EQ(process.used(), 20u);
}

TEST(ResendMemory, a_lower_limit_refuses_new_copies_and_counts_the_old_ones) {
  ResendMemory memory(100);
  EXPECT_TRUE(memory.take(60));
  memory.set_limit(50);
  EXPECT_FALSE(memory.take(1));
  memory.give(60);
  EXPECT_TRUE(memory.take(50));
}

TEST(ResendMemory, several_threads_never_exceed_the_limit) {
  ResendMemory process(1000);
  std::atomic<bool> exceeded = false;
  const auto work = [&] {
    ResendMemory link(600, &process);
    for (int i = 0; i < 20'000; ++i) {
      if (!link.take(300)) continue;
      if (process.used() > 1000) exceeded = true;
      link.give(300);
    }
  };
  std::thread a(work), b(work), c(work), d(work);
  for (auto* thread : {&a, &b, &c, &d}) thread->join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(process.used(), 0u);
}

}  // namespace
}  // namespace unisono
