// The checked contents of a record at one moment. Tools print snapshots and compare them.
//
// Readers trust nothing in a record. They check sizes against each other before they read anything else. Text is made
// printable. In a snapshot, ranks, collectives and codes are in range, and times are not negative. If a record has no usable
// contents, it is refused as a whole (Code::corrupt). If a single entry is malformed, this entry is left out and counted in
// `damaged`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "record/layout.h"
#include "schedules/schedule.h"
#include "unisono/event.h"
#include "unisono/status.h"
#include "unisono/tensor.h"
#include "wire/peer_id.h"

namespace unisono::record {

// The arguments of a call. All ranks must make the same call, so they must agree on these fields.
struct CallKind {
  unisono::Collective collective = unisono::Collective::all_reduce;
  DType dtype = DType::f32;
  ReduceOp reduce_op = ReduceOp::sum;
  ScheduleKind schedule = ScheduleKind::automatic;
  uint32_t root = 0;
  friend bool operator==(const CallKind&, const CallKind&) = default;
};

struct CallName {
  uint64_t number = 0;
  Numbering numbering = Numbering::by_order;
  CallKind kind = {};
  uint64_t bytes = 0;
  // Examples: "all_reduce 17", "all_reduce id 5", "send 3 to rank 2".
  std::string to_string() const;
  // Returns the call that the other ranks must make, too. Example: "all_reduce(f32 sum, 4000 bytes)".
  std::string call() const;
};

struct EndedOperation {
  CallName name = {};
  Nanos started = 0, first_send = 0, last_receive = 0, ended = 0;  // 0: this event did not happen
  Code code = Code::ok;
  int32_t pending = -1;  // the rank for which the operation waited longest; -1: it waited for none
};

struct RunningOperation {
  CallName name = {};
  Nanos started = 0, progress = 0;
  uint64_t sent_bytes = 0, sent_total = 0, received_bytes = 0, received_total = 0;
  Phase phase = Phase::begun;
  uint32_t round = 0;
  std::vector<Rank> pending = {};  // the ranks for which the operation waits, but at most pending_max of them
  uint32_t pending_count = 0;      // the number of ranks for which the operation waits, including those not in `pending`
};

struct CollectiveCount {
  unisono::Collective collective = unisono::Collective::all_reduce;
  uint64_t ended = 0, bytes = 0, total_ns = 0, late = 0, failed = 0;
  std::array<uint64_t, bucket_count> buckets{};
};

struct LinkCount {
  std::string transport = {}, place = {};
  uint64_t sent_bytes = 0, sent_messages = 0, received_bytes = 0, received_messages = 0, waited_ns = 0, waited = 0, stalls = 0;
  Nanos lost_at = 0;
};

struct KeptEvent {
  Nanos at = 0;
  EventKind kind = EventKind::joined;
  int32_t rank = -1;  // the rank that the event is about; -1: it is about no single rank
  std::string text = {};
};

struct Snapshot {
  uint64_t run = 0;
  uint32_t group = 0, epoch = 0, world = 0;
  Rank rank = 0;
  int32_t pid = 0;
  uint64_t process_started = 0;
  Nanos wall_start = 0, monotonic_start = 0;
  std::string host, note;
  uint64_t begun = 0, ended = 0;
  Nanos left_at = 0;
  Code left_code = Code::ok;
  std::vector<RunningOperation> running;
  std::vector<CollectiveCount> collectives;  // only collectives that were called at least once
  std::vector<LinkCount> links;              // one per rank, in rank order
  uint64_t event_count = 0;                  // number of events so far
  std::vector<KeptEvent> events;             // the last of them, the oldest first
  std::vector<EndedOperation> operations;    // the operations that ended last, the oldest first
  uint64_t damaged = 0;                      // number of malformed entries; they are left out above

  // Converts a time of this record to nanoseconds since 1970.
  Nanos wall(Nanos monotonic) const { return wall_start + (monotonic - monotonic_start); }
};

// Parses a whole record. Leaves out the ring entries whose index is below `overwritten`, because they may have changed while
// the bytes were read.
Result<Snapshot> parse(ByteView bytes, uint64_t overwritten = 0);
// Reads a record from a file, or from the memory of a process that is still writing it. The descriptor must support pread().
// Returns Code::unavailable if reading fails, and Code::corrupt if the contents are not a record.
Result<Snapshot> read(int fd);

}  // namespace unisono::record
