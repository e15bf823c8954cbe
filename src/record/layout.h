// The bytes of a record: what one process says about one group while it runs, in memory that others may look into
// (docs/guides/troubleshooting.md).
//
// Little-endian, fixed for one layout_version; the structs are the layout. In this order: Header, Totals, Live, Collective for
// each collective, Link for each rank, and the ring of the operations that ended last. All times are nanoseconds of the
// writer's monotonic clock; the header says what its wall clock showed at one of them. Readers trust nothing of it: see
// snapshot.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "schedules/collective_facts.h"

namespace unisono::record {

inline constexpr uint64_t magic = 0x44524F4345524E55;  // "UNRECORD" in memory order
inline constexpr uint32_t layout_version = 1;
using unisono::collective_count;
inline constexpr uint32_t bucket_count = 32;
inline constexpr uint32_t shown_max = 8;    // operations in flight that Live tells about
inline constexpr uint32_t pending_max = 8;  // ranks that one of them is told to wait for
inline constexpr uint32_t world_max = 4096;
inline constexpr uint64_t ring_min = 64, ring_max = 1u << 20;  // operations; always a power of two
inline constexpr uint64_t uncounted_max = 32;
inline constexpr char area_name[] = "unisono-record";
inline constexpr char file_suffix[] = ".record";

// Written once; magic comes last.
struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t total_bytes;
  uint64_t run;    // equal on all processes of one joined group and its successors
  uint32_t group;  // number, equal on all members
  uint32_t epoch;
  uint32_t rank;
  uint32_t world;
  int32_t pid;
  uint32_t reserved;
  uint64_t process_started;  // as /proc/PID/stat has it: tells a process from a later one of the same number
  int64_t wall_start;        // ns since 1970, at the same time as
  int64_t monotonic_start;
  uint64_t ring_capacity;
  uint64_t reserved_too;
  char host[64];   // text is cut to fit, and ends with a zero byte
  char note[224];  // why the record is not where it was asked to be; empty: it is
};
static_assert(sizeof(Header) == 384);

// All between header and ring changes between an odd and the next even value of sequence, but for begun, ended, Link::stalls
// and Link::lost_at, which are each one word.
//
// Fast-path operations (short ones within one host, of collectives without a root) are counted late, several at a time: those
// from counted to below ended are in the ring but not in the counters yet. They exchange the same number of bytes with every
// other rank, so they are counted once here and not in the links.
struct Totals {
  uint64_t sequence;
  uint64_t begun;
  uint64_t ended;    // likewise where the ring's next entry goes
  uint64_t counted;  // at least ended - uncounted_max
  uint64_t fast_path_messages;
  uint64_t fast_path_bytes;
  int64_t left_at;     // 0: the process has not left the group
  uint64_t left_code;  // a Code: why
};
static_assert(sizeof(Totals) == 64);

struct Kind {
  uint8_t collective;
  uint8_t dtype;
  uint8_t reduce_op;
  uint8_t schedule;
  uint32_t root;  // of rooted collectives; the other rank of send and recv
};
static_assert(sizeof(Kind) == 8);

// The bytes, without headers, that a fast-path operation sends to each other rank and receives from it: the whole tensor, or
// one of its equal blocks.
constexpr uint64_t fast_path_payload(unisono::Collective collective, uint64_t bytes, uint32_t world) {
  return has_blocks(collective) ? bytes / world : bytes;
}

// How an operation got its number.
enum class Numbering : uint8_t { by_order = 0, by_caller = 1, message = 2 };

// The state of a running operation, judged by the first missing slice of its earliest incomplete round.
enum class Phase : uint8_t {
  begun = 0,          // nothing is known yet
  contributions = 1,  // waits for messages that are added
  results = 2,        // waits for messages that are copied
  sending = 3,        // waits until a rank has taken what was sent
  working = 4,        // computes, or is about to
};

struct Shown {
  uint64_t number;
  uint64_t bytes;
  int64_t started;
  int64_t progress;                 // when it last got or sent something
  uint64_t sent_bytes, sent_total;  // payload
  uint64_t received_bytes, received_total;
  Kind kind;
  uint8_t numbering;
  uint8_t phase;
  uint16_t round;          // of the schedule
  uint32_t pending_count;  // ranks that are waited for; the first pending_max of them:
  uint32_t pending[pending_max];
  uint64_t reserved[2];
};
static_assert(sizeof(Shown) == 128);

struct Live {
  uint32_t count;
  uint32_t reserved;
  uint64_t reserved_too[7];
  Shown shown[shown_max];
};
static_assert(sizeof(Live) == 64 + shown_max * sizeof(Shown));

struct Collective {
  uint64_t ended;  // whatever the outcome
  uint64_t bytes;
  uint64_t total_ns;
  uint64_t late;
  uint64_t failed;                 // all outcomes but ok, late included
  uint64_t buckets[bucket_count];  // [i]: took from 2^(bucket_shift+i-1) to below 2^(bucket_shift+i) ns; the first and the last
                                   // are open
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
  uint64_t sent_bytes;  // headers included
  uint64_t sent_messages;
  uint64_t received_bytes;
  uint64_t received_messages;
  uint64_t waited_ns;  // from the start of an operation to this rank's first message, where it was the last one to send any
  uint64_t waited;     // how often it was that
  uint64_t stalls;     // how often a message found no room in the transport
  int64_t lost_at;     // 0: the link stands
  char transport[8];   // "shm", "tcp", "self"
  char place[56];      // "host b, pid 42"
};
static_assert(sizeof(Link) == 128);

// One operation that ended.
struct Entry {
  uint64_t number;
  uint64_t bytes;  // of the larger of the rank's two buffers
  int64_t started;
  int64_t first_send;    // 0: nothing was sent
  int64_t last_receive;  // 0: nothing came
  int64_t ended;
  Kind kind;
  uint8_t code;  // a Code
  uint8_t numbering;
  uint16_t reserved;
  int32_t pending;  // the rank that was waited for longest; -1: none
};
static_assert(sizeof(Entry) == 64);

inline constexpr size_t totals_at = sizeof(Header);
inline constexpr size_t live_at = totals_at + sizeof(Totals);
inline constexpr size_t collectives_at = live_at + sizeof(Live);
inline constexpr size_t links_at = collectives_at + collective_count * sizeof(Collective);
constexpr size_t ring_at(uint32_t world) { return links_at + world * sizeof(Link); }
constexpr size_t area_bytes(uint32_t world, uint64_t ring_capacity) { return ring_at(world) + ring_capacity * sizeof(Entry); }

}  // namespace unisono::record
