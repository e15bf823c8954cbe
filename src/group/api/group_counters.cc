// The functions of Group that read this process's record (its counters and events) of the group.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error_text.h"
#include "group/lifecycle/group_state.h"
#include "record/snapshot.h"
#include "unisono/group.h"

namespace unisono {
namespace {

// Copies the record. This happens under the mutex, so no operation can change the record meanwhile.
Bytes record_of(const internal::GroupState& group) {
  return group.runtime->locked([&](const GuardedState& guarded) {
    const bool has_record =
        group.core != nullptr && group.formation == guarded.members.formation() && group.core->record != nullptr;
    const auto bytes = has_record ? group.core->record->bytes() : ByteView();
    return Bytes(bytes.begin(), bytes.end());
  });
}

Status write_file(const std::string& path, const Bytes& bytes) {
  const auto failed = [&](int error) {
    return Status(Code::unavailable, "dump_record: " + path + ": " + std::strerror(error) + descriptor_limit_text(error));
  };
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return failed(errno);
  int error = 0;
  for (size_t at = 0; at < bytes.size() && error == 0;) {
    const auto written = ::write(fd, bytes.data() + at, bytes.size() - at);
    if (written >= 0) at += static_cast<size_t>(written);
    else if (errno != EINTR) error = errno;
  }
  if (::close(fd) != 0 && error == 0) error = errno;
  return error == 0 ? Status() : failed(error);
}

}  // namespace

Counters Group::counters() const {
  Counters counters;
  if (state_->runtime->process().forked()) return counters;
  const auto bytes = record_of(*state_);
  if (bytes.empty()) return counters;
  const auto record = record::parse(bytes);
  if (!record) return counters;
  counters.begun = record->begun;
  counters.ended = record->ended;
  counters.note = record->note;
  for (const auto& c : record->collectives) {
    counters.collectives.push_back({.collective = name(c.collective),
                                    .operations = c.ended,
                                    .bytes = c.bytes,
                                    .total_us = static_cast<int64_t>(c.total_ns) / microsecond,
                                    .late = c.late,
                                    .failed = c.failed});
  }
  for (uint32_t rank = 0; rank < record->world; ++rank) {
    const auto& l = record->links[rank];
    counters.links.push_back({.rank = rank,
                              .transport = l.transport,
                              .place = l.place,
                              .sent_bytes = l.sent_bytes,
                              .sent_messages = l.sent_messages,
                              .received_bytes = l.received_bytes,
                              .received_messages = l.received_messages,
                              .waited_us = static_cast<int64_t>(l.waited_ns) / microsecond,
                              .waited_for = l.waited,
                              .stalls = l.stalls,
                              .lost = l.lost_at != 0});
  }
  return counters;
}

Status Group::dump_record(const std::string& path) const {
  if (auto status = state_->runtime->process().check(); !status.ok())
    return {status.code(), "dump_record: " + status.message()};
  const auto bytes = record_of(*state_);
  if (!bytes.empty()) return write_file(path, bytes);
  return {Code::unavailable,
          "dump_record: this group keeps no record: it has ended, UNISONO_RECORD is 0, or it is one of too many sub-groups"};
}

}  // namespace unisono
