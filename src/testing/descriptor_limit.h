// For tests: limits how many more file descriptors this process may open.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "base/concat.h"

namespace unisono::test {

// The sanitizer of undefined behaviour opens a pipe to find out whether the address of an object can be read. Without a free
// descriptor it takes every object for a damaged one. Tests in which no descriptor is free skip themselves with this text.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool sanitizer_needs_descriptors = true;
#else
inline constexpr bool sanitizer_needs_descriptors = false;
#endif
inline constexpr char sanitizer_needs_descriptors_text[] =
    "the sanitizer itself needs descriptors; the plain build runs this test";

// While an object of this class lives, exactly `free_count` numbers are free for new descriptors.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int free_count) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    for (int left = free_count; left >= 0; ++limit_) {
      if (::fcntl(limit_, F_GETFD) < 0 && left-- == 0) break;
    }
    const rlimit now{static_cast<rlim_t>(limit_), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~DescriptorLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  DescriptorLimit(const DescriptorLimit&) = delete;

  // Returns the text with which every error names the limit.
  std::string text() const {
    return concat("too many open files (this process may have ", limit_, "; raise the limit with ulimit -n)");
  }

 private:
  rlimit before_{};
  int limit_ = 0;
};

}  // namespace unisono::test
