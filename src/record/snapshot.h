// The checked contents of a record at one moment: a value that tools print and compare.
//
// Readers trust nothing. Sizes are checked against each other before anything is read, text is made printable, numbers that
// name something (a rank, a collective, a code) are in range, times are not negative. A record of which nothing is usable is
// refused as a whole (corrupt). A single bad entry is left out and counted (damaged).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "record/layout.h"
#include "schedules/schedule.h"
#include "unisono/status.h"
#include "unisono/tensor.h"
#include "wire/peer_id.h"

namespace unisono::record {

// A call, as far as ranks must agree on it.
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
  // "all_reduce 17", "all_reduce id 5", "send 3 to rank 2"
  std::string to_string() const;
  // "all_reduce(f32 sum, 4000 bytes)": what other ranks must call, too.
  std::string call() const;
};

struct EndedOperation {
  CallName name = {};
  Nanos started = 0, first_send = 0, last_receive = 0, ended = 0;  // 0: never
  Code code = Code::ok;
  int32_t pending = -1;  // the rank that was waited for longest
};

struct RunningOperation {
  CallName name = {};
  Nanos started = 0, progress = 0;
  uint64_t sent_bytes = 0, sent_total = 0, received_bytes = 0, received_total = 0;
  Phase phase = Phase::begun;
  uint32_t round = 0;
  std::vector<Rank> pending = {};  // the first of them
  uint32_t pending_count = 0;      // all of them
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
  std::vector<CollectiveCount> collectives;  // those that were called
  std::vector<LinkCount> links;              // by rank
  std::vector<EndedOperation> operations;    // the last ones, oldest first
  uint64_t damaged = 0;                      // entries left out

  // A time of this record as ns since 1970.
  Nanos wall(Nanos monotonic) const { return wall_start + (monotonic - monotonic_start); }
};

// The bytes of a whole record. `overwritten`: entries before this number may have changed while the bytes were read.
Result<Snapshot> parse(ByteView bytes, uint64_t overwritten = 0);
// From a descriptor that can be read at any place: a file, or the memory of a process that goes on writing meanwhile.
// unavailable: it cannot be read. corrupt: it is no record.
Result<Snapshot> read(int fd);

}  // namespace unisono::record
