// Messages between members and coordinators while groups form. They are bounded, and decoding trusts no input.
//
// A member registers for a slot at the slot's coordinator. The coordinator answers with a sign of life (PENDING), with a
// descriptor, or with the reason why there will be no group for it. for_coordinator() tells which state machine of a process
// handles a message.
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
inline constexpr size_t group_members_max = 256;   // 2·max_group, max_group <= 128
inline constexpr uint64_t steps_max = 1ull << 53;  // limit of averaging step and version numbers; a larger number is corrupt
inline constexpr uint32_t rounds_max = 1u << 20;   // limit of round and line numbers
inline constexpr uint32_t group_chunks_max = 1u << 24;  // limit for one owner

namespace formation {

// To a coordinator: this peer wants the slot. With pre: it will want the slot once its current round has ended.
struct Register {
  SlotName slot;
  uint32_t cell = 0;
  uint32_t position = 0;
  bool weighted = false;
  bool pre = false;
  bool in_layout = false;
  ElasticRole role = ElasticRole::peer;
  double bandwidth = -1;  // bytes/s; below 0: unknown
  uint64_t schema = 0;
  uint64_t attempt = 0;         // grows with each request and each holder asked; a message with an older one is ignored
  std::vector<PeerId> missing;  // members that this peer waited for in vain in this round of the previous averaging step
  friend bool operator==(const Register&, const Register&) = default;
};
// From a coordinator: the registration is noted; wait.
struct Pending {
  SlotName slot;
  uint64_t attempt = 0;
  uint64_t steps_opened = 0;  // highest opened averaging step + 1, as in FormationView; likewise in all answers below
  uint64_t round_ms = 0;  // how long the coordinator may wait for members still in the previous round, given their bandwidths
  friend bool operator==(const Pending&, const Pending&) = default;
};
// From a coordinator, or from a member that was asked for it: the receiver's group.
struct Descriptor {
  GroupDescriptor group;
  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};
struct DescriptorAck {
  GroupId id;
  friend bool operator==(const DescriptorAck&, const DescriptorAck&) = default;
};
// From a coordinator: no other member came, or no member can own chunks.
struct Alone {
  SlotName slot;
  bool no_reducer = false;  // other members are there, but all are clients or have no bandwidth
  std::vector<PeerId> missing;
  uint64_t steps_opened = 0;
  friend bool operator==(const Alone&, const Alone&) = default;
};
// From a coordinator: the group was formed since_ms ago without the receiver.
struct Closed {
  SlotName slot;
  uint64_t steps_opened = 0;
  uint64_t since_ms = 0;
  friend bool operator==(const Closed&, const Closed&) = default;
};
// From a coordinator: the group has no free slot, or it averages tensors of another schema.
struct Full {
  SlotName slot;
  bool other_schema = false;
  uint64_t steps_opened = 0;
  friend bool operator==(const Full&, const Full&) = default;
};
// From a coordinator: the slot's layout was replaced by this one.
struct StaleLayout {
  SlotName slot;
  uint64_t steps_opened = 0;
  Layout newer;
  friend bool operator==(const StaleLayout&, const StaleLayout&) = default;
};
// From a coordinator: it does not hold the slot's layout. Send the layout, and register again.
struct NeedLayout {
  SlotName slot;
  friend bool operator==(const NeedLayout&, const NeedLayout&) = default;
};
struct LayoutReply {
  Layout layout;
  friend bool operator==(const LayoutReply&, const LayoutReply&) = default;
};
// To a coordinator: the sender missed the previous averaging step; expect it for this slot. It is not a registration.
struct Late {
  SlotName slot;
  friend bool operator==(const Late&, const Late&) = default;
};
// To the members of a group: the sender is listed but takes no part.
struct Decline {
  GroupId id;
  SlotName slot;
  friend bool operator==(const Decline&, const Decline&) = default;
};
// To a member: the sender does not know the group that the member's message named.
struct GetDescriptor {
  GroupId id;
  friend bool operator==(const GetDescriptor&, const GetDescriptor&) = default;
};
// To a coordinator: the sender does not want the slot any more.
struct Withdraw {
  SlotName slot;
  uint64_t attempt = 0;  // the latest one that it sent to this coordinator
  friend bool operator==(const Withdraw&, const Withdraw&) = default;
};

}  // namespace formation

using FormationMessage =
    std::variant<formation::Register, formation::Pending, formation::Descriptor, formation::DescriptorAck, formation::Alone,
                 formation::Closed, formation::Full, formation::StaleLayout, formation::NeedLayout, formation::LayoutReply,
                 formation::Late, formation::Decline, formation::GetDescriptor, formation::Withdraw>;

struct FormationSend {
  PeerId to;  // may be this process itself: the caller then hands the message to its own coordinator or seeker
  FormationMessage message;
};

// True: the GroupCoordinator handles it. False: the GroupSeeker does.
bool for_coordinator(const FormationMessage& message);

// The first byte is ElasticChannel::formation.
Bytes encode(const FormationMessage& message);
// Error: corrupt, naming the field, if the message is cut, over a limit, lists a peer twice, or has bytes left over.
Result<FormationMessage> decode_formation(ByteView bytes);

}  // namespace unisono
