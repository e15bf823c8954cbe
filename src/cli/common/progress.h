// Shows how far a long task has come. On a terminal, this is a bar that rewrites its line. Elsewhere, it is a line every few
// seconds.
//
// Progress goes to standard error, because standard output is for data. The time is an argument, so that tests need no clock.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"

namespace unisono::cli {

enum class ProgressStyle : uint8_t { off, bar, lines };

struct ProgressOptions {
  std::string label;   // name of the task: "bench"
  uint64_t total = 0;  // number of steps of the task; 0: not known
  ProgressStyle style = ProgressStyle::lines;
  uint32_t width = 80;  // columns of the terminal
  std::FILE* stream = stderr;
};

// Returns the values that --progress takes: "auto" and the styles.
std::vector<std::string> progress_names();
// Returns the style that "auto" means: a bar if the stream is a terminal, otherwise lines.
ProgressStyle progress_style_of(std::FILE* stream);

// Returns options for standard error. `style` is the value of --progress. The width is that of the terminal.
ProgressOptions progress_options(std::string label, uint64_t total, const std::string& style);

class Progress {
 public:
  Progress(const ProgressOptions& options, Nanos now);
  // Shows the state if enough time has passed since the last time: 0.1 s for a bar, 5 s for lines.
  void update(uint64_t done, const std::string& what, Nanos now);
  // Erases the bar, so that other output can follow.
  void clear();
  // Returns a text such as "bench  43% [#######         ] 3/7  64 KiB  2 s left", with at most `width` columns. This function
  // is pure.
  std::string render(uint64_t done, const std::string& what, Nanos elapsed) const;

 private:
  ProgressOptions options_;
  Nanos started_;
  Nanos next_;
  bool shown_ = false;
};

}  // namespace unisono::cli
