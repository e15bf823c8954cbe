// Tests that readers read exactly what the recorder wrote. Also tests that a group works without a record if memory or disk
// space is missing.
#include "record/recorder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/concat.h"
#include "record/process.h"
#include "record/test_support.h"
#include "testing/temporary_folder.h"

namespace unisono::record {
namespace {

TEST(Recorder, identifies_its_writer) {
  const auto record = snapshot_of(*recorder_of_three());
  EXPECT_EQ(record.run, 0x1234u);
  EXPECT_EQ(record.rank, 1u);
  EXPECT_EQ(record.world, 3u);
  EXPECT_EQ(record.host, "a");
  EXPECT_EQ(record.pid, 42);
  EXPECT_EQ(record.note, "");
  ASSERT_EQ(record.links.size(), 3u);
  EXPECT_EQ(record.links[2].transport, "tcp");
  EXPECT_EQ(record.links[2].place, "host b, pid 43");
  EXPECT_EQ(record.wall(12 * second), 1'002 * second);
  EXPECT_TRUE(record.operations.empty() && record.running.empty() && record.collectives.empty());
}

TEST(Recorder, keeps_an_operation_with_its_outcome_and_counts_it) {
  const auto recorder = recorder_of_three();
  recorder->begun();
  recorder->ended(
      entry_of(17, start, Code::late), 900,
      std::vector<Moved>{{.rank = 2, .sent_bytes = 4064, .sent_messages = 1, .received_bytes = 128, .received_messages = 2}});
  const auto record = snapshot_of(*recorder);
  EXPECT_EQ(record.begun, 1u);
  EXPECT_EQ(record.ended, 1u);
  ASSERT_EQ(record.operations.size(), 1u);
  const auto& operation = record.operations[0];
  EXPECT_EQ(operation.name.to_string(), "all_reduce 17");
  EXPECT_EQ(operation.name.call(), "all_reduce(f32 sum, 4000 bytes)");
  EXPECT_EQ(operation.code, Code::late);
  EXPECT_EQ(operation.pending, 2);
  EXPECT_EQ(operation.ended - operation.started, microsecond);
  ASSERT_EQ(record.collectives.size(), 1u);
  EXPECT_EQ(record.collectives[0].late, 1u);
  EXPECT_EQ(record.collectives[0].failed, 1u);
  EXPECT_EQ(record.collectives[0].bytes, 4000u);
  EXPECT_EQ(record.collectives[0].buckets[bucket_of(microsecond)], 1u);
  EXPECT_EQ(record.links[2].sent_bytes, 4064u);
  EXPECT_EQ(record.links[2].received_messages, 2u);
  EXPECT_EQ(record.links[2].waited_ns, 900u);
  EXPECT_EQ(record.links[2].waited, 1u);
}

TEST(Recorder, fast_path_operations_are_counted_whenever_a_record_is_read) {
  const auto recorder = recorder_of_three();
  for (uint64_t i = 1; i <= 3 * uncounted_max + 5; ++i) {
    const auto at = start + static_cast<Nanos>(i) * 1000;
    recorder->fast_path_begun(i, 1024, all_reduce_kind(), at);
    EXPECT_EQ(snapshot_of(*recorder).begun, i);
    recorder->fast_path_ended(i % 2 == 0 ? 0 : 2, at + 500);
    const auto record = snapshot_of(*recorder);
    ASSERT_EQ(record.ended, i);
    ASSERT_EQ(record.collectives.size(), 1u);
    EXPECT_EQ(record.collectives[0].ended, i);
    EXPECT_EQ(record.collectives[0].bytes, i * 1024);
    EXPECT_EQ(record.collectives[0].total_ns, i * 500);
    EXPECT_EQ(record.collectives[0].buckets[bucket_of(500)], i);
    EXPECT_EQ(record.links[0].sent_bytes, i * (1024 + 64));
    EXPECT_EQ(record.links[2].received_messages, i);
    EXPECT_EQ(record.links[1].sent_messages, 0u) << "nothing goes to oneself";
    EXPECT_EQ(record.links[0].waited, i / 2);
    EXPECT_EQ(record.operations.back().name.number, i);
  }
}

TEST(Recorder, counts_fast_path_operations_by_their_collective) {
  const auto recorder = recorder_of_three();
  const Kind kinds[] = {
      all_reduce_kind(),
      {.collective = static_cast<uint8_t>(unisono::Collective::barrier), .dtype = 0, .reduce_op = 0, .schedule = 0, .root = 0}};
  for (uint64_t i = 0; i < 2 * uncounted_max + 6; ++i) {
    const auto at = start + static_cast<Nanos>(i) * 1000;
    recorder->fast_path_begun(i, i % 2 == 0 ? 1024 : 0, kinds[i % 2], at);
    recorder->fast_path_ended(0, at + 500);
  }
  const auto record = snapshot_of(*recorder);
  ASSERT_EQ(record.collectives.size(), 2u);
  for (const auto& c : record.collectives) {
    EXPECT_EQ(c.ended, uncounted_max + 3);
    EXPECT_EQ(c.bytes, c.collective == unisono::Collective::all_reduce ? (uncounted_max + 3) * 1024 : 0);
    EXPECT_EQ(c.total_ns, (uncounted_max + 3) * 500);
  }
}

TEST(Recorder, a_fast_path_all_gather_counts_the_bytes_of_each_link) {
  const auto recorder = recorder_of_three();
  const Kind kind{.collective = static_cast<uint8_t>(unisono::Collective::all_gather),
                  .dtype = 0,
                  .reduce_op = 0,
                  .schedule = 0,
                  .root = 0};
  for (uint64_t i = 1; i <= 2 * uncounted_max; ++i) {
    recorder->fast_path_begun(i, 3 * 1024, kind, start);
    recorder->fast_path_ended(0, start + 500);
    const auto record = snapshot_of(*recorder);
    ASSERT_EQ(record.collectives[0].bytes, i * 3 * 1024);
    for (const Rank other : {0u, 2u}) {
      ASSERT_EQ(record.links[other].sent_bytes, i * (1024 + 64));
      ASSERT_EQ(record.links[other].received_bytes, i * (1024 + 64));
    }
  }
}

TEST(Recorder, a_fast_path_operation_continued_by_the_executor_is_counted_once) {
  const auto recorder = recorder_of_three();
  recorder->fast_path_begun(1, 1024, all_reduce_kind(), start);
  recorder->ended(entry_of(1, start), 500, {});
  const auto record = snapshot_of(*recorder);
  EXPECT_EQ(record.begun, 1u);
  EXPECT_EQ(record.ended, 1u);
  EXPECT_EQ(record.collectives[0].ended, 1u);
  EXPECT_EQ(record.links[0].sent_messages, 0u);
}

TEST(Recorder, keeps_the_last_operations_in_order) {
  const auto recorder = recorder_of_three({.operations = 1});
  for (uint64_t i = 0; i < 200; ++i) recorder->ended(entry_of(i, start + static_cast<Nanos>(i)), 0, {});
  const auto record = snapshot_of(*recorder);
  ASSERT_EQ(record.operations.size(), ring_min);
  EXPECT_EQ(record.operations.front().name.number, 200 - ring_min);
  EXPECT_EQ(record.operations.back().name.number, 199u);
  EXPECT_EQ(record.collectives[0].ended, 200u);
}

RunningEntry running_entry_of(uint64_t number) {
  RunningEntry shown{};
  shown.number = number;
  shown.started = shown.progress = start;
  shown.kind = all_reduce_kind();
  return shown;
}

TEST(Recorder, operations_in_flight_are_shown_until_they_end) {
  const auto recorder = recorder_of_three();
  auto shown = running_entry_of(5);
  recorder->show(shown);
  recorder->show(running_entry_of(6));
  shown.phase = static_cast<uint8_t>(Phase::results);
  shown.round = 1;
  shown.pending_count = 2;
  shown.pending[0] = 0;
  shown.pending[1] = 2;
  recorder->show(shown);
  auto record = snapshot_of(*recorder);
  ASSERT_EQ(record.running.size(), 2u);
  EXPECT_EQ(record.running[0].phase, Phase::results);
  EXPECT_EQ(record.running[0].pending, (std::vector<Rank>{0, 2}));
  EXPECT_EQ(record.running[1].phase, Phase::begun);
  recorder->ended(entry_of(5, start), 0, {});
  record = snapshot_of(*recorder);
  ASSERT_EQ(record.running.size(), 1u);
  EXPECT_EQ(record.running[0].name.number, 6u);
}

TEST(Recorder, a_limited_number_of_operations_is_shown_and_others_follow_when_some_end) {
  const auto recorder = recorder_of_three();
  for (uint64_t i = 0; i < running_max + 3; ++i) recorder->show(running_entry_of(i));
  EXPECT_EQ(snapshot_of(*recorder).running.size(), running_max);
  recorder->ended(entry_of(0, start), 0, {});
  recorder->show(running_entry_of(running_max));
  const auto record = snapshot_of(*recorder);
  ASSERT_EQ(record.running.size(), running_max);
  EXPECT_EQ(record.running.back().name.number, uint64_t{running_max});
}

TEST(Recorder, records_why_and_when_the_group_was_first_left) {
  const auto recorder = recorder_of_three();
  recorder->lost(2, start);
  recorder->left(Code::peer_lost, start + 1);
  recorder->left(Code::ok, start + 2);
  const auto record = snapshot_of(*recorder);
  EXPECT_EQ(record.left_at, start + 1);
  EXPECT_EQ(record.left_code, Code::peer_lost);
  EXPECT_EQ(record.links[2].lost_at, start);
}

TEST(Recorder, keeps_the_last_events_in_order_and_counts_all) {
  const auto recorder = recorder_of_three();
  for (uint32_t i = 0; i < events_max + 5; ++i)
    recorder->event(EventKind::link_lost, i % 2 == 0 ? 2 : -1, concat("event ", i), start + i);
  const auto snapshot = snapshot_of(*recorder);
  EXPECT_EQ(snapshot.event_count, events_max + 5u);
  ASSERT_EQ(snapshot.events.size(), events_max);
  for (uint32_t i = 0; i < events_max; ++i) {
    EXPECT_EQ(snapshot.events[i].text, concat("event ", i + 5));
    EXPECT_EQ(snapshot.events[i].at, start + i + 5);
    EXPECT_EQ(snapshot.events[i].rank, (i + 5) % 2 == 0 ? 2 : -1);
    EXPECT_EQ(snapshot.events[i].kind, EventKind::link_lost);
  }
}

TEST(Recorder, a_long_text_of_an_event_is_cut) {
  const auto recorder = recorder_of_three();
  recorder->event(EventKind::joined, -1, std::string(1000, 'x'), start);
  recorder->event(EventKind::joined, -1, "short", start);
  const auto snapshot = snapshot_of(*recorder);
  ASSERT_EQ(snapshot.events.size(), 2u);
  EXPECT_EQ(snapshot.events[0].text, std::string(sizeof(EventEntry::text) - 1, 'x'));
  EXPECT_EQ(snapshot.events[1].text, "short");
}

TEST(Recorder, durations_fall_into_buckets_by_powers_of_two) {
  EXPECT_EQ(bucket_of(0), 0u);
  EXPECT_EQ(bucket_of(255), 0u);
  EXPECT_EQ(bucket_of(256), 1u);
  EXPECT_EQ(bucket_of(511), 1u);
  EXPECT_EQ(bucket_of(512), 2u);
  EXPECT_EQ(bucket_of(3600 * second), bucket_count - 1);
}

TEST(Recorder, a_record_in_a_file_outlives_its_writer) {
  const test::TemporaryFolder folder;
  recorder_of_three({.folder = folder.path() + "/made"})->begun();
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/made")) {
    ++count;
    const int fd = ::open(entry.path().c_str(), O_RDONLY);
    const auto record = read(fd);
    ::close(fd);
    ASSERT_TRUE(record.ok()) << record.status().to_string();
    EXPECT_EQ(record->begun, 1u);
    EXPECT_TRUE(entry.path().string().ends_with(file_suffix));
  }
  EXPECT_EQ(count, 1u);
}

TEST(Recorder, a_record_whose_folder_is_unusable_is_in_memory_and_says_why) {
  const auto recorder = recorder_of_three({.folder = "/proc/no/such"});
  EXPECT_FALSE(recorder->status().ok());
  EXPECT_NE(snapshot_of(*recorder).note.find("/proc/no/such"), std::string::npos) << snapshot_of(*recorder).note;
  recorder->begun();
  EXPECT_EQ(snapshot_of(*recorder).begun, 1u);
}

TEST(Recorder, without_shared_memory_a_record_is_in_private_memory_and_says_why) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit tiny{.rlim_cur = 100, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tiny), 0);
  const test::TemporaryFolder folder;
  const auto recorder = recorder_of_three({.folder = folder.path()});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(recorder->status().code(), Code::unavailable);
  EXPECT_NE(recorder->status().message().find("ulimit -f"), std::string::npos) << recorder->status().message();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "a file that cannot be filled is taken away again";
  recorder->ended(entry_of(1, start), 0, {});
  EXPECT_EQ(snapshot_of(*recorder).ended, 1u);
}

TEST(Recorder, other_processes_cannot_shrink_the_memory) {
  const auto recorder = recorder_of_three();
  size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (!std::filesystem::read_symlink(entry.path(), gone).string().starts_with("/memfd:unisono-record")) continue;
    ++found;
    const int fd = ::open(entry.path().c_str(), O_RDWR);
    EXPECT_NE(::ftruncate(fd, 0), 0);
    EXPECT_TRUE(read(fd).ok());
    ::close(fd);
  }
  EXPECT_EQ(found, 1u);
}

TEST(Process, process_state_says_whether_and_since_when_a_process_runs) {
  const auto self = process_state(::getpid());
  ASSERT_TRUE(self.has_value());
  EXPECT_EQ(self->state, 'R');
  EXPECT_GT(self->started, 0u);
  EXPECT_FALSE(self->is_stopped() || self->has_ended());
  EXPECT_FALSE(process_state(0).has_value());
}

}  // namespace
}  // namespace unisono::record
