#include "engine/lossy/delivery_choice.h"

#include <utility>

#include "base/concat.h"
#include "wire/datagram.h"

namespace unisono {

Bytes DeliveryDecision::encode() const {
  return std::move(ByteWriter()
                       .write(kind)
                       .write(static_cast<uint8_t>(asked))
                       .write(static_cast<uint8_t>(used))
                       .write(from)
                       .write_string(std::string_view(note).substr(0, note_bytes_max)))
      .take();
}

Result<DeliveryDecision> DeliveryDecision::decode(ByteView bytes) {
  ByteReader reader(bytes);
  const auto first = reader.read<uint8_t>(), asked = reader.read<uint8_t>(), used = reader.read<uint8_t>();
  DeliveryDecision decision{.asked = static_cast<Delivery>(asked),
                            .used = static_cast<Delivery>(used),
                            .from = reader.read<uint32_t>(),
                            .note = reader.read_string(note_bytes_max)};
  if (!reader.done())
    return Status(Code::corrupt,
                  concat("a delivery decision has ", bytes.size(), " bytes, which does not match the length of its note"));
  if (first != kind) return Status(Code::corrupt, concat("a delivery decision begins with byte ", first, " instead of ", kind));
  const bool is_asked = decision.asked == Delivery::lossy || decision.asked == Delivery::automatic;
  const bool is_used = decision.used == Delivery::reliable || decision.used == Delivery::lossy;
  if (!is_asked || !is_used)
    return Status(Code::corrupt, concat("a delivery decision names unknown delivery kinds: asked ", asked, ", used ", used));
  return decision;
}

void DeliveryChoice::take_next(Kind& kind) {
  kind.used = kind.next->used;
  kind.note = std::move(kind.next->note);
  kind.next.reset();
}

Delivery DeliveryChoice::begin(uint32_t op, Delivery asked) {
  auto& kind = of(asked);
  if (kind.next && op_distance(op, kind.next->from) >= 0) take_next(kind);
  return kind.used;
}

std::optional<DeliveryDecision> DeliveryChoice::ended(uint32_t op, Delivery asked, const DeliveryOptions& options,
                                                      const DeliveryOutcome& outcome) {
  auto& kind = of(asked);
  // This operation began before the latest decision applied.
  if (kind.next && op_distance(op, kind.next->from) < 0) return {};
  if (!kind.policy) kind.policy.emplace(asked, options);
  kind.policy->set(options);
  if (!kind.policy->operation_ended(outcome)) return {};
  const auto from = op + 2;
  kind.next = DeliveryDecision{.asked = asked,
                               .used = kind.policy->current(),
                               .from = from,
                               .note = concat(kind.policy->note(), " (rank 0, from operation ", from, ")")};
  return kind.next;
}

void DeliveryChoice::on_decision(DeliveryDecision decision) {
  auto& kind = of(decision.asked);
  if (kind.next) take_next(kind);
  kind.next = std::move(decision);
}

}  // namespace unisono
