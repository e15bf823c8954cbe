// A state machine that decides from the durations of steps whether compression goes on. It reads no clock. All ranks pass it
// the same averaged durations, so that all of them decide alike.
//
// It first times the uncompressed steps at the start of training, then compressed steps. After many compressed steps, it times
// some uncompressed steps again. Once it has switched compression off, compression stays off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "training/reducer/error_feedback.h"

namespace unisono {

struct AutoOffOptions {
  bool enabled = true;
  uint64_t start_step = 0;  // the first step that is compressed
  uint32_t window = 20;     // This many steps are timed with compression, and this many without.
  uint32_t untimed = 5;     // The first steps of each window are ignored; this is their number.
  uint64_t period = 2000;   // After this many compressed steps, uncompressed steps are timed again.
  double gain = 0.03;       // Compression must save at least this share of the step time.
};

class AutoOff {
 public:
  // Reserves memory for the durations, so that record_step() does not allocate any for them.
  explicit AutoOff(const AutoOffOptions& options) : options_(options) {
    whole_us_.reserve(options.window + 1), compressed_us_.reserve(options.window + 1);
  }

  // Returns how the next step must be sent. When uncompressed steps are timed again, the first of them is `whole`: it sends the
  // residuals, too. The others are `plain`.
  Sending next(uint64_t step) const;
  // Records how long a step took. If the function returns medians, the caller must average them over the ranks and then call
  // decide().
  struct Medians {
    double whole_us = 0, compressed_us = 0;
  };
  std::optional<Medians> record_step(uint64_t step, Sending sent, double us);
  void decide(const Medians& averaged);
  // Call this after ranks have joined or left. It discards the measured times. If `off` is true, at least one rank has switched
  // compression off, so this rank switches it off, too.
  void restart(bool off);

  bool off() const { return off_; }
  const std::string& reason() const { return reason_; }  // Returns why compression is off.

 private:
  void record(std::vector<double>& times, double us);

  const AutoOffOptions options_;
  bool off_ = false;
  bool retesting_ = false;   // True while uncompressed steps are timed again.
  uint64_t compressed_ = 0;  // how many compressed steps were made since the last decision
  std::vector<double> whole_us_, compressed_us_;
  std::string reason_;
};

}  // namespace unisono
