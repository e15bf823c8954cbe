// Decides by the time of steps whether compression goes on. A state machine that reads no clock: all ranks decide alike from
// averaged times.
//
// It times the whole steps before the first compressed one, then compressed ones, and after many more some whole ones again.
// Once off, it stays off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "training/reducer/error_feedback.h"

namespace unisono {

struct AutoOffOptions {
  bool enabled = true;
  uint64_t start_step = 0;  // whole until then
  uint32_t window = 20;     // steps that are timed, of each kind
  uint32_t untimed = 5;     // of those the first
  uint64_t period = 2000;   // compressed steps until whole ones are timed again
  double gain = 0.03;       // share of the time that must be saved
};

class AutoOff {
 public:
  // Steps' times need no memory later on.
  explicit AutoOff(const AutoOffOptions& options) : options_(options) {
    whole_us_.reserve(options.window + 1), compressed_us_.reserve(options.window + 1);
  }

  // How the next step is sent. whole: the first of some, which leaves nothing over.
  Sending next(uint64_t step) const;
  // Records the duration of a step. If a question is returned, average its two medians over the ranks and pass them to
  // decide().
  struct Question {
    double whole_us = 0, compressed_us = 0;
  };
  std::optional<Question> took(uint64_t step, Sending sent, double us);
  void decide(const Question& averaged);
  // Call after ranks have joined or left: the times measured before are discarded. off: compression is off on at least one
  // rank; it is then off on all ranks.
  void restart(bool off);

  bool off() const { return off_; }
  const std::string& reason() const { return reason_; }  // why it is off

 private:
  void note(std::vector<double>& times, double us);

  const AutoOffOptions options_;
  bool off_ = false;
  bool retesting_ = false;   // whole steps are timed at present
  uint64_t compressed_ = 0;  // steps since the last decision
  std::vector<double> whole_us_, compressed_us_;
  std::string reason_;
};

}  // namespace unisono
