// Makes messages of elastic runs from a fuzzer's choices.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "elastic/formation/group_seeker.h"
#include "elastic/formation/line_slot.h"
#include "elastic/state/state_messages.h"
#include "elastic_input.h"
#include "wire/digest.h"

namespace unisono::elastic_fuzz {

namespace {

PeerClaim make_claim(Input& input) {
  PeerClaim claim;
  auto& entry = claim.entry;
  entry.id = input.any_peer();
  if (entry.id == PeerId{}) entry.id = peer_id(0);
  entry.incarnation = input.number_below(uint64_t{incarnation_max} + 1);
  entry.status = static_cast<PeerStatus>(input.below(5));
  if (is_gone(entry.status)) claim.gone_ms = static_cast<uint32_t>(input.number());
  claim.proven = entry.status == PeerStatus::dead && input.flag();
  claim.brief = input.flag();
  if (claim.brief) return claim;
  auto& facts = entry.facts;
  facts.counter = input.number();
  facts.name = "p";
  for (uint32_t i = input.below(3); i > 0; --i) facts.addresses.push_back(address_of(input.below(peers_known)));
  facts.role = static_cast<ElasticRole>(input.below(3));
  facts.schema_hash = input.below(2);
  facts.bandwidth = input.real();
  facts.registered_step = static_cast<int64_t>(input.number() % step_number_max) - 1;
  facts.finished_step = static_cast<int64_t>(input.number() % step_number_max) - 1;
  facts.layout_version = input.number() % step_number_max;
  facts.state_digest = input.number();
  return claim;
}

std::vector<uint64_t> make_parts(Input& input) {
  std::vector<uint64_t> parts(input.flag() ? size_t{1} << input.below(9) : 0);
  for (size_t i = 0; i < std::min<size_t>(parts.size(), 4); ++i) parts[i] = input.number();
  return parts;
}

RosterBody make_roster_body(Input& input, const Layout* known) {
  switch (input.below(9)) {
    case 0: return RosterHello{.run_id = input.flag() ? "other" : "run", .sum = input.number(), .parts = make_parts(input)};
    case 1: return RosterWelcome{.sum = input.number(), .last = input.flag(), .parts = make_parts(input)};
    case 2: return RosterRefused{.reason = static_cast<RefusalReason>(1 + input.below(3)), .text = "no"};
    case 3: return RosterProbe{.origin = input.any_peer(), .sequence = static_cast<uint32_t>(input.number())};
    case 4:
      return RosterAck{
          .origin = input.any_peer(), .target = input.any_peer(), .sequence = static_cast<uint32_t>(input.number())};
    case 5: return RosterProbeRequest{.target = input.any_peer(), .sequence = static_cast<uint32_t>(input.number())};
    case 6: return RosterGossip{.answer = input.flag()};
    case 7: return LayoutPull{.version = input.number()};
    default: return LayoutPush{std::make_shared<const Layout>(known != nullptr && input.flag() ? *known : make_layout(input))};
  }
}

SlotName make_slot(Input& input, const Layout& known) {
  const auto slot = slot_in(known, input.peer(), input.number() % steps_max, input.number_below(rounds_max));
  if (input.below(8) != 7) return slot;
  return {input.number() % steps_max, input.number(), slot.step, slot.round, input.number_below(rounds_max)};
}

formation::Register make_register(Input& input, const Layout& known) {
  const auto slot = make_slot(input, known);
  const auto position = position_in(known, input.peer(), slot.round);
  return {.slot = slot,
          .cell = position.cell,
          .position = position.position,
          .weighted = input.flag(),
          .pre = input.flag(),
          .in_layout = position.in_layout,
          .role = static_cast<ElasticRole>(input.below(3)),
          .bandwidth = input.real(),
          .schema = input.below(2),
          .attempt = input.number(),
          .missing = input.peers()};
}

// Most members have fewer than 4 chunks, because the vectors of the tests have three chunks.
GroupDescriptor make_descriptor(Input& input, const Layout& known) {
  GroupDescriptor group{
      .id = {input.below(4), 9}, .slot = make_slot(input, known), .members = {}, .chunk_counts = {}, .missing = input.peers()};
  group.line_complete = input.flag();
  group.highest_opened = input.number() % steps_max;
  group.schema = input.below(8) == 7 ? 1 : 0;
  auto ids = input.peers();
  if (ids.size() < 2) ids = {peer_id(0), peer_id(1)};
  for (const auto& id : ids) {
    GroupMember member{.id = id, .position = input.number_below(256), .weighted = input.flag(), .in_layout = input.flag()};
    member.role = static_cast<ElasticRole>(input.below(8) % 3);
    member.bandwidth = input.real();
    group.members.push_back(member);
    const bool client = member.role == ElasticRole::client;
    const auto owned = input.byte();
    group.chunk_counts.push_back(client ? 0 : owned == 0xff ? group_chunks_max : owned % 4);
  }
  return group;
}

// Sets all bytes of the payload, which begins at `head`, to one value. An encoded payload then has a wrong beginning, and must
// be refused.
void fill(SharedBuffer& message, size_t head, uint8_t value) {
  if (message.size() > head) std::memset(message.data() + head, value, message.size() - head);
}

SharedBuffer make_result(Input& input, const RoundFormat& format, uint32_t chunk) {
  ChunkResult head{.chunk = chunk,
                   .author = input.below(format.members),
                   .contributors = RankSet(input.byte() & ((1u << format.members) - 1)),
                   .total = std::min(std::abs(input.real()), contribution_weight_max * round_members_max),
                   .variance = input.real(),
                   .full = input.flag()};
  auto message = result_message(format, head);
  fill(message, result_head_bytes, input.byte());
  if (!format.result.is_plain() && !head.is_void()) {
    const std::vector<float> values(format.table.count(chunk), static_cast<float>(input.real()));
    kernels::BlockCounts counts;
    encode({.codec = format.result,
            .elements = values.data(),
            .count = values.size(),
            .message = message.data() + result_head_bytes},
           counts);
  }
  head.digest = digest64(result_elements(message)) + (input.byte() == 0xff ? 1 : 0);
  write_result_head(format, head, message);
  return message;
}

SharedBuffer make_contribution(Input& input, const RoundFormat& format, uint32_t chunk) {
  const Contribution head{.chunk = chunk,
                          .author = input.below(format.members),
                          .weight = std::min(std::abs(input.real()), contribution_weight_max),
                          .full = input.flag(),
                          .sharers = 1 + input.number_below(round_members_max)};
  auto message = contribution_message(format, head);
  fill(message, contribution_head_bytes, input.byte());
  if (!format.contribute.is_plain() && head.weight > 0) {
    const std::vector<float> values(format.table.count(chunk), static_cast<float>(input.real()));
    kernels::BlockCounts counts;
    encode({.codec = format.contribute,
            .elements = values.data(),
            .count = values.size(),
            .message = message.data() + contribution_head_bytes},
           counts);
  }
  return message;
}

ChunkBits make_bits(Input& input, size_t chunks) {
  ChunkBits bits(chunks);
  const auto mask = input.byte();
  for (size_t i = 0; i < chunks; ++i) {
    if ((mask >> i % 8 & 1) != 0) bits.set(i);
  }
  return bits;
}

}  // namespace

Layout make_layout(Input& input) {
  auto peers = input.peers();
  if (peers.empty()) peers.push_back(peer_id(0));
  const LayoutRequest request{.run = "run",
                              .version = 1 + input.number() % 1000,
                              .first_step = input.number() % steps_max,
                              .grid = static_cast<GridKind>(input.below(3)),
                              .max_group = 4};
  auto made = unisono::make_layout(request, peers);
  UNISONO_CHECK(made.ok());
  return std::move(*made);
}

RosterMessage make_roster_message(Input& input, uint64_t run, const Layout* known) {
  RosterMessage message{.run = input.byte() == 0xff ? 1 : run,
                        .steps_opened = input.number() % step_number_max,
                        .body = make_roster_body(input, known),
                        .claims = {}};
  message.layout_version = known != nullptr && input.flag() ? known->version : input.number() % step_number_max;
  message.layout_digest = known != nullptr && input.flag() ? known->digest : input.number();
  for (uint32_t i = input.below(5); i > 0; --i) message.claims.push_back(make_claim(input));
  return message;
}

FormationMessage make_formation(Input& input, const Layout& known) {
  using namespace formation;
  const auto opened = [&] { return input.number() % steps_max; };
  switch (input.below(14)) {
    case 0: return make_register(input, known);
    case 1: return Pending{make_slot(input, known), input.number(), opened(), input.number()};
    case 2: return Descriptor{make_descriptor(input, known)};
    case 3: return DescriptorAck{{input.number(), 9}};
    case 4: return Alone{make_slot(input, known), input.flag(), input.peers(), opened()};
    case 5: return Closed{make_slot(input, known), opened(), input.number()};
    case 6: return Full{make_slot(input, known), input.flag(), opened()};
    case 7: return StaleLayout{make_slot(input, known), opened(), make_layout(input)};
    case 8: return NeedLayout{make_slot(input, known)};
    case 9: return LayoutReply{make_layout(input)};
    case 10: return Late{make_slot(input, known)};
    case 11: return Decline{{input.below(4), 9}, make_slot(input, known)};
    case 12: return GetDescriptor{{input.below(4), 9}};
    default: return Withdraw{make_slot(input, known), input.number()};
  }
}

VerdictMessage make_verdict(Input& input, size_t chunks) {
  const auto kind = input.below(6);
  const auto ballot = static_cast<uint32_t>(input.number());
  switch (kind) {
    case 0: return VerdictHave{make_bits(input, chunks)};
    case 1: return VerdictPropose{ballot, make_bits(input, chunks)};
    case 2: return VerdictAccept{ballot, make_bits(input, chunks)};
    case 3: return VerdictPrepare{ballot};
    case 4: {
      VerdictPromise promise{.ballot = ballot, .accepted = std::nullopt, .have = make_bits(input, chunks)};
      if (input.flag())
        promise.accepted = VerdictAccept{std::min(ballot, static_cast<uint32_t>(input.number())), make_bits(input, chunks)};
      return promise;
    }
    default: return VerdictDecided{make_bits(input, chunks)};
  }
}

SharedBuffer make_round_message(Input& input, const RoundFormat& format) {
  const auto kind = input.below(8);
  const auto chunk = format.table.chunks() == 0 ? 0 : input.number_below(format.table.chunks());
  switch (kind) {
    case 0:
    case 1: return format.table.chunks() == 0 ? SharedBuffer() : make_contribution(input, format, chunk);
    case 2: return format.table.chunks() == 0 ? SharedBuffer() : make_result(input, format, chunk);
    case 3: return round_message(format.group, KeepAlive{input.flag()});
    case 4: return round_message(format.group, Abandon{});
    case 5: return round_message(format.group, Fetch{chunk});
    case 6: return round_message(format.group, FetchMiss{chunk});
    default: return round_message(format.group, make_verdict(input, format.table.chunks()));
  }
}

SharedBuffer make_state_message(Input& input, StateCopy& known) {
  const bool held = !known.empty();
  if (held) known.hold();
  const auto state = input.byte() >= 0xf0 ? input.number() : known.state_digest();
  StateMessage message;
  switch (input.below(8)) {
    case 0: message = StateAsk{.schema = input.below(2), .wanted = input.flag() ? state : 0}; break;
    case 1: {
      StateWant want{.state = state, .parts = {}};
      for (uint32_t i = input.below(state_window_max + 1); i > 0; --i)
        want.parts.push_back(static_cast<uint32_t>(input.number()));
      message = std::move(want);
      break;
    }
    case 2: message = StateDone{}; break;
    case 3: {
      StateOffer offer;
      if (held) offer.manifest = known.manifest();
      if (input.below(4) == 3) offer.manifest.step = static_cast<int64_t>(input.number() & 0xffff);
      if (input.below(8) == 7) offer.manifest.vector_bytes = input.number();
      if (input.below(8) == 7) offer.manifest.chunk_digests.resize(input.below(8));
      message = std::move(offer);
      break;
    }
    case 4: message = StateBusy{.retry_after_ms = static_cast<uint32_t>(input.number())}; break;
    case 5: message = StateRefused{static_cast<StateRefusal>(1 + input.below(4))}; break;
    case 6: message = StateAlive{}; break;
    default: message = StatePart{.state = state, .part = static_cast<uint32_t>(input.number()), .bytes = input.bytes()};
  }
  auto bytes = encode(message);
  const auto* part = std::get_if<StatePart>(&message);
  if (part != nullptr && held && part->part < known.manifest().part_count() && input.below(4) != 3) {
    bytes = part_message(part->state, part->part, known.part(part->part)).whole();
  }
  if (held) known.release();
  return bytes;
}

}  // namespace unisono::elastic_fuzz
