// What ends before its time: which members are told, what is made of what they tell, and of links that end.
#include <algorithm>

#include "engine/engine_active.h"
#include "executor/absence.h"

namespace unisono {

void Engine::abort_group(GroupCore& group, const Status& why, Nanos now) {
  now_ = now;
  group.ended = why;
  // Before anything else: with this one message all ends at a member that needs something of this rank, whatever else it sees
  // meanwhile.
  tell_abort(group, group.self, why);
  for (auto* active : active_) {
    if (active->group == &group) active->operation.fail_and_tell(why, now);
  }
  any_source_.end([&](const AnySourceReceive& receive) { return receive.group == &group ? why : Status(); });
  settle_needed_ = true;
  settle_all();
  if (group.lossy != nullptr) group.lossy->fail_all(why, now);
}

void Engine::tell_abort(const GroupCore& group, Rank aborted, const Status& why) {
  const auto payload = std::make_shared<Bytes>(failure_payload(why));
  const FrameHeader header{
      .kind = FrameKind::failed, .epoch = group.epoch, .group = group.number, .operation = all_operations, .sender = aborted};
  for (Rank rank = 0; rank < group.world(); ++rank) {
    if (rank != aborted) tell_member(group, rank, header, payload);
  }
}

Bytes failure_payload(const Status& status) {
  return std::move(
             ByteWriter().write(static_cast<uint8_t>(status.code())).write_string(status.message().substr(0, failure_text_max)))
      .take();
}

// The operation is late here, and wants to know whom the others wait for.
void Engine::inquire(Active& active) {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(Code::late)).write_string("its deadline has passed");
  const auto& waits_for = active.operation.waits_for();
  writer.write(static_cast<uint64_t>(active.operation.age()));
  writer.write(static_cast<uint32_t>(waits_for.size()));
  for (const auto rank : waits_for) writer.write(rank);
  tell_members(active, std::move(writer).take());
}

void Engine::tell_members(const Active& active, Bytes bytes) {
  const auto payload = std::make_shared<Bytes>(std::move(bytes));
  auto header = active.operation.setup().frame;
  header.kind = FrameKind::failed;
  const auto& request = active.operation.setup().request;
  const bool message = request.collective == Collective::send || request.collective == Collective::recv;
  for (Rank rank = 0; rank < active.group->world(); ++rank) {
    if (!message || rank == request.root) tell_member(*active.group, rank, header, payload);
  }
}

void Engine::tell_member(const GroupCore& group, Rank rank, FrameHeader header, const std::shared_ptr<Bytes>& payload) {
  const auto peer = group.members[rank];
  header.payload_bytes = static_cast<uint32_t>(payload->size());
  if (peer != self_peer && peers_[peer].lost.ok()) send_owned(peer, header, payload);
}

static Status gave_up(Rank from, uint8_t code, const std::string& text, bool sound) {
  sound &= code > 0 && code <= static_cast<uint8_t>(Code::internal);
  return {sound ? static_cast<Code>(code) : Code::corrupt,
          "rank " + std::to_string(from) + " gave up: " + (sound ? text : std::string("(unreadable reason)"))};
}

void Engine::received_failure(Active& active, Rank from, ByteView payload) {
  ByteReader reader(payload);
  const auto code = reader.read<uint8_t>();
  const auto text = reader.read_string(failure_text_max);
  if (code == static_cast<uint8_t>(Code::late) && reader.left() > 0) {
    std::vector<uint32_t> waits_for;
    const auto age = static_cast<Nanos>(reader.read<uint64_t>() & INT64_MAX);
    for (auto count = reader.read<uint32_t>(); count > 0 && reader.ok(); --count) waits_for.push_back(reader.read<uint32_t>());
    if (!reader.done()) {
      ++counters_.frames_refused;
      return;
    }
    active.operation.heard_late(from, age, waits_for, now_);
    if (active.operation.take_inquiry()) inquire(active);
    return;
  }
  active.operation.fail(gave_up(from, code, text, reader.done()), now_);
}

// An operation that ended well has had all its messages. One more means that a rank called something else under this number,
// which a rank that only sends (the root of a broadcast) cannot notice in time.
static void note_surplus(GroupCore& group, Rank from, const FrameHeader& header) {
  if (!group.violation.ok()) return;
  group.violation =
      Status(Code::invalid, "calls differ: rank " + std::to_string(from) + " sent data of " +
                                to_string(CallDescriptor{header.descriptor, header.amount}) + " for operation " +
                                std::to_string(header.operation & 0xFFFFFFFF) + ", which is complete here without it");
}

// It ended well here, and a member without all its messages did not wait any longer: it may re-form the group next.
static void note_given_up(GroupCore& group, Rank from, const FrameHeader& header, ByteView payload) {
  ByteReader reader(payload);
  const auto code = reader.read<uint8_t>();
  const auto text = reader.read_string(failure_text_max);
  if (!reader.done() || !is_in_order(header.operation)) return;  // or it only asks
  if (!group.given_up_why.empty() && header.operation <= group.given_up) return;
  group.given_up = header.operation;
  group.given_up_why = gave_up(from, code, text, true).message();
}

void Engine::heard_of_ended(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload) {
  const auto rank = group.rank_of(from);
  if (rank < 0 || header.epoch != group.epoch) return;
  if (std::ranges::find(group.failed, header.operation) != group.failed.end()) return;  // what is late for it is no surprise
  if (header.kind == FrameKind::data) note_surplus(group, static_cast<Rank>(rank), header);
  if (header.kind == FrameKind::failed) note_given_up(group, static_cast<Rank>(rank), header, payload);
}

// Who hears of an abort from the rank itself tells the others: if it leaves for that, they know why when its links end. Nothing
// ends by such hearsay, as what the rank sent before may still be on its way.
void Engine::received_abort(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload) {
  const auto rank = group.rank_of(from);
  ByteReader reader(payload);
  const auto code = reader.read<uint8_t>();
  const auto text = reader.read_string(failure_text_max);
  const bool sound = header.kind == FrameKind::failed && reader.done() && code == static_cast<uint8_t>(Code::unavailable);
  if (!sound || header.epoch != group.epoch || rank < 0 || header.sender >= group.world() || header.sender == group.self) {
    ++counters_.frames_refused;
    return;
  }
  const Status why(Code::unavailable, text);
  if (group.first_abort.ok()) group.first_abort = Status(why.code(), describe_absence(header.sender, why));
  if (static_cast<Rank>(rank) != header.sender) return;
  const bool first = group.gave_up.empty();  // the others keep the first only, too
  group.gave_up.resize(group.world());
  group.gave_up[header.sender] = why;
  if (first) tell_abort(group, header.sender, why);
  absent(group, header.sender);
}

const Status& Engine::absence(const GroupCore& group, Rank rank) const {
  static const Status present;
  if (rank == group.self) return present;
  const auto& lost = peers_[group.members[rank]].lost;
  return !lost.ok() || group.gave_up.empty() ? lost : group.gave_up[rank];
}

void Engine::absent(GroupCore& group, Rank rank) {
  const auto& why = absence(group, rank);
  for (auto* active : active_) {
    if (active->group == &group)
      attempt(active->operation,
              [&] { active->operation.peer_lost(rank, why, active->is_message() ? Status() : group.first_abort, now_); });
  }
  if (group.lossy != nullptr)
    group.lossy->peer_lost(rank, group.first_abort.ok() || gave_up(why) ? why : group.first_abort, now_);
  if (!any_source_.empty()) {
    match_any_source(now_);  // what it sent before it went is there
    end_any_source(now_);
  }
  settle_needed_ = true;
}

void Engine::lost(PeerIndex peer, const Status& why) try {
  if (peer >= peers_.size() || !peers_[peer].lost.ok()) return;
  peers_[peer].lost = why.ok() ? Status(Code::peer_lost, peers_[peer].label + ": link closed") : why;
  peers_[peer].waiting.clear();
  for (auto& [number, group] : groups_) {
    if (const auto rank = group->rank_of(peer); rank >= 0) absent(*group, static_cast<Rank>(rank));
  }
  record_lost(peer, now_);
  settle_needed_ = true;
  if (lost_) lost_(peer, peers_[peer].lost);
} catch (const std::bad_alloc&) {
  must_give_up_ = true;
}

}  // namespace unisono
