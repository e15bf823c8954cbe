// Which delivery the operations of one group have, where that is not said by the call alone: rank 0 judges what becomes of
// them, by DeliveryPolicy, and tells the others from which operation on another one holds. Pure: numbers of operations and
// outcomes come in.
//
// A decision made when operation k has ended at rank 0 holds from k + 2 on, the first that nobody can have begun by then: k + 1
// needs rank 0's results. Who hears of it later than that is wrong by an operation or two, which does no harm: what is repaired
// is decided by each receiver for its own incoming streams alone, whatever the senders think, and every result is made by one
// owner.
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

  static constexpr uint8_t kind = 1;  // the first byte of what lossy groups tell each other
  // u8 kind, u8 asked, u8 used, u32 from, u32 length, note.
  Bytes encode() const;
  // corrupt: what is wrong.
  static Result<DeliveryDecision> decode(ByteView bytes);
  friend bool operator==(const DeliveryDecision&, const DeliveryDecision&) = default;
};

class DeliveryChoice {
 public:
  // An operation that was asked to be lossy or automatic begins, the numbers ascending: what it is, lossy or reliable.
  Delivery begin(uint32_t op, Delivery asked);
  // Why the one that began last is what it is; "": it is what such calls are from the start.
  const std::string& note(Delivery asked) const { return of(asked).note; }

  // Rank 0, when one has ended: what the others must be told, or nothing. Calls of one kind share what is learnt, so loss_off
  // and loss_budget are those of the call that ended; after loss_off lossy calls of the group stay reliable.
  std::optional<DeliveryDecision> ended(uint32_t op, Delivery asked, const DeliveryOptions& options,
                                        const DeliveryOutcome& outcome);
  // The others: what rank 0 has told.
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
