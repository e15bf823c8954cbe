#include "engine/result_stores.h"

#include <gtest/gtest.h>

#include <fstream>

#include "testing/temporary_folder.h"

namespace unisono {
namespace {

constexpr size_t result_bytes = 256u << 10;

// The smallest number of bytes in flight per process at which results bypass the caches.
uint64_t first_past(const SharedCache& cache, uint32_t processes, uint32_t processors) {
  ResultStores stores;
  stores.share(cache, processes, processors);
  uint64_t least = 0;
  for (uint64_t step = uint64_t{1} << 40; step > 0; step /= 2) {
    stores.in_flight(least + step - 1);
    if (!stores.past_caches(result_bytes)) least += step;
  }
  return least;
}

TEST(ResultStores, bypass_the_caches_when_the_bytes_in_flight_exceed_them) {
  const SharedCache cache{.bytes = 8u << 20, .sharers = 4};
  EXPECT_EQ(first_past(cache, 1, 4), 3u << 20);
  EXPECT_EQ(first_past(cache, 4, 4), 768u << 10);
  EXPECT_EQ(first_past(cache, 16, 4), 192u << 10) << "more processes than processors";
  EXPECT_EQ(first_past(cache, 1, 64), 3u << 20);
  EXPECT_EQ(first_past(cache, 17, 64), 1536u << 10) << "two of them have to share a cache";
  EXPECT_EQ(first_past(cache, 64, 64), 768u << 10);
}

TEST(ResultStores, assume_32_MiB_if_the_cache_size_is_unknown) {
  EXPECT_EQ(first_past({.bytes = 480u << 20, .sharers = 2}, 2, 2), 90u << 20);
  EXPECT_EQ(first_past({}, 2, 2), 12u << 20);
  EXPECT_EQ(first_past({.bytes = 32u << 20, .sharers = 100}, 2, 0), 6u << 20) << "a machine that tells nonsense";
}

TEST(ResultStores, go_through_the_caches_after_large_operations_end_and_for_small_results) {
  ResultStores stores;
  EXPECT_FALSE(stores.past_caches(result_bytes));
  stores.share({.bytes = 8u << 20}, 1, 1);
  stores.in_flight(64u << 20);
  EXPECT_TRUE(stores.past_caches(result_bytes));
  EXPECT_FALSE(stores.past_caches(4096));
  stores.in_flight(0);
  EXPECT_FALSE(stores.past_caches(result_bytes));
}

SharedCache cache_described_in(const test::TemporaryFolder& folder, const std::string& size, const std::string& list) {
  std::ofstream(folder.path() + "/size") << size;
  std::ofstream(folder.path() + "/shared_cpu_list") << list;
  return read_shared_cache(folder.path());
}

TEST(SharedCache, is_read_in_the_kernels_format) {
  const test::TemporaryFolder folder;
  const auto expect = [&](const std::string& size, const std::string& list, size_t bytes, uint32_t sharers) {
    const auto cache = cache_described_in(folder, size, list);
    EXPECT_EQ(cache.bytes, bytes) << size;
    EXPECT_EQ(cache.sharers, sharers) << list;
  };
  expect("32768K\n", "0-1\n", 32u << 20, 2);
  expect("260M\n", "0-3,8,10-11\n", 260u << 20, 7);
  expect("1024\n", "5\n", 1024, 1);
  expect("1K\n", "7-3\n", 1024, 1);
  expect("none\n", ",,\n", 0, 1);
  EXPECT_EQ(read_shared_cache(folder.path() + "/nowhere").bytes, 0u);
}

}  // namespace
}  // namespace unisono
