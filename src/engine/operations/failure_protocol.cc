#include "engine/operations/failure_protocol.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "executor/absence.h"

namespace unisono {
namespace {

Status failed_there(Rank from, uint8_t code, const std::string& text, bool sound) {
  sound &= code > 0 && code <= static_cast<uint8_t>(Code::internal);
  return {sound ? static_cast<Code>(code) : Code::corrupt,
          concat("rank ", from, " aborted the operation: ", sound ? text : std::string("(unreadable reason)"))};
}

// Records that a message arrived for an operation that had all its messages and has succeeded here. Another rank must therefore
// make a different call with the same number. A rank that only sends, such as the root of a broadcast, cannot notice that
// earlier.
void note_surplus(GroupCore& group, Rank from, const FrameHeader& header) {
  if (!group.violation.ok()) return;
  group.violation =
      Status(Code::invalid, concat("calls differ: rank ", from, " sent data of ",
                                   to_string(CallDescriptor{header.descriptor, header.amount}), " for operation ",
                                   header.operation & 0xFFFFFFFF, ", which rank ", group.self, " has completed without it"));
}

// Records that an operation that succeeded here has failed on another member. That member may re-form the group next.
void note_failed_elsewhere(GroupCore& group, Rank from, const FrameHeader& header, ByteView payload) {
  ByteReader reader(payload);
  const auto code = reader.read<uint8_t>();
  const auto text = reader.read_string(failure_text_max);
  // if bytes are left over, this is an inquiry or the text of a call, and not a failure
  if (!reader.done() || !is_in_order(header.operation)) return;
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

void FailureProtocol::describe(const ActiveOperation& active) {
  notify_members(active, std::move(ByteWriter()
                                       .write(static_cast<uint8_t>(Code::invalid))
                                       .write_string(active.operation.call_text())
                                       .write(text_is_a_call))
                             .take());
}

void FailureProtocol::on_failed(ActiveOperation& active, Rank from, ByteView payload, Nanos now) {
  ByteReader reader(payload);
  const auto code = reader.read<uint8_t>();
  const auto text = reader.read_string(call_text_max);
  if (code == static_cast<uint8_t>(Code::late) && reader.left() > 0) return on_inquiry(active, from, reader, now);
  if (code == static_cast<uint8_t>(Code::invalid) && reader.left() > 0) return on_call_text(active, from, text, reader, now);
  note_report(*active.group, from, text, now);
  active.operation.fail(failed_there(from, code, text, reader.done() && text.size() <= failure_text_max), now);
}

void FailureProtocol::on_inquiry(ActiveOperation& active, Rank from, ByteReader& reader, Nanos now) {
  std::vector<uint32_t> waits_for;
  const auto age = static_cast<Nanos>(reader.read<uint64_t>() & INT64_MAX);
  for (auto count = reader.read<uint32_t>(); count > 0 && reader.ok(); --count) waits_for.push_back(reader.read<uint32_t>());
  if (!reader.done()) {
    ++counters_.frames_refused;
    return;
  }
  std::string ranks;
  for (const auto rank : waits_for) ranks += concat(ranks.empty() ? "rank " : ", rank ", rank);
  if (!ranks.empty())
    note_report(*active.group, from, concat(active.operation.label(), " has waited ", age / millisecond, " ms for ", ranks),
                now);
  active.operation.on_late_report(from, age, waits_for, now);
  if (active.operation.take_inquiry()) inquire(active);
}

void FailureProtocol::on_call_text(ActiveOperation& active, Rank from, const std::string& text, ByteReader& reader, Nanos now) {
  const auto mark = reader.read<uint8_t>();
  if (!reader.done() || mark != text_is_a_call) {
    ++counters_.frames_refused;
    return;
  }
  active.operation.on_call_text(from, text, now);
  if (active.operation.take_description()) describe(active);
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
  const FrameHeader header{.kind = FrameKind::failed,
                           .epoch = group.epoch,
                           .group = group.number,
                           .operation = all_operations,
                           .sender = frame_sender(aborted)};
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
  const bool first = group.aborted.empty();  // only the first abort is forwarded, because other ranks keep only the first
  group.aborted.resize(group.world());
  group.aborted[header.sender] = why;
  if (first) notify_abort(group, header.sender, why);
  return header.sender;
}

void FailureProtocol::on_ended(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload, Nanos now) {
  const auto rank = group.rank_of(from);
  if (rank < 0 || header.epoch != group.epoch) return;
  if (header.kind == FrameKind::failed) {
    ByteReader reader(payload);
    static_cast<void>(reader.read<uint8_t>());
    const auto text = reader.read_string(failure_text_max);
    if (reader.done()) note_report(group, static_cast<Rank>(rank), text, now);
  }
  if (group.numbers.has_failed(header.operation)) return;
  if (header.kind == FrameKind::data) note_surplus(group, static_cast<Rank>(rank), header);
  if (header.kind == FrameKind::failed) note_failed_elsewhere(group, static_cast<Rank>(rank), header, payload);
}

void FailureProtocol::note_report(const GroupCore& group, Rank from, const std::string& text, Nanos now) {
  if (const auto peer = group.members[from]; peer != self_peer)
    peers_[peer].report = {.text = text.substr(0, failure_text_max), .at = now};
}

const Status& FailureProtocol::absence(const GroupCore& group, Rank rank) const {
  static const Status present;
  if (rank == group.self) return present;
  const auto& lost = peers_[group.members[rank]].lost;
  return !lost.ok() || group.aborted.empty() ? lost : group.aborted[rank];
}

}  // namespace unisono
