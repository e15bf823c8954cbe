// What members and coordinators say to each other while groups form: bytes <-> values, bounded, trusting nothing.
//
// A member registers for a slot at the slot's coordinator; the coordinator answers with a sign of life, a descriptor, or why
// there will be no group for it. for_coordinator() says which of the two machines of a process a message belongs to.
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
inline constexpr uint64_t steps_max = 1ull << 53;  // of averaging step and version numbers: a peer that says more is broken
inline constexpr uint32_t rounds_max = 1u << 20;   // of round and line numbers
inline constexpr uint32_t group_chunks_max = 1u << 24;  // of one owner

namespace formation {

// To a coordinator: I want a slot (or, with pre, I shall want it once the round before has ended).
struct Register {
  SlotName slot;
  uint32_t cell = 0;
  uint32_t position = 0;
  bool weighted = false;
  bool pre = false;
  bool in_layout = false;
  ElasticRole role = ElasticRole::peer;
  double bandwidth = -1;  // bytes/s; below 0: not known
  uint64_t schema = 0;
  uint64_t attempt = 0;         // grows with each quest for a slot and each holder asked; an older one says nothing any more
  std::vector<PeerId> missing;  // who was waited for in vain in this round of the averaging step before
  friend bool operator==(const Register&, const Register&) = default;
};
// From a coordinator: noted, wait.
struct Pending {
  SlotName slot;
  uint64_t attempt = 0;
  uint64_t steps_opened = 0;  // highest opened averaging step + 1, as FormationView has it; the same in all answers
  uint64_t round_ms = 0;      // how long it may wait for those who are in the round before, given their bandwidths
  friend bool operator==(const Pending&, const Pending&) = default;
};
// From a coordinator, or from a member that was asked for it: this is your group.
struct Descriptor {
  GroupDescriptor group;
  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};
struct DescriptorAck {
  GroupId id;
  friend bool operator==(const DescriptorAck&, const DescriptorAck&) = default;
};
// From a coordinator: nobody else came, or nobody in the group could own chunks.
struct Alone {
  SlotName slot;
  bool no_reducer = false;  // others are there, but all are clients or have no bandwidth
  std::vector<PeerId> missing;
  uint64_t steps_opened = 0;
  friend bool operator==(const Alone&, const Alone&) = default;
};
// From a coordinator: the group was formed since_ms ago, without you.
struct Closed {
  SlotName slot;
  uint64_t steps_opened = 0;
  uint64_t since_ms = 0;
  friend bool operator==(const Closed&, const Closed&) = default;
};
// From a coordinator: there is no room in the group, or it averages something else.
struct Full {
  SlotName slot;
  bool other_schema = false;
  uint64_t steps_opened = 0;
  friend bool operator==(const Full&, const Full&) = default;
};
// From a coordinator: the slot's layout was replaced, by this one.
struct StaleLayout {
  SlotName slot;
  uint64_t steps_opened = 0;
  Layout newer;
  friend bool operator==(const StaleLayout&, const StaleLayout&) = default;
};
// From a coordinator: I do not hold the slot's layout; send it, and register again.
struct NeedLayout {
  SlotName slot;
  friend bool operator==(const NeedLayout&, const NeedLayout&) = default;
};
struct LayoutReply {
  Layout layout;
  friend bool operator==(const LayoutReply&, const LayoutReply&) = default;
};
// To a coordinator: I was late for the averaging step before; expect me for this slot. No registration.
struct Late {
  SlotName slot;
  friend bool operator==(const Late&, const Late&) = default;
};
// To the members of a group: I am listed but take no part.
struct Decline {
  GroupId id;
  SlotName slot;
  friend bool operator==(const Decline&, const Decline&) = default;
};
// To a member: you speak of a group that I do not know.
struct GetDescriptor {
  GroupId id;
  friend bool operator==(const GetDescriptor&, const GetDescriptor&) = default;
};
// To a coordinator: I do not want the slot any more.
struct Withdraw {
  SlotName slot;
  uint64_t attempt = 0;  // the last one made there
  friend bool operator==(const Withdraw&, const Withdraw&) = default;
};

}  // namespace formation

using FormationMessage =
    std::variant<formation::Register, formation::Pending, formation::Descriptor, formation::DescriptorAck, formation::Alone,
                 formation::Closed, formation::Full, formation::StaleLayout, formation::NeedLayout, formation::LayoutReply,
                 formation::Late, formation::Decline, formation::GetDescriptor, formation::Withdraw>;

struct FormationSend {
  PeerId to;  // may be this process: whoever carries messages hands it to this process's own machines
  FormationMessage message;
};

// True: for the GroupCoordinator. False: for the GroupSeeker.
bool for_coordinator(const FormationMessage& message);

// First byte ElasticChannel::formation.
Bytes encode(const FormationMessage& message);
// Corrupt, naming the field, if cut, over a limit, with a peer twice in a list, or with bytes left over.
Result<FormationMessage> decode_formation(ByteView bytes);

}  // namespace unisono
