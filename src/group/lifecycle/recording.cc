#include "group/lifecycle/recording.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "base/random.h"
#include "record/process.h"

namespace unisono {
namespace {

// Each record has a descriptor open, and sub-groups last until the group is re-formed.
constexpr size_t recorded_groups_max = 64;

// The key itself stays with the members.
uint64_t run_of(const RosterKey& key) {
  uint64_t halves[2];
  static_assert(sizeof(halves) == sizeof(RosterKey));
  std::memcpy(halves, key.data(), sizeof(halves));
  return mix64(mix64(halves[0]) ^ halves[1]);
}

Nanos wall_now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * second + time.tv_nsec;
}

// Both clocks at one moment: of a few readings the one that nothing came between.
struct Clocks {
  Nanos wall = 0, monotonic = 0;
};
Clocks clocks_now() {
  Clocks best;
  Nanos narrowest = never;
  for (int i = 0; i < 5; ++i) {
    const auto before = monotonic_now();
    const auto wall = wall_now();
    const auto took = monotonic_now() - before;
    if (took >= narrowest) continue;
    narrowest = took;
    best = {wall, before + took / 2};
  }
  return best;
}

}  // namespace

void keep_record(const GuardedState& guarded, GroupCore& group) {
  const auto& options = guarded.options;
  if (options.record_operations == 0 || guarded.engine.group_count() > recorded_groups_max) return;
  const auto* self = guarded.members.record_of(self_peer);
  if (self == nullptr) return;  // removed from the group: nothing runs in it
  const auto process = record::process_state(::getpid());
  const auto clocks = clocks_now();
  record::Identity identity{.run = run_of(guarded.members.roster().key),
                            .group = group.number,
                            .epoch = guarded.members.roster().epoch,
                            .rank = group.self,
                            .host = self->host,
                            .pid = ::getpid(),
                            .process_started = process ? process->started : 0,
                            .wall_start = clocks.wall,
                            .monotonic_start = clocks.monotonic,
                            .links = {}};
  for (const auto peer : group.members) {
    const auto* member = guarded.members.record_of(peer);
    const auto link = peer == self_peer ? std::string("self") : guarded.engine.describe_link(peer);
    identity.links.push_back(
        {.transport = link.substr(0, link.find(' ')), .place = member == nullptr ? std::string() : place_of(*member)});
  }
  auto made = record::Recorder::make(identity, {.operations = options.record_operations, .folder = options.record_folder});
  if (made) group.record = std::move(*made);
}

}  // namespace unisono
