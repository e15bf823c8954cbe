// The delivery of a group's operations where the call alone does not decide it: rank 0 judges their outcomes by DeliveryPolicy,
// and notifies the others of a new delivery and of the first operation that it holds for. Pure: numbers of operations and
// outcomes come in.
//
// A decision made when operation k has ended at rank 0 holds from k + 2 on. No rank can have begun that by then, because k + 1
// needs rank 0's results. A rank that receives the decision later is wrong for an operation or two, which does no harm: each
// receiver alone decides what is repaired in its incoming streams, and every result is made by one owner.
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

  Delivery asked = Delivery::automatic;  // of the calls it is for: lossy or automatic
  Delivery used = Delivery::reliable;    // reliable or lossy
  uint32_t from = 0;                     // the first operation it holds for
  std::string note;                      // why, with the numbers

  static constexpr uint8_t kind = 1;  // the first byte of such a message between lossy groups
  // u8 kind, u8 asked, u8 used, u32 from, u32 length, note.
  Bytes encode() const;
  // corrupt: what is wrong.
  static Result<DeliveryDecision> decode(ByteView bytes);
  friend bool operator==(const DeliveryDecision&, const DeliveryDecision&) = default;
};

class DeliveryChoice {
 public:
  // An operation that was asked to be lossy or automatic begins; numbers ascend. Returns its delivery: lossy or reliable.
  Delivery begin(uint32_t op, Delivery asked);
  // Why the operation that began last has its delivery; "": such calls have it from the start.
  const std::string& note(Delivery asked) const { return of(asked).note; }

  // Rank 0 calls it when an operation has ended. Returns the decision to send to the others, if there is one. Calls of one kind
  // share what is learnt, so loss_off and loss_budget are those of the call that ended. After loss_off, lossy calls of the
  // group stay reliable.
  std::optional<DeliveryDecision> ended(uint32_t op, Delivery asked, const DeliveryOptions& options,
                                        const DeliveryOutcome& outcome);
  // The other ranks: a decision of rank 0 has arrived.
  void heard(DeliveryDecision decision);

 private:
  struct Kind {
    Delivery used;
    std::string note{};
    std::optional<DeliveryDecision> next{};
    std::optional<DeliveryPolicy> policy{};  // rank 0
  };
  Kind& of(Delivery asked) { return kinds_[asked == Delivery::automatic]; }
  const Kind& of(Delivery asked) const { return kinds_[asked == Delivery::automatic]; }
  static void take_next(Kind& kind);

  std::array<Kind, 2> kinds_{Kind{.used = Delivery::lossy}, Kind{.used = Delivery::reliable}};
};

}  // namespace unisono
