// Support for tests in which processes on this host find each other through a seed.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "elastic/peer/elastic_driver.h"
#include "unisono/elastic.h"

namespace unisono::test {

inline ElasticOptions options_of(const std::string& seed, bool found) {
  ElasticOptions options;
  options.run_id = "run";
  options.found = found;
  options.seeds = {seed};
  options.tensor_elements = {100};
  options.interface = "127.0.0.1";
  return options;
}

// Returns a driver that was started at time 0, or null if the options are refused.
inline std::unique_ptr<ElasticDriver> make_driver(const ElasticOptions& options) {
  auto driver = ElasticDriver::make(options);
  EXPECT_TRUE(driver.ok()) << driver.status().to_string();
  if (!driver.ok()) return nullptr;
  (*driver)->start(0);
  return std::move(*driver);
}

// Waits until `condition` is true. Returns false if that takes more than 20 s.
inline bool comes_true(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace unisono::test
