#include "cli/common/progress.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

// A stream in memory that captures what a Progress writes.
struct Capture {
  char* bytes = nullptr;
  size_t size = 0;
  std::FILE* stream = ::open_memstream(&bytes, &size);
  ~Capture() {
    std::fclose(stream);
    std::free(bytes);
  }
  std::string text() {
    std::fflush(stream);
    return {bytes, size};
  }
};

TEST(Progress, a_bar_rewrites_its_line_ten_times_a_second_at_most) {
  Capture capture;
  Progress progress({.label = "bench", .total = 4, .style = ProgressStyle::bar, .stream = capture.stream}, 0);
  progress.update(1, "1 KiB", 50 * millisecond);
  EXPECT_EQ(capture.text(), "");
  progress.update(1, "1 KiB", second);
  EXPECT_EQ(capture.text(), "\rbench  25% [#####               ] 1/4  1 KiB  3 s left\x1b[K");
  progress.clear();
  EXPECT_TRUE(capture.text().ends_with("\r\x1b[K"));
}

TEST(Progress, without_a_terminal_a_line_comes_every_few_seconds) {
  Capture capture;
  Progress progress({.label = "bench", .total = 2, .style = ProgressStyle::lines, .stream = capture.stream}, 0);
  for (int tenth = 1; tenth <= 110; ++tenth) progress.update(1, "x", tenth * 100 * millisecond);
  const auto text = capture.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST(Progress, progress_is_silent_when_switched_off) {
  Capture capture;
  Progress progress({.label = "bench", .total = 2, .style = ProgressStyle::off, .stream = capture.stream}, 0);
  progress.update(2, "x", 100 * second);
  progress.clear();
  EXPECT_EQ(capture.text(), "");
}

TEST(Progress, a_bar_fits_the_terminal_and_more_than_all_is_all) {
  const Progress progress({.label = "bench", .total = 2, .style = ProgressStyle::bar, .width = 40}, 0);
  EXPECT_LT(progress.render(1, std::string(100, 'x'), second).size(), 40u);
  EXPECT_NE(progress.render(3, "", second).find("100% [####################]"), std::string::npos);
}

TEST(Progress, an_unknown_total_is_counted) {
  const Progress progress({.label = "seeds", .total = 0}, 0);
  EXPECT_EQ(progress.render(17, "all good", second), "seeds 17 done  all good");
}

}  // namespace
}  // namespace unisono::cli
