// Shows the progress of a long run. On a terminal, it is a bar that is drawn again and again. Otherwise it is a line every few
// percent.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace language_model {

class Progress {
 public:
  struct Options {
    std::string title;
    size_t steps = 1;
    size_t tokens_per_step = 0;  // 0: do not show the rate
    std::FILE* out = stdout;
  };
  explicit Progress(const Options& options);

  // Call it after each step. `note` is shown after the time.
  void show(size_t step, const std::string& note);

 private:
  std::string line(size_t step, const std::string& note, double seconds) const;

  Options options_;
  bool terminal_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point drawn_{};
  size_t next_line_ = 1;
};

}  // namespace language_model
