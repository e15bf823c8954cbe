// The layout of a record in memory. One process writes the record while it runs, and reports in it about one group. Other
// processes may read the record at any time (docs/guides/troubleshooting.md).
//
// These structs are the layout. It is little-endian, and never changes for a given layout_version. The memory holds in this
// order: Header, Totals, Live, Events, one Collective per collective, one Link per rank, and the ring buffer with the
// operations that ended last. All times are nanoseconds of the writer's monotonic clock. Header::wall_start and
// Header::monotonic_start relate them to the wall clock. Readers check all contents: see snapshot.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "schedules/collective_facts.h"

namespace unisono::record {

inline constexpr uint64_t magic = 0x44524F4345524E55;  // "UNRECORD" in memory order
inline constexpr uint32_t layout_version = 2;
using unisono::collective_count;
inline constexpr uint32_t bucket_count = 32;
inline constexpr uint32_t running_max = 8;  // Live describes at most this many running operations
inline constexpr uint32_t pending_max = 8;  // for one operation, at most this many pending ranks are listed
inline constexpr uint32_t events_max = 16;  // the record keeps at most this many events
inline constexpr uint32_t world_max = 4096;
// the number of operations in the ring buffer is a power of two in this range
inline constexpr uint64_t ring_min = 64, ring_max = 1u << 20;
inline constexpr uint64_t uncounted_max = 32;
inline constexpr char area_name[] = "unisono-record";
inline constexpr char file_suffix[] = ".record";

// The header is written once. Its magic number is written last, so a reader that sees the magic number finds a complete header.
struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t total_bytes;
  uint64_t run;    // run id, which is equal on all processes of a group and stays equal when the group is re-formed
  uint32_t group;  // group number, equal on all members
  uint32_t epoch;
  uint32_t rank;
  uint32_t world;
  int32_t pid;
  uint32_t reserved;
  // start time from /proc/PID/stat; it distinguishes this process from a later process with the same pid
  uint64_t process_started;
  int64_t wall_start;  // ns since 1970, read at the same moment as monotonic_start
  int64_t monotonic_start;
  uint64_t ring_capacity;
  uint64_t reserved_too;
  char host[64];   // zero-terminated; longer text is cut
  char note[224];  // says why the record is not at the requested location; empty if it is there
};
static_assert(sizeof(Header) == 384);

// `sequence` is odd while the writer changes the memory between the header and the ring. Four words may change at any time,
// even while `sequence` is even: `begun`, `ended`, Link::stalls and Link::lost_at.
//
// Fast-path operations are short, stay inside one host and have no root. The writer counts several of them together. So the
// ring entries i with counted <= i < ended are not in the counters yet. A fast-path operation sends the same number of bytes to
// every other rank. So its bytes are counted in this struct, and not for each link.
struct Totals {
  uint64_t sequence;
  uint64_t begun;
  uint64_t ended;    // number of operations that have ended; also the position of the next entry in the ring
  uint64_t counted;  // number of ended operations that are in the counters; at least ended - uncounted_max
  uint64_t fast_path_messages;
  uint64_t fast_path_bytes;
  int64_t left_at;     // when the process left the group; 0: it has not left
  uint64_t left_code;  // why the process left, as a Code
};
static_assert(sizeof(Totals) == 64);

struct Kind {
  uint8_t collective;
  uint8_t dtype;
  uint8_t reduce_op;
  uint8_t schedule;
  uint32_t root;  // the root, if the collective has one; for send and recv, the rank of the peer
};
static_assert(sizeof(Kind) == 8);

// Returns how many payload bytes a fast-path operation sends to each other rank. It receives the same number of bytes from each
// of them. The bytes are either the whole tensor, or one of the equal blocks of the tensor.
constexpr uint64_t fast_path_payload(unisono::Collective collective, uint64_t bytes, uint32_t world) {
  return has_blocks(collective) ? bytes / world : bytes;
}

// Says where the number of an operation comes from: the order of the calls, the id that the caller gave, or the order of the
// point-to-point messages.
enum class Numbering : uint8_t { by_order = 0, by_caller = 1, message = 2 };

// The event for which a running operation waits. The first slice that has not arrived in the earliest incomplete
// round decides this.
enum class Phase : uint8_t {
  begun = 0,          // there is no progress information yet
  contributions = 1,  // waits for messages that are added to the result
  results = 2,        // waits for messages that are copied to the result
  sending = 3,        // waits until a rank has received what this rank sent
  working = 4,        // computes, or is about to compute
};

struct RunningEntry {
  uint64_t number;
  uint64_t bytes;
  int64_t started;
  int64_t progress;                 // when the operation last sent or received something
  uint64_t sent_bytes, sent_total;  // payload bytes, without headers
  uint64_t received_bytes, received_total;
  Kind kind;
  uint8_t numbering;
  uint8_t phase;
  uint16_t round;          // current round of the schedule
  uint32_t pending_count;  // number of pending ranks; `pending` lists the first pending_max of them
  uint32_t pending[pending_max];
  uint64_t reserved[2];
};
static_assert(sizeof(RunningEntry) == 128);

struct Live {
  uint32_t count;
  uint32_t reserved;
  uint64_t reserved_too[7];
  RunningEntry shown[running_max];
};
static_assert(sizeof(Live) == 64 + running_max * sizeof(RunningEntry));

// An event of this process (include/unisono/event.h).
struct EventEntry {
  int64_t at;
  int32_t rank;    // the rank that the event is about; -1: it is about no single rank
  uint32_t kind;   // an EventKind
  char text[240];  // zero-terminated; longer text is cut
};
static_assert(sizeof(EventEntry) == 256);

// Event i is in entry i % events_max.
struct Events {
  uint64_t count;  // number of events so far; the last events_max of them are kept
  uint64_t reserved[7];
  EventEntry kept[events_max];
};
static_assert(sizeof(Events) == 64 + events_max * sizeof(EventEntry));

struct Collective {
  uint64_t ended;  // number of operations that ended, whatever their outcome
  uint64_t bytes;
  uint64_t total_ns;
  uint64_t late;
  uint64_t failed;  // number of operations whose outcome was not ok, including `late`
  // Bucket i counts the operations whose duration d satisfies 2^(bucket_shift+i-1) <= d < 2^(bucket_shift+i) ns. The first
  // bucket also counts shorter durations, and the last bucket also counts longer durations.
  uint64_t buckets[bucket_count];
  uint64_t reserved[3];
};
static_assert(sizeof(Collective) == 320);
inline constexpr uint32_t bucket_shift = 8;
inline uint32_t bucket_of(int64_t took) {
  const auto width = static_cast<uint32_t>(std::bit_width(static_cast<uint64_t>(took)));
  const auto bucket = width < bucket_shift ? 0 : width - bucket_shift;
  return bucket < bucket_count ? bucket : bucket_count - 1;
}

struct Link {
  uint64_t sent_bytes;  // these bytes include headers
  uint64_t sent_messages;
  uint64_t received_bytes;
  uint64_t received_messages;
  // How long this rank waited for the rank at the other end of the link, summed over `waited` operations. In each of these
  // operations, that rank was the last one to send. Its part of the sum is the time from the start of the operation to the
  // first message of that rank.
  uint64_t waited_ns;
  uint64_t waited;    // number of operations in which the rank at the other end was the last one to send
  uint64_t stalls;    // how often the transport had no capacity for a message
  int64_t lost_at;    // when the link was lost; 0: it has not been lost
  char transport[8];  // "shm", "tcp", "self"
  char place[56];     // for example "host b, pid 42"
};
static_assert(sizeof(Link) == 128);

// An operation that has ended.
struct Entry {
  uint64_t number;
  uint64_t bytes;  // size of the larger of this rank's two buffers
  int64_t started;
  int64_t first_send;    // 0: the operation sent nothing
  int64_t last_receive;  // 0: the operation received nothing
  int64_t ended;
  Kind kind;
  uint8_t code;  // the outcome of the operation, as a Code
  uint8_t numbering;
  uint16_t reserved;
  int32_t pending;  // the rank for which the operation waited longest; -1: it waited for none
};
static_assert(sizeof(Entry) == 64);

inline constexpr size_t totals_at = sizeof(Header);
inline constexpr size_t live_at = totals_at + sizeof(Totals);
inline constexpr size_t events_at = live_at + sizeof(Live);
inline constexpr size_t collectives_at = events_at + sizeof(Events);
inline constexpr size_t links_at = collectives_at + collective_count * sizeof(Collective);
constexpr size_t ring_at(uint32_t world) { return links_at + world * sizeof(Link); }
constexpr size_t area_bytes(uint32_t world, uint64_t ring_capacity) { return ring_at(world) + ring_capacity * sizeof(Entry); }

}  // namespace unisono::record
