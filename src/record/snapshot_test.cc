// Tests that every kind of malformed record is refused or left out.
#include "record/snapshot.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/concat.h"
#include "record/test_support.h"

namespace unisono::record {
namespace {

Bytes sound() {
  const auto recorder = recorder_of_three();
  recorder->begun();
  recorder->ended(entry_of(1, start), 500, {});
  RunningEntry shown{};
  shown.number = 2;
  shown.started = shown.progress = start;
  shown.kind = all_reduce_kind();
  shown.pending_count = 1;
  shown.pending[0] = 2;
  recorder->begun();
  recorder->show(shown);
  recorder->event(EventKind::link_lost, 2, "rank 2 is gone", start);
  const auto bytes = recorder->bytes();
  return {bytes.begin(), bytes.end()};
}

template <typename T>
Bytes with(size_t at, T value) {
  auto bytes = sound();
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

void expect_refused(const Bytes& bytes) {
  const auto parsed = parse(bytes);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), Code::corrupt);
}

// Expects that exactly one entry or operation is left out.
void expect_damaged(const Bytes& bytes) {
  const auto parsed = parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->damaged, 1u);
  EXPECT_EQ(parsed->operations.size() + parsed->running.size(), 1u);
}

void expect_damaged_event(const Bytes& bytes) {
  const auto parsed = parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->damaged, 1u);
  EXPECT_TRUE(parsed->events.empty());
}

constexpr size_t event_at = events_at + offsetof(Events, kept);
constexpr size_t entry_at = ring_at(3);
constexpr size_t running_at = live_at + offsetof(Live, shown);

TEST(Snapshot, intact_bytes_are_accepted) {
  const auto parsed = parse(sound());
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->damaged, 0u);
  EXPECT_EQ(parsed->operations.size(), 1u);
  EXPECT_EQ(parsed->running.size(), 1u);
}

TEST(Snapshot, an_empty_record_is_refused) { expect_refused({}); }
TEST(Snapshot, every_truncation_is_refused) {
  const auto bytes = sound();
  for (size_t size = 0; size < bytes.size(); size += size < 4096 ? 1 : 997)
    EXPECT_FALSE(parse(ByteView(bytes).first(size)).ok()) << size;
}
TEST(Snapshot, a_byte_too_many_is_refused) {
  auto bytes = sound();
  bytes.push_back({});
  expect_refused(bytes);
}
TEST(Snapshot, a_wrong_magic_number_is_refused) { expect_refused(with(offsetof(Header, magic), magic + 1)); }
TEST(Snapshot, another_version_is_refused) { expect_refused(with(offsetof(Header, version), layout_version + 1)); }
TEST(Snapshot, a_wrong_header_size_is_refused) { expect_refused(with(offsetof(Header, header_bytes), uint32_t{128})); }
TEST(Snapshot, a_wrong_total_size_is_refused) { expect_refused(with(offsetof(Header, total_bytes), uint64_t{1} << 60)); }
TEST(Snapshot, an_empty_world_is_refused) { expect_refused(with(offsetof(Header, world), uint32_t{0})); }
TEST(Snapshot, a_huge_world_is_refused) { expect_refused(with(offsetof(Header, world), uint32_t{UINT32_MAX})); }
TEST(Snapshot, a_rank_outside_the_world_is_refused) { expect_refused(with(offsetof(Header, rank), uint32_t{3})); }
TEST(Snapshot, a_ring_that_is_no_power_of_two_is_refused) {
  expect_refused(with(offsetof(Header, ring_capacity), uint64_t{255}));
}
TEST(Snapshot, a_huge_ring_is_refused) { expect_refused(with(offsetof(Header, ring_capacity), uint64_t{1} << 62)); }
TEST(Snapshot, a_negative_start_time_is_refused) { expect_refused(with(offsetof(Header, wall_start), INT64_MIN)); }
TEST(Snapshot, a_huge_start_time_is_refused) { expect_refused(with(offsetof(Header, monotonic_start), INT64_MAX)); }

TEST(Snapshot, control_characters_in_text_are_replaced) {
  auto bytes = sound();
  std::memcpy(bytes.data() + offsetof(Header, host), "\033[31m\n", 7);
  EXPECT_EQ(parse(bytes)->host, "?[31m?");
  std::memset(bytes.data() + offsetof(Header, host), 'x', sizeof(Header::host));
  EXPECT_EQ(parse(bytes)->host, std::string(sizeof(Header::host), 'x')) << "without a zero byte at its end";
}

TEST(Snapshot, an_unknown_collective_is_left_out) {
  expect_damaged(with(entry_at + offsetof(Entry, kind), uint8_t{collective_count}));
}
TEST(Snapshot, an_unknown_type_is_left_out) { expect_damaged(with(entry_at + offsetof(Entry, kind) + 1, uint8_t{99})); }
TEST(Snapshot, an_unknown_reduction_is_left_out) { expect_damaged(with(entry_at + offsetof(Entry, kind) + 2, uint8_t{99})); }
TEST(Snapshot, an_unknown_schedule_is_left_out) { expect_damaged(with(entry_at + offsetof(Entry, kind) + 3, uint8_t{99})); }
TEST(Snapshot, a_root_outside_the_world_is_left_out) {
  expect_damaged(with(entry_at + offsetof(Entry, kind) + 4, uint32_t{3}));
}
TEST(Snapshot, an_unknown_code_is_left_out) { expect_damaged(with(entry_at + offsetof(Entry, code), uint8_t{8})); }
TEST(Snapshot, an_unknown_numbering_is_left_out) { expect_damaged(with(entry_at + offsetof(Entry, numbering), uint8_t{3})); }
TEST(Snapshot, a_pending_rank_outside_the_world_is_left_out) {
  expect_damaged(with(entry_at + offsetof(Entry, pending), int32_t{3}));
}
TEST(Snapshot, an_end_before_the_start_is_left_out) { expect_damaged(with(entry_at + offsetof(Entry, ended), start - 1)); }
TEST(Snapshot, a_huge_end_time_is_left_out) { expect_damaged(with(entry_at + offsetof(Entry, ended), INT64_MAX)); }
TEST(Snapshot, a_negative_start_time_is_left_out) { expect_damaged(with(entry_at + offsetof(Entry, started), INT64_MIN)); }
TEST(Snapshot, a_message_outside_the_time_of_its_operation_is_left_out) {
  expect_damaged(with(entry_at + offsetof(Entry, last_receive), start + second));
}
TEST(Snapshot, an_unknown_phase_is_left_out) { expect_damaged(with(running_at + offsetof(RunningEntry, phase), uint8_t{5})); }
TEST(Snapshot, a_pending_count_beyond_the_world_is_left_out) {
  expect_damaged(with(running_at + offsetof(RunningEntry, pending_count), uint32_t{4}));
}
TEST(Snapshot, a_running_operation_with_a_pending_rank_outside_the_world_is_left_out) {
  expect_damaged(with(running_at + offsetof(RunningEntry, pending), uint32_t{3}));
}
TEST(Snapshot, progress_before_the_start_is_left_out) {
  expect_damaged(with(running_at + offsetof(RunningEntry, progress), start - 1));
}

TEST(Snapshot, an_unknown_kind_of_event_is_left_out) {
  expect_damaged_event(with(event_at + offsetof(EventEntry, kind), static_cast<uint32_t>(event_kind_count)));
}
TEST(Snapshot, an_event_about_a_rank_outside_the_world_is_left_out) {
  expect_damaged_event(with(event_at + offsetof(EventEntry, rank), int32_t{3}));
}
TEST(Snapshot, an_event_about_a_negative_rank_is_left_out) {
  expect_damaged_event(with(event_at + offsetof(EventEntry, rank), int32_t{-2}));
}
TEST(Snapshot, an_event_at_a_negative_time_is_left_out) {
  expect_damaged_event(with(event_at + offsetof(EventEntry, at), int64_t{-1}));
}
TEST(Snapshot, a_text_of_an_event_without_an_end_is_read_up_to_the_end_of_its_field) {
  std::array<char, sizeof(EventEntry::text)> full;
  full.fill('x');
  const auto parsed = parse(with(event_at + offsetof(EventEntry, text), full));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  ASSERT_EQ(parsed->events.size(), 1u);
  EXPECT_EQ(parsed->events[0].text, std::string(full.size(), 'x'));
}
TEST(Snapshot, a_huge_count_of_events_reads_the_kept_ones_once) {
  const auto parsed = parse(with(events_at + offsetof(Events, count), uint64_t{UINT64_MAX}));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->events.size() + parsed->damaged, events_max);
}

TEST(Snapshot, a_count_of_operations_in_flight_that_is_too_large_reads_no_further) {
  const auto parsed = parse(with(live_at + offsetof(Live, count), uint32_t{UINT32_MAX}));
  ASSERT_TRUE(parsed.ok());
  EXPECT_LE(parsed->running.size(), size_t{running_max});
}

TEST(Snapshot, a_count_of_ended_operations_that_is_too_large_reads_the_ring_once) {
  for (const uint64_t ended : {uint64_t{257}, UINT64_MAX}) {
    const auto parsed = parse(with(totals_at + offsetof(Totals, ended), ended));
    ASSERT_TRUE(parsed.ok());
    EXPECT_LE(parsed->operations.size() + parsed->damaged, 256u);
  }
}

TEST(Snapshot, an_unknown_code_of_leaving_is_read_as_internal) {
  EXPECT_EQ(parse(with(totals_at + offsetof(Totals, left_code), uint64_t{99}))->left_code, Code::internal);
}

TEST(Snapshot, descriptors_without_a_record_are_refused) {
  const int folder = ::open("/", O_RDONLY), empty = ::open("/dev/null", O_RDONLY), other = ::open("/proc/self/exe", O_RDONLY);
  for (const int fd : {folder, empty, other}) {
    const auto record = read(fd);
    ASSERT_FALSE(record.ok());
    EXPECT_EQ(record.status().code(), Code::corrupt);
    ::close(fd);
  }
}

TEST(Snapshot, the_record_of_a_writer_that_died_during_a_change_is_readable) {
  const int fd = ::memfd_create("test", MFD_CLOEXEC);
  const auto bytes = with(totals_at + offsetof(Totals, sequence), uint64_t{1});
  ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  const auto record = read(fd);
  ::close(fd);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_EQ(record->operations.size(), 1u);
}

// A second thread acts as another process: it reads the record through the descriptor.
TEST(Snapshot, a_snapshot_read_during_writes_is_consistent) {
  const auto recorder = recorder_of_three();
  int fd = -1;
  for (int candidate = 0; candidate < 1024 && fd < 0; ++candidate) {
    char target[64] = {};
    const auto link = concat("/proc/self/fd/", candidate);
    if (::readlink(link.c_str(), target, sizeof(target) - 1) > 0 && std::string(target).starts_with("/memfd:unisono-record"))
      fd = ::open(link.c_str(), O_RDONLY | O_CLOEXEC);
  }
  ASSERT_GE(fd, 0);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 1; !stop; ++i) {
      const auto at = start + static_cast<Nanos>(i) * microsecond;
      if (i % 10 == 0) {
        recorder->begun();
        recorder->ended(entry_of(i, at), 500,
                        std::vector<Moved>{{.rank = 0, .sent_bytes = 1024 + 64, .sent_messages = 1},
                                           {.rank = 2, .sent_bytes = 1024 + 64, .sent_messages = 1}});
      } else {
        recorder->fast_path_begun(i, 1024, all_reduce_kind(), at);
        recorder->fast_path_ended(0, at + 500);
      }
    }
  });
  uint64_t last = 0;
  for (int looked = 0; looked < 2000 && !HasFailure(); ++looked) {
    const auto record = read(fd);
    EXPECT_TRUE(record.ok() && record->damaged == 0 && record->ended >= last);
    for (size_t i = 1; i < record->operations.size(); ++i)
      EXPECT_EQ(record->operations[i].name.number, record->operations[i - 1].name.number + 1);
    for (const auto& operation : record->operations)
      EXPECT_EQ(operation.started, start + static_cast<Nanos>(operation.name.number) * microsecond);
    last = record->ended;
  }
  stop = true;
  writer.join();
  ::close(fd);
  const auto record = snapshot_of(*recorder);
  EXPECT_EQ(record.collectives[0].ended, record.ended);
  EXPECT_EQ(record.links[0].sent_messages, record.ended);
  EXPECT_EQ(record.links[0].sent_bytes, record.ended * (1024 + 64));
}

}  // namespace
}  // namespace unisono::record
