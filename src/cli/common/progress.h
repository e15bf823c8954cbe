// How far a long task has come: a bar that rewrites its line on a terminal, else a line every few seconds.
//
// Progress goes to standard error; standard output stays data. Time is an argument, so that tests need no clock.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"

namespace unisono::cli {

enum class ProgressStyle : uint8_t { off, bar, lines };

struct ProgressOptions {
  std::string label;   // "bench"
  uint64_t total = 0;  // steps; 0 = unknown
  ProgressStyle style = ProgressStyle::lines;
  uint32_t width = 80;  // columns of the terminal
  std::FILE* stream = stderr;
};

// The values that --progress takes: auto, and the styles.
std::vector<std::string> progress_names();
// bar on a terminal, lines elsewhere.
ProgressStyle progress_style_of(std::FILE* stream);

// To standard error, in the style that --progress names, as wide as the terminal is.
ProgressOptions progress_options(std::string label, uint64_t total, const std::string& style);

class Progress {
 public:
  Progress(const ProgressOptions& options, Nanos now);
  // Shows the state if it is time to (10 times a second as a bar, every 5 s as lines).
  void update(uint64_t done, const std::string& what, Nanos now);
  // Takes the bar away, so that other output can follow.
  void clear();
  // "bench  43% [#######         ] 3/7  64 KiB  2 s left"; at most width columns. Pure.
  std::string render(uint64_t done, const std::string& what, Nanos elapsed) const;

 private:
  ProgressOptions options_;
  Nanos started_;
  Nanos next_;
  bool shown_ = false;
};

}  // namespace unisono::cli
