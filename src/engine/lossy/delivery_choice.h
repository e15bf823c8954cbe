// Chooses between reliable and lossy delivery, for operations whose caller left the choice open. There is one object per group.
// Rank 0 evaluates the outcomes of operations with DeliveryPolicy. It sends each decision together with the number of the first
// operation to which the decision applies. The object does no I/O: the caller tells it the numbers and outcomes of operations.
//
// A decision that rank 0 makes at the end of operation k applies from k + 2 on. No rank can have begun k + 2 by then, because k
// + 1 needs rank 0's results. If a rank receives the decision late, it uses the old delivery for one or two operations. That is
// harmless: each receiver alone decides what it requests again, and each result has only one owner.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "lossy/delivery_policy.h"
#include "unisono/delivery.h"
#include "unisono/status.h"

namespace unisono {

struct DeliveryDecision {
  static constexpr size_t note_bytes_max = 1024;

  Delivery asked = Delivery::automatic;  // the decision applies to calls with this delivery: lossy or automatic
  Delivery used = Delivery::reliable;    // the delivery that these calls get: reliable or lossy
  uint32_t from = 0;                     // number of the first operation to which the decision applies
  std::string note;                      // the reason for the decision, with its numbers

  static constexpr uint8_t kind = 1;  // The first byte of a decision message, which lossy groups send to each other.
  // The bytes are: u8 kind, u8 asked, u8 used, u32 from, u32 length, note.
  Bytes encode() const;
  // Error corrupt: a field is malformed. The message of the error names it.
  static Result<DeliveryDecision> decode(ByteView bytes);
  friend bool operator==(const DeliveryDecision&, const DeliveryDecision&) = default;
};

class DeliveryChoice {
 public:
  // Call it when an operation with lossy or automatic delivery begins, in the order of operation numbers. Returns lossy or
  // reliable.
  Delivery begin(uint32_t op, Delivery asked);
  // Says why the last operation got its delivery. Empty before the first decision.
  const std::string& note(Delivery asked) const { return of(asked).note; }

  // Rank 0 calls it when an operation has ended. If it returns a decision, rank 0 sends the decision to the other ranks. All
  // calls with the same `asked` share one policy, which uses loss_off and loss_budget of the latest call. Once the loss has
  // exceeded loss_off, lossy calls of the group stay reliable.
  std::optional<DeliveryDecision> ended(uint32_t op, Delivery asked, const DeliveryOptions& options,
                                        const DeliveryOutcome& outcome);
  // Ranks other than 0 call it when a decision of rank 0 arrives.
  void on_decision(DeliveryDecision decision);

 private:
  struct Kind {
    Delivery used;
    std::string note{};
    std::optional<DeliveryDecision> next{};
    std::optional<DeliveryPolicy> policy{};  // used on rank 0 only
  };
  Kind& of(Delivery asked) { return kinds_[asked == Delivery::automatic]; }
  const Kind& of(Delivery asked) const { return kinds_[asked == Delivery::automatic]; }
  static void take_next(Kind& kind);

  std::array<Kind, 2> kinds_{Kind{.used = Delivery::lossy}, Kind{.used = Delivery::reliable}};
};

}  // namespace unisono
