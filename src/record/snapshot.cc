#include "record/snapshot.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/concat.h"
#include "wire/frame.h"

namespace unisono::record {
namespace {

constexpr int tries_max = 64;  // If the counters change while they are read, they are read again, at most this many times.
constexpr Nanos time_max = Nanos{1} << 61;

Status corrupt(const std::string& what) { return {Code::corrupt, "not a record of this version: " + what}; }

template <typename T>
T at(ByteView bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Copies the text. Replaces all characters except printable ASCII characters by '?', because a terminal could take them for a
// command.
template <size_t size>
std::string text(const char (&field)[size]) {
  std::string out(field, ::strnlen(field, size));
  for (auto& c : out) c = c >= ' ' && c <= '~' ? c : '?';
  return out;
}

bool is_time(Nanos time) { return time >= 0 && time < time_max; }

bool kind_of(const Kind& raw, uint32_t world, CallKind& kind) {
  if (raw.collective >= collective_count || raw.dtype >= dtype_count || raw.reduce_op >= reduce_op_count ||
      !is_schedule(raw.schedule) || raw.root >= world) {
    return false;
  }
  kind = {.collective = static_cast<unisono::Collective>(raw.collective),
          .dtype = static_cast<DType>(raw.dtype),
          .reduce_op = static_cast<ReduceOp>(raw.reduce_op),
          .schedule = static_cast<ScheduleKind>(raw.schedule),
          .root = raw.root};
  return true;
}

template <typename Raw>
bool name_of(const Raw& raw, uint32_t world, CallName& name) {
  if (raw.numbering > static_cast<uint8_t>(Numbering::message) || !kind_of(raw.kind, world, name.kind)) return false;
  name.number = raw.number;
  name.numbering = static_cast<Numbering>(raw.numbering);
  name.bytes = raw.bytes;
  return true;
}

bool read_entry(const Entry& raw, uint32_t world, EndedOperation& out) {
  if (!name_of(raw, world, out.name) || raw.code > static_cast<uint8_t>(Code::internal)) return false;
  if (raw.pending < -1 || raw.pending >= static_cast<int32_t>(world)) return false;
  const auto inside = [&](Nanos time) { return time == 0 || (time >= raw.started && time <= raw.ended); };
  if (!is_time(raw.started) || !is_time(raw.ended) || raw.ended < raw.started || !inside(raw.first_send) ||
      !inside(raw.last_receive))
    return false;
  out.started = raw.started;
  out.first_send = raw.first_send;
  out.last_receive = raw.last_receive;
  out.ended = raw.ended;
  out.code = static_cast<Code>(raw.code);
  out.pending = raw.pending;
  return true;
}

bool read_running(const RunningEntry& raw, uint32_t world, RunningOperation& out) {
  if (!name_of(raw, world, out.name) || raw.phase > static_cast<uint8_t>(Phase::working) || raw.pending_count > world)
    return false;
  if (!is_time(raw.started) || !is_time(raw.progress) || raw.progress < raw.started) return false;
  out.started = raw.started;
  out.progress = raw.progress;
  out.sent_bytes = raw.sent_bytes;
  out.sent_total = raw.sent_total;
  out.received_bytes = raw.received_bytes;
  out.received_total = raw.received_total;
  out.phase = static_cast<Phase>(raw.phase);
  out.round = raw.round;
  out.pending_count = raw.pending_count;
  out.pending.assign(raw.pending, raw.pending + std::min(raw.pending_count, pending_max));
  return std::all_of(out.pending.begin(), out.pending.end(), [&](Rank rank) { return rank < world; });
}

Status read_header(ByteView bytes, Snapshot& out, uint64_t& capacity) {
  if (bytes.size() < sizeof(Header)) return corrupt(concat(bytes.size(), " bytes"));
  const auto header = at<Header>(bytes, 0);
  if (header.magic != magic) return corrupt("wrong magic number");
  if (header.version != layout_version)
    return corrupt(concat("layout version ", header.version, ", this program reads ", layout_version));
  if (header.header_bytes != sizeof(Header) || header.world == 0 || header.world > world_max || header.rank >= header.world)
    return corrupt(concat("rank ", header.rank, " of ", header.world, ", header of ", header.header_bytes, " bytes"));
  if (!std::has_single_bit(header.ring_capacity) || header.ring_capacity < ring_min || header.ring_capacity > ring_max)
    return corrupt(concat("the ring has ", header.ring_capacity, " entries"));
  if (bytes.size() != area_bytes(header.world, header.ring_capacity) || header.total_bytes != bytes.size())
    return corrupt(concat(bytes.size(), " bytes"));
  if (!is_time(header.wall_start) || !is_time(header.monotonic_start)) return corrupt("the start time is out of range");
  capacity = header.ring_capacity;
  out.run = header.run;
  out.group = header.group;
  out.epoch = header.epoch;
  out.world = header.world;
  out.rank = header.rank;
  out.pid = header.pid;
  out.process_started = header.process_started;
  out.wall_start = header.wall_start;
  out.monotonic_start = header.monotonic_start;
  out.host = text(header.host);
  out.note = text(header.note);
  return {};
}

void read_live(ByteView bytes, Snapshot& out) {
  const auto live = at<Live>(bytes, live_at);
  for (uint32_t i = 0; i < std::min(live.count, running_max); ++i) {
    RunningOperation running;
    if (read_running(live.shown[i], out.world, running)) out.running.push_back(std::move(running));
    else ++out.damaged;
  }
}

void read_events(ByteView bytes, Snapshot& out) {
  const auto raw = at<Events>(bytes, events_at);
  out.event_count = raw.count;
  for (auto i = raw.count > events_max ? raw.count - events_max : 0; i < raw.count; ++i) {
    const auto& entry = raw.kept[i % events_max];
    if (!is_time(entry.at) || entry.kind >= event_kind_count || entry.rank < -1 ||
        entry.rank >= static_cast<int32_t>(out.world)) {
      ++out.damaged;
      continue;
    }
    out.events.push_back(
        {.at = entry.at, .kind = static_cast<EventKind>(entry.kind), .rank = entry.rank, .text = text(entry.text)});
  }
}

void read_collectives(ByteView bytes, Snapshot& out) {
  for (uint32_t i = 0; i < collective_count; ++i) {
    const auto raw = at<Collective>(bytes, collectives_at + i * sizeof(Collective));
    if (raw.ended == 0) continue;
    CollectiveCount count{.collective = static_cast<unisono::Collective>(i),
                          .ended = raw.ended,
                          .bytes = raw.bytes,
                          .total_ns = raw.total_ns,
                          .late = raw.late,
                          .failed = raw.failed};
    std::copy(std::begin(raw.buckets), std::end(raw.buckets), count.buckets.begin());
    out.collectives.push_back(count);
  }
}

void read_links(ByteView bytes, const Totals& totals, Snapshot& out) {
  for (Rank rank = 0; rank < out.world; ++rank) {
    const auto raw = at<Link>(bytes, links_at + rank * sizeof(Link));
    const uint64_t messages = rank == out.rank ? 0 : totals.fast_path_messages,
                   fast_path = rank == out.rank ? 0 : totals.fast_path_bytes;
    out.links.push_back({.transport = text(raw.transport),
                         .place = text(raw.place),
                         .sent_bytes = raw.sent_bytes + fast_path,
                         .sent_messages = raw.sent_messages + messages,
                         .received_bytes = raw.received_bytes + fast_path,
                         .received_messages = raw.received_messages + messages,
                         .waited_ns = raw.waited_ns,
                         .waited = raw.waited,
                         .stalls = raw.stalls,
                         .lost_at = is_time(raw.lost_at) ? raw.lost_at : 0});
  }
}

// Adds to the counters of the snapshot a fast-path operation that the writer has not counted yet. The writer counts all other
// operations when they end.
void count_late(const EndedOperation& operation, Snapshot& out) {
  const auto took = static_cast<uint64_t>(operation.ended - operation.started);
  auto at = std::find_if(out.collectives.begin(), out.collectives.end(),
                         [&](const auto& c) { return c.collective >= operation.name.kind.collective; });
  if (at == out.collectives.end() || at->collective != operation.name.kind.collective)
    at = out.collectives.insert(at, {.collective = operation.name.kind.collective});
  at->ended += 1;
  at->bytes += operation.name.bytes;
  at->total_ns += took;
  at->buckets[bucket_of(operation.ended - operation.started)] += 1;
  const auto payload = fast_path_payload(operation.name.kind.collective, operation.name.bytes, out.world);
  for (auto& link : out.links) {
    if (&link == &out.links[out.rank]) continue;
    link.sent_messages += 1;
    link.received_messages += 1;
    link.sent_bytes += payload + sizeof(FrameHeader);
    link.received_bytes += payload + sizeof(FrameHeader);
  }
  if (operation.pending < 0) return;
  out.links[static_cast<size_t>(operation.pending)].waited_ns += took;
  out.links[static_cast<size_t>(operation.pending)].waited += 1;
}

void read_ring(ByteView bytes, uint64_t capacity, uint64_t overwritten, uint64_t counted, Snapshot& out) {
  const auto oldest = std::max(overwritten, out.ended > capacity ? out.ended - capacity : 0);
  for (auto i = oldest; i < out.ended; ++i) {
    EndedOperation operation;
    if (!read_entry(at<Entry>(bytes, ring_at(out.world) + (i & (capacity - 1)) * sizeof(Entry)), out.world, operation)) {
      ++out.damaged;
      continue;
    }
    if (i >= counted && out.ended - i <= uncounted_max) count_late(operation, out);
    out.operations.push_back(operation);
  }
}

bool read_at(int fd, size_t offset, std::byte* to, size_t bytes) {
  while (bytes > 0) {
    const auto got = ::pread(fd, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    offset += static_cast<size_t>(got);
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

// Reads everything between the header and the ring. If something changed during the reading, reads again, up to tries_max times
// in all. If the writer died during a change, the result of the last reading is used.
bool read_counters(int fd, Bytes& bytes, size_t ring) {
  const auto sequence = [&](uint64_t& value) {
    return read_at(fd, totals_at + offsetof(Totals, sequence), reinterpret_cast<std::byte*>(&value), sizeof(value));
  };
  uint64_t before = 0, after = 1;
  for (int i = 0; i < tries_max && (before != after || before % 2 != 0); ++i) {
    if (!sequence(before) || !read_at(fd, totals_at, bytes.data() + totals_at, ring - totals_at) || !sequence(after))
      return false;
  }
  return true;
}

}  // namespace

Result<Snapshot> parse(ByteView bytes, uint64_t overwritten) {
  Snapshot out;
  uint64_t capacity = 0;
  if (auto status = read_header(bytes, out, capacity); !status.ok()) return status;
  const auto totals = at<Totals>(bytes, totals_at);
  out.begun = totals.begun;
  out.ended = totals.ended;
  out.left_at = is_time(totals.left_at) ? totals.left_at : 0;
  out.left_code =
      totals.left_code <= static_cast<uint64_t>(Code::internal) ? static_cast<Code>(totals.left_code) : Code::internal;
  read_live(bytes, out);
  read_events(bytes, out);
  read_collectives(bytes, out);
  read_links(bytes, totals, out);
  read_ring(bytes, capacity, overwritten, totals.counted, out);
  return out;
}

Result<Snapshot> read(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return Status(Code::unavailable, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return corrupt("not a file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size < area_bytes(1, ring_min) || size > area_bytes(world_max, ring_max)) return corrupt(concat(size, " bytes"));
  Bytes bytes(size);
  uint64_t capacity = 0, ended = 0;
  Snapshot header;
  const Status shorter(Code::unavailable, "the file became shorter while it was read");
  if (!read_at(fd, 0, bytes.data(), sizeof(Header))) return shorter;
  if (auto status = read_header(bytes, header, capacity); !status.ok()) return status;
  // Read the counters, then the ring, then Totals::ended once more. The second value of `ended` shows which entries of the ring
  // may have been overwritten during the reading.
  const auto ring = ring_at(header.world);
  const bool whole = read_counters(fd, bytes, ring) && read_at(fd, ring, bytes.data() + ring, size - ring) &&
                     read_at(fd, totals_at + offsetof(Totals, ended), reinterpret_cast<std::byte*>(&ended), sizeof(ended));
  if (!whole) return shorter;
  // The writer may already be writing the next entry, and this entry overwrites the oldest one.
  return parse(bytes, ended + 1 > capacity ? ended + 1 - capacity : 0);
}

std::string CallName::to_string() const {
  std::string text = unisono::name(kind.collective);
  text += concat(numbering == Numbering::by_caller ? " id " : " ", number);
  if (kind.collective == unisono::Collective::send) text += concat(" to rank ", kind.root);
  if (kind.collective == unisono::Collective::recv) text += concat(" from rank ", kind.root);
  return text;
}

std::string CallName::call() const {
  using enum unisono::Collective;
  const auto c = kind.collective;
  if (c == barrier) return "barrier";
  std::string text = std::string(unisono::name(c)) + "(" + unisono::name(kind.dtype);
  if (c == all_reduce || c == reduce || c == reduce_scatter) text += std::string(" ") + unisono::name(kind.reduce_op);
  if (c != gather && c != scatter && c != all_to_all) text += concat(", ", bytes, " bytes");
  if (c == broadcast || c == reduce || c == gather || c == scatter) text += concat(", root ", kind.root);
  return text + ")";
}

}  // namespace unisono::record
