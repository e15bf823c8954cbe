// Messages between members and coordinators while groups form. All sizes are bounded, and decoding trusts no input.
//
// A member registers for a slot (the name of a group to be formed) at the slot's coordinator. The coordinator answers with a
// sign of life (PENDING), with a group descriptor, or with the reason why the member gets no group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "elastic/formation/group_descriptor.h"
#include "elastic/layout/layout.h"
#include "unisono/status.h"

namespace unisono {

inline constexpr uint8_t formation_version = 1;
inline constexpr size_t group_members_max = 256;        // twice the largest max_group, which is 128
inline constexpr uint64_t steps_max = 1ull << 53;       // averaging steps and versions with larger numbers are corrupt
inline constexpr uint32_t rounds_max = 1u << 20;        // limit of round numbers and of line numbers
inline constexpr uint32_t group_chunks_max = 1u << 24;  // one member owns at most this many chunks

namespace formation {

// A member sends this to a coordinator to register for the slot. If `pre` is true, the member only announces that it will
// register after its current round.
struct Register {
  SlotName slot;
  uint32_t cell = 0;
  uint32_t position = 0;
  bool weighted = false;
  bool pre = false;
  bool in_layout = false;
  ElasticRole role = ElasticRole::peer;
  double bandwidth = -1;  // in bytes/s; unknown if below 0
  uint64_t schema = 0;
  // The sender increases this number for each new request, and for each new coordinator. If a REGISTER has a smaller number
  // than an earlier one, the coordinator ignores it.
  uint64_t attempt = 0;
  // The peers that were missing from the sender's group in this round of the previous averaging step.
  std::vector<PeerId> missing;
  friend bool operator==(const Register&, const Register&) = default;
};
// A coordinator tells a member that its registration has arrived, and that it must wait.
struct Pending {
  SlotName slot;
  uint64_t attempt = 0;
  // The number of the highest averaging step that any REGISTER has opened, plus 1. This field has the same meaning in the
  // answers below.
  uint64_t steps_opened = 0;
  // The coordinator's estimate of the round timeout, in ms. It may wait this long for members that are still in the previous
  // round.
  uint64_t round_ms = 0;
  friend bool operator==(const Pending&, const Pending&) = default;
};
// Tells the receiver its group. The sender is the coordinator, or another member that answers GetDescriptor.
struct Descriptor {
  GroupDescriptor group;
  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};
struct DescriptorAck {
  GroupId id;
  friend bool operator==(const DescriptorAck&, const DescriptorAck&) = default;
};
// A coordinator tells a member that no group was formed. Either no other member came, or no member can own chunks
// (`no_reducer`).
struct Alone {
  SlotName slot;
  bool no_reducer = false;  // true: others came, but all members are clients or have bandwidth 0
  std::vector<PeerId> missing;
  uint64_t steps_opened = 0;
  friend bool operator==(const Alone&, const Alone&) = default;
};
// A coordinator tells a member that the group was formed without it, since_ms milliseconds ago.
struct Closed {
  SlotName slot;
  uint64_t steps_opened = 0;
  uint64_t since_ms = 0;
  friend bool operator==(const Closed&, const Closed&) = default;
};
// A coordinator tells a member that the group is full, or (other_schema) that it averages tensors of another schema.
struct Full {
  SlotName slot;
  bool other_schema = false;
  uint64_t steps_opened = 0;
  friend bool operator==(const Full&, const Full&) = default;
};
// A coordinator tells a member that the layout `newer` has replaced the slot's layout.
struct StaleLayout {
  SlotName slot;
  uint64_t steps_opened = 0;
  Layout newer;
  friend bool operator==(const StaleLayout&, const StaleLayout&) = default;
};
// A coordinator tells a member that it does not have the slot's layout. The member must send the layout and register again.
struct NeedLayout {
  SlotName slot;
  friend bool operator==(const NeedLayout&, const NeedLayout&) = default;
};
struct LayoutReply {
  Layout layout;
  friend bool operator==(const LayoutReply&, const LayoutReply&) = default;
};
// A member tells a coordinator that it will register for this slot later. It missed the same round of the previous averaging
// step.
struct Late {
  SlotName slot;
  friend bool operator==(const Late&, const Late&) = default;
};
// A member tells the other members of its group that it does not take part, although the descriptor lists it.
struct Decline {
  GroupId id;
  SlotName slot;
  friend bool operator==(const Decline&, const Decline&) = default;
};
// Requests the descriptor of a group. The receiver is a member that has sent a message of this group to the sender.
struct GetDescriptor {
  GroupId id;
  friend bool operator==(const GetDescriptor&, const GetDescriptor&) = default;
};
// A member tells a coordinator that it no longer wants the slot.
struct Withdraw {
  SlotName slot;
  uint64_t attempt = 0;  // the latest attempt that was sent to this coordinator
  friend bool operator==(const Withdraw&, const Withdraw&) = default;
};

}  // namespace formation

using FormationMessage =
    std::variant<formation::Register, formation::Pending, formation::Descriptor, formation::DescriptorAck, formation::Alone,
                 formation::Closed, formation::Full, formation::StaleLayout, formation::NeedLayout, formation::LayoutReply,
                 formation::Late, formation::Decline, formation::GetDescriptor, formation::Withdraw>;

struct FormationSend {
  // The receiver. This may be the sending process itself; the caller then passes the message to its own coordinator or seeker.
  PeerId to;
  FormationMessage message;
};

// Returns true if a GroupCoordinator handles the message, and false if a GroupSeeker does.
bool for_coordinator(const FormationMessage& message);

// Encodes the message. The first byte is ElasticChannel::formation.
Bytes encode(const FormationMessage& message);
// Decodes a message. Returns the error corrupt with the name of the faulty field if the message is too short or too long, a
// number exceeds its limit, or a peer is listed twice.
Result<FormationMessage> decode_formation(ByteView bytes);

}  // namespace unisono
