// Decides whether a group's operations are lossy, and whether a stream with missing data is repaired. The policy has no clock
// and no links; the caller reports how each operation ended.
//
// Rank 0 applies the policy between operations, and notifies the other ranks (engine/lossy/delivery_choice). Source:
// docs/design/methods/packet_loss.md, "Streams and deadlines".
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "unisono/delivery.h"

namespace unisono {

// The measurements of rank 0 in one operation, on the data that it received.
struct DeliveryOutcome {
  Nanos phase_duration = 0;            // duration of the longer of the two phases
  uint64_t size_class = 0;             // only durations of the same size class are compared; see size_class_of() in deadline.h
  uint64_t expected = 0, missing = 0;  // numbers of datagrams; a datagram that came by repair counts as missing
};

class DeliveryPolicy {
 public:
  DeliveryPolicy(Delivery requested, const DeliveryOptions& options)
      : requested_(requested), current_(requested == Delivery::lossy ? Delivery::lossy : Delivery::reliable) {
    set(options);
  }

  // Sets the options for the next call of operation_ended(). Earlier outcomes are kept.
  void set(const DeliveryOptions& options) { loss_budget_ = options.loss_budget, loss_off_ = options.loss_off; }

  // Returns whether the next operation is reliable or lossy.
  Delivery current() const { return current_; }
  // Returns the reason for the last change of current(). Empty if it has never changed.
  const std::string& note() const { return note_; }

  // Call this after each operation. Returns true if current() has changed. The policy counts only operations since the last
  // change.
  // - It changes from lossy to reliable if the loss over 20 operations exceeds loss_off. If the user requested lossy, this
  //   change is permanent.
  // - It changes from reliable to lossy (only if the user requested `automatic`) if, over 64 operations, the loss is between
  //   0.1 % and loss_budget, and the P95 of the phase times is more than 1.5 times their median.
  // - It changes from lossy to reliable (only if the user requested `automatic`) if less than 0.05 % was lost in 256
  // operations.
  bool operation_ended(const DeliveryOutcome& outcome);

  // True if a stream must be repaired when this fraction of its data is missing. completes: the phase may not close while any
  // data is missing.
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

  Delivery requested_;
  double loss_budget_ = 0, loss_off_ = 0;
  Delivery current_;
  std::string note_;
  std::array<DeliveryOutcome, 256> outcomes_{};  // ring buffer of the last outcomes
  uint64_t count_ = 0, since_change_ = 0;
  bool is_switched_off_ = false;  // lossy was requested, but the loss exceeded loss_off, so all later operations are reliable
};

}  // namespace unisono
