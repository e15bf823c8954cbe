// Decides whether a group's operations may be lossy, and whether a stream that ended short is repaired. Pure: outcomes come in.
//
// Rank 0 applies it between operations and notifies the others (engine/lossy/delivery_choice). Source:
// docs/design/methods/packet_loss.md, "Streams and deadlines".
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "unisono/delivery.h"

namespace unisono {

// Outcome of one operation as rank 0 sees it, from the data sent to rank 0.
struct DeliveryOutcome {
  Nanos phase_duration = 0;            // of the longer phase
  uint64_t size_class = 0;             // phases are compared only within their size class; see deadline.h
  uint64_t expected = 0, missing = 0;  // datagrams; repaired ones count as missing
};

class DeliveryPolicy {
 public:
  DeliveryPolicy(Delivery asked, const DeliveryOptions& options)
      : asked_(asked), now_(asked == Delivery::lossy ? Delivery::lossy : Delivery::reliable) {
    set(options);
  }

  // Sets the options for the next operation that ends, as calls may have different ones. The policy keeps what it has learnt.
  void set(const DeliveryOptions& options) { loss_budget_ = options.loss_budget, loss_off_ = options.loss_off; }

  // Mode of the next operation: reliable or lossy.
  Delivery current() const { return now_; }
  // The reason, with numbers, if current() differs from the requested mode or has changed; otherwise "".
  const std::string& note() const { return note_; }

  // Call after each operation; true: current() has changed. All counts start at the last change.
  // - Reliable if the loss over 20 operations exceeds loss_off; permanently, if lossy was requested.
  // - Requested automatic: lossy if, over 64 operations, the P95 of the phase time exceeds 1.5 times its median and the loss is
  //   in [0.1 %, loss_budget]. Reliable again if the loss over 256 operations is below 0.05 %.
  bool operation_ended(const DeliveryOutcome& outcome);

  // Whether to repair a stream that ended with this missing fraction. completes: the phase is repaired to completion (learning,
  // the result phase of an all-reduce, loss_budget 0).
  static bool needs_repair(double missing_fraction, double loss_budget, bool completes) {
    return missing_fraction > (completes ? 0 : loss_budget);
  }

 private:
  struct Sum {
    uint64_t expected = 0, missing = 0;
    double fraction() const { return expected == 0 ? 0 : static_cast<double>(missing) / static_cast<double>(expected); }
  };
  const DeliveryOutcome& outcome(uint64_t back) const { return outcomes_[(count_ - 1 - back) % outcomes_.size()]; }
  Sum last(uint32_t operations) const;
  double tail_ratio() const;
  bool change(Delivery to, std::string note);

  Delivery asked_;
  double loss_budget_ = 0, loss_off_ = 0;
  Delivery now_;
  std::string note_;
  std::array<DeliveryOutcome, 256> outcomes_{};  // ring buffer
  uint64_t count_ = 0, since_change_ = 0;
  bool off_ = false;  // loss_off was exceeded although lossy had been requested
};

}  // namespace unisono
