#include "record/recorder.h"

#include <algorithm>
#include <cstdio>

#include "schedules/schedule.h"

namespace unisono::record {
namespace {

template <size_t size>
void put_text(char (&field)[size], const std::string& text) {
  const auto bytes = std::min(text.size(), size - 1);
  std::memcpy(field, text.data(), bytes);
  std::memset(field + bytes, 0, size - bytes);
}

uint64_t capacity_for(uint64_t operations) { return std::bit_ceil(std::clamp<uint64_t>(operations, ring_min, ring_max)); }

// Returns a name for the record's file. No other record has this name, even if several hosts share the folder.
std::string file_name(const Identity& identity) {
  auto host = identity.host;
  for (auto& c : host) c = c == '/' || c == '\0' ? '_' : c;
  char numbers[96];
  std::snprintf(numbers, sizeof(numbers), "-%d-%x-%u-%llx", identity.pid, identity.group, identity.epoch,
                static_cast<unsigned long long>(identity.wall_start));
  return "unisono-" + host.substr(0, 128) + numbers + file_suffix;
}

// Tries to place the record in the requested folder, then in shared memory, then in private memory. Sets `why` to the reasons
// for which earlier tries failed.
Result<Area> make_area(const Identity& identity, const Placement& placement, size_t bytes, Status& why) {
  if (!placement.folder.empty()) {
    auto file = Area::in_file(placement.folder, file_name(identity), bytes);
    if (file) return file;
    why = file.status();
  }
  auto memory = Area::in_memory(bytes);
  if (memory) return memory;
  why = Status(memory.status().code(), (why.ok() ? "" : why.message() + "; ") + memory.status().message());
  return Area::private_memory(bytes);
}

}  // namespace

Recorder::Recorder(Area area, Status status, uint32_t world, uint64_t capacity)
    : area_(std::move(area)),
      status_(std::move(status)),
      totals_(reinterpret_cast<Totals*>(area_.data() + totals_at)),
      live_(reinterpret_cast<Live*>(area_.data() + live_at)),
      events_(reinterpret_cast<Events*>(area_.data() + events_at)),
      collectives_(reinterpret_cast<Collective*>(area_.data() + collectives_at)),
      links_(reinterpret_cast<Link*>(area_.data() + links_at)),
      ring_(reinterpret_cast<Entry*>(area_.data() + ring_at(world))),
      ring_mask_(capacity - 1),
      world_(world),
      next_(ring_) {}

Result<std::unique_ptr<Recorder>> Recorder::make(const Identity& identity, const Placement& placement) {
  const auto world = static_cast<uint32_t>(identity.links.size());
  const auto capacity = capacity_for(placement.operations);
  Status why;
  auto area = make_area(identity, placement, area_bytes(world, capacity), why);
  if (!area) return area.status();
  std::unique_ptr<Recorder> recorder(new Recorder(std::move(*area), why, world, capacity));
  auto& header = *reinterpret_cast<Header*>(recorder->area_.data());
  header = {.magic = 0,
            .version = layout_version,
            .header_bytes = sizeof(Header),
            .total_bytes = recorder->area_.bytes(),
            .run = identity.run,
            .group = identity.group,
            .epoch = identity.epoch,
            .rank = identity.rank,
            .world = world,
            .pid = identity.pid,
            .reserved = 0,
            .process_started = identity.process_started,
            .wall_start = identity.wall_start,
            .monotonic_start = identity.monotonic_start,
            .ring_capacity = capacity,
            .reserved_too = 0,
            .host = {},
            .note = {}};
  put_text(header.host, identity.host);
  put_text(header.note, why.message());
  for (Rank rank = 0; rank < world; ++rank) {
    put_text(recorder->link(rank).transport, identity.links[rank].transport);
    put_text(recorder->link(rank).place, identity.links[rank].place);
  }
  // Writes to every page once, so that no operation causes a page fault later.
  for (size_t at = ring_at(world); at < recorder->area_.bytes(); at += sizeof(Entry)) recorder->area_.data()[at] = std::byte{0};
  std::atomic_ref(header.magic).store(magic, std::memory_order_release);
  return recorder;
}

template <typename F>
void Recorder::change(F&& change) {
  const auto sequence = totals_->sequence;
  store(totals_->sequence, sequence + 1);
  order_stores();
  change();
  std::atomic_ref(totals_->sequence).store(sequence + 2, std::memory_order_release);
}

uint32_t Recorder::find(uint64_t number, uint8_t numbering, const Kind& kind) const {
  uint32_t at = 0;
  while (at < live_->count) {
    const auto& shown = live_->shown[at];
    if (shown.number == number && shown.numbering == numbering && std::memcmp(&shown.kind, &kind, sizeof(kind)) == 0) break;
    ++at;
  }
  return at;
}

void Recorder::show(const RunningEntry& shown) {
  const auto at = find(shown.number, shown.numbering, shown.kind);
  if (at == running_max) return;
  change([&] {
    live_->shown[at] = shown;
    live_->count = std::max(live_->count, at + 1);
  });
}

void Recorder::count(const Entry& entry, Nanos waited) {
  auto& c = collectives_[entry.kind.collective];
  const auto took = entry.ended - entry.started;
  const auto code = static_cast<Code>(entry.code);
  c.ended += 1;
  c.bytes += entry.bytes;
  c.total_ns += static_cast<uint64_t>(took);
  c.buckets[bucket_of(took)] += 1;
  c.late += code == Code::late;
  c.failed += code != Code::ok;
  if (entry.pending < 0) return;
  links_[entry.pending].waited_ns += static_cast<uint64_t>(waited);
  links_[entry.pending].waited += 1;
}

// Adds to the counters the fast-path operations that have ended since the last call. All other operations are added when they
// end.
void Recorder::count_uncounted() {
  uint64_t bytes = 0;
  for (auto i = counted_; i < ended_; ++i) {
    const auto& entry = ring_[i & ring_mask_];
    const auto took = entry.ended - entry.started;
    auto& c = collectives_[entry.kind.collective];
    bytes += fast_path_payload(static_cast<unisono::Collective>(entry.kind.collective), entry.bytes, world_);
    c.ended += 1;
    c.bytes += entry.bytes;
    c.total_ns += static_cast<uint64_t>(took);
    c.buckets[bucket_of(took)] += 1;
    links_[entry.pending].waited_ns += static_cast<uint64_t>(took);
    links_[entry.pending].waited += 1;
  }
  const auto operations = ended_ - counted_;
  totals_->fast_path_messages += operations;
  totals_->fast_path_bytes += bytes + operations * sizeof(FrameHeader);
  totals_->counted = counted_ = ended_;
}

void Recorder::count_all() {
  change([&] { count_uncounted(); });
}

void Recorder::ended(const Entry& entry, Nanos waited, std::span<const Moved> moved) {
  change([&] {
    count_uncounted();
    if (const auto at = find(entry.number, entry.numbering, entry.kind); at < live_->count)
      live_->shown[at] = live_->shown[--live_->count];
    *next_ = entry;
    count(entry, waited);
    for (const auto& m : moved) {
      links_[m.rank].sent_bytes += m.sent_bytes;
      links_[m.rank].sent_messages += m.sent_messages;
      links_[m.rank].received_bytes += m.received_bytes;
      links_[m.rank].received_messages += m.received_messages;
    }
    publish();
    totals_->counted = counted_ = ended_;
  });
}

void Recorder::event(EventKind kind, int32_t rank, const std::string& text, Nanos now) {
  change([&] {
    auto& entry = events_->kept[events_->count % events_max];
    entry.at = now;
    entry.rank = rank;
    entry.kind = static_cast<uint32_t>(kind);
    put_text(entry.text, text);
    ++events_->count;
  });
}

void Recorder::left(Code why, Nanos now) {
  if (totals_->left_at != 0) return;
  change([&] {
    totals_->left_code = static_cast<uint64_t>(why);
    totals_->left_at = now;
  });
}

}  // namespace unisono::record
