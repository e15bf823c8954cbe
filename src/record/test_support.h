// Makes records for tests, as a group of three ranks would write them.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "record/recorder.h"
#include "record/snapshot.h"

namespace unisono::record {

inline constexpr Nanos start = 20 * second;  // when the first operation starts

inline Identity identity_of_three() {
  return {.run = 0x1234,
          .group = 1,
          .epoch = 1,
          .rank = 1,
          .host = "a",
          .pid = 42,
          .process_started = 7,
          .wall_start = 1'000 * second,
          .monotonic_start = 10 * second,
          .links = {{"shm", "host a, pid 41"}, {"self", "host a, pid 42"}, {"tcp", "host b, pid 43"}}};
}

inline std::unique_ptr<Recorder> recorder_of_three(const Placement& placement = {}) {
  auto made = Recorder::make(identity_of_three(), placement);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(*made);
}

inline Kind all_reduce_kind() {
  return {.collective = 0, .dtype = 0, .reduce_op = 0, .schedule = static_cast<uint8_t>(ScheduleKind::one_shot), .root = 0};
}

// An operation that took one microsecond.
inline Entry entry_of(uint64_t number, Nanos started, Code code = Code::ok) {
  return {.number = number,
          .bytes = 4000,
          .started = started,
          .first_send = started + 100,
          .last_receive = started + 900,
          .ended = started + microsecond,
          .kind = all_reduce_kind(),
          .code = static_cast<uint8_t>(code),
          .numbering = 0,
          .reserved = 0,
          .pending = 2};
}

inline Snapshot snapshot_of(const Recorder& recorder) {
  auto parsed = parse(recorder.bytes());
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  return parsed.ok() ? *parsed : Snapshot{};
}

}  // namespace unisono::record
