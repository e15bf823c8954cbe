#include "engine/operations/failure_protocol.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "executor/absence.h"

namespace unisono {
namespace {

Status failed_there(Rank from, uint8_t code, const std::string& text, bool sound) {
  sound &= code > 0 && code <= static_cast<uint8_t>(Code::internal);
  return {sound ? static_cast<Code>(code) : Code::corrupt,
          "rank " + std::to_string(from) + " gave up: " + (sound ? text : std::string("(unreadable reason)"))};
}

// An operation that ended well has had all its messages. One more means that a rank called something else under this number,
// which a rank that only sends (the root of a broadcast) cannot notice in time.
void note_surplus(GroupCore& group, Rank from, const FrameHeader& header) {
  if (!group.violation.ok()) return;
  group.violation =
      Status(Code::invalid, "calls differ: rank " + std::to_string(from) + " sent data of " +
                                to_string(CallDescriptor{header.descriptor, header.amount}) + " for operation " +
                                std::to_string(header.operation & 0xFFFFFFFF) + ", which is complete here without it");
}

// The operation ended well here. The member lacks some of its messages and did not wait longer; it may re-form the group next.
void note_failed_elsewhere(GroupCore& group, Rank from, const FrameHeader& header, ByteView payload) {
  ByteReader reader(payload);
  const auto code = reader.read<uint8_t>();
  const auto text = reader.read_string(failure_text_max);
  if (!reader.done() || !is_in_order(header.operation)) return;  // an inquiry is longer
  if (!group.failed_elsewhere_why.empty() && header.operation <= group.failed_elsewhere) return;
  group.failed_elsewhere = header.operation;
  group.failed_elsewhere_why = failed_there(from, code, text, true).message();
}

}  // namespace

Bytes failure_payload(const Status& status) {
  return std::move(
             ByteWriter().write(static_cast<uint8_t>(status.code())).write_string(status.message().substr(0, failure_text_max)))
      .take();
}

void FailureProtocol::notify_failed(const ActiveOperation& active) {
  notify_members(active, failure_payload(active.operation.status()));
}

void FailureProtocol::inquire(const ActiveOperation& active) {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(Code::late)).write_string("its deadline has passed");
  const auto& waits_for = active.operation.waits_for();
  writer.write(static_cast<uint64_t>(active.operation.age()));
  writer.write(static_cast<uint32_t>(waits_for.size()));
  for (const auto rank : waits_for) writer.write(rank);
  notify_members(active, std::move(writer).take());
}

void FailureProtocol::on_failed(ActiveOperation& active, Rank from, ByteView payload, Nanos now) {
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
    active.operation.heard_late(from, age, waits_for, now);
    if (active.operation.take_inquiry()) inquire(active);
    return;
  }
  active.operation.fail(failed_there(from, code, text, reader.done()), now);
}

void FailureProtocol::notify_members(const ActiveOperation& active, Bytes bytes) {
  const auto payload = std::make_shared<Bytes>(std::move(bytes));
  auto header = active.operation.setup().frame;
  header.kind = FrameKind::failed;
  const auto& request = active.operation.setup().request;
  const bool message = is_message(request);
  for (Rank rank = 0; rank < active.group->world(); ++rank) {
    if (!message || rank == request.root) notify(*active.group, rank, header, payload);
  }
}

void FailureProtocol::notify_abort(const GroupCore& group, Rank aborted, const Status& why) {
  const auto payload = std::make_shared<Bytes>(failure_payload(why));
  const FrameHeader header{
      .kind = FrameKind::failed, .epoch = group.epoch, .group = group.number, .operation = all_operations, .sender = aborted};
  for (Rank rank = 0; rank < group.world(); ++rank) {
    if (rank != aborted) notify(group, rank, header, payload);
  }
}

void FailureProtocol::notify(const GroupCore& group, Rank rank, FrameHeader header, const std::shared_ptr<Bytes>& payload) {
  const auto peer = group.members[rank];
  header.payload_bytes = static_cast<uint32_t>(payload->size());
  if (peer != self_peer && peers_[peer].lost.ok()) control_.send(peer, header, payload);
}

std::optional<Rank> FailureProtocol::on_abort(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload) {
  const auto rank = group.rank_of(from);
  ByteReader reader(payload);
  const auto code = reader.read<uint8_t>();
  const auto text = reader.read_string(failure_text_max);
  const bool sound = header.kind == FrameKind::failed && reader.done() && code == static_cast<uint8_t>(Code::unavailable);
  if (!sound || header.epoch != group.epoch || rank < 0 || header.sender >= group.world() || header.sender == group.self) {
    ++counters_.frames_refused;
    return std::nullopt;
  }
  const Status why(Code::unavailable, text);
  if (group.first_abort.ok()) group.first_abort = Status(why.code(), describe_absence(header.sender, why));
  if (static_cast<Rank>(rank) != header.sender) return std::nullopt;
  const bool first = group.aborted.empty();  // the others keep the first only, too
  group.aborted.resize(group.world());
  group.aborted[header.sender] = why;
  if (first) notify_abort(group, header.sender, why);
  return header.sender;
}

void FailureProtocol::on_ended(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload) {
  const auto rank = group.rank_of(from);
  if (rank < 0 || header.epoch != group.epoch || group.numbers.has_failed(header.operation)) return;
  if (header.kind == FrameKind::data) note_surplus(group, static_cast<Rank>(rank), header);
  if (header.kind == FrameKind::failed) note_failed_elsewhere(group, static_cast<Rank>(rank), header, payload);
}

const Status& FailureProtocol::absence(const GroupCore& group, Rank rank) const {
  static const Status present;
  if (rank == group.self) return present;
  const auto& lost = peers_[group.members[rank]].lost;
  return !lost.ok() || group.aborted.empty() ? lost : group.aborted[rank];
}

}  // namespace unisono
