// Shows how a training goes: a bar that is redrawn on a terminal, a plain line every few percent elsewhere.
#pragma once

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

namespace language_model {

class Progress {
 public:
  struct Options {
    std::string title;
    size_t steps = 1;
    size_t tokens_per_step = 1;
    std::FILE* out = stdout;
  };
  explicit Progress(const Options& options);

  // After each step; validation where one was taken.
  void show(size_t step, float loss, std::optional<float> validation);

 private:
  std::string line(size_t step, double seconds) const;

  Options options_;
  bool terminal_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point drawn_{};
  double smoothed_loss_ = 0;
  std::optional<float> validation_;
  size_t next_line_ = 1;
};

}  // namespace language_model
