// Whether operations of a group may lose something, and whether a stream that ended short is asked for again. Pure: outcomes
// come in.
//
// Rank 0 asks it between operations and tells the others (engine/lossy/delivery_choice). Source:
// docs/design/methods/packet_loss.md, "Streams and deadlines".
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "unisono/delivery.h"

namespace unisono {

// What became of one operation, as far as rank 0 knows: of what was sent to it.
struct DeliveryOutcome {
  Nanos phase_duration = 0;            // of the longer phase
  uint64_t size_class = 0;             // phases are compared with others of their size class only; see deadline.h
  uint64_t expected = 0, missing = 0;  // datagrams; repaired ones count as missing
};

class DeliveryPolicy {
 public:
  DeliveryPolicy(Delivery asked, const DeliveryOptions& options)
      : asked_(asked), now_(asked == Delivery::lossy ? Delivery::lossy : Delivery::reliable) {
    set(options);
  }

  // Calls may have different options: for the next operation that ends. What was learnt stays.
  void set(const DeliveryOptions& options) { loss_budget_ = options.loss_budget, loss_off_ = options.loss_off; }

  // What the next operation does: reliable or lossy.
  Delivery current() const { return now_; }
  // Why it is not what was asked for, or has changed; "" if there is nothing to tell. With the numbers.
  const std::string& note() const { return note_; }

  // After each operation:
  // reliable again once the loss over 20 operations is above loss_off: for good, if lossy was asked for.
  // asked automatic: lossy when over 64 operations the P95 of the phase time over its median is above 1.5, and the loss is in
  // [0.1 %, loss_budget]; back when the loss over 256 operations is below 0.05 %. All of them since the last change. True:
  // current() has changed.
  bool operation_ended(const DeliveryOutcome& outcome);

  // A stream ended with this fraction missing: whether it is asked for again. completes: this phase is repaired to completion
  // (learning, the result phase of an all-reduce, loss_budget 0).
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
  std::array<DeliveryOutcome, 256> outcomes_{};  // a ring
  uint64_t count_ = 0, since_change_ = 0;
  bool off_ = false;  // loss_off was passed, and lossy had been asked for
};

}  // namespace unisono
