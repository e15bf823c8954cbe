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

// The peers are those of an earlier roster where a re-forming found no links to all of the new one.
const MemberRecord* member_of(Runtime& runtime, PeerIndex peer) {
  const auto rank =
      static_cast<size_t>(std::find(runtime.peers().begin(), runtime.peers().end(), peer) - runtime.peers().begin());
  return rank < std::min(runtime.peers().size(), runtime.roster().members.size()) ? &runtime.roster().members[rank] : nullptr;
}

}  // namespace

void keep_record(Runtime& runtime, GroupCore& group) {
  const auto& options = runtime.options();
  if (options.record_operations == 0 || runtime.engine().group_count() > recorded_groups_max) return;
  const auto* self = member_of(runtime, self_peer);
  if (self == nullptr) return;  // removed from the group: nothing runs in it
  const auto process = record::process_state(::getpid());
  const auto clocks = clocks_now();
  record::Identity identity{.run = run_of(runtime.roster().key),
                            .group = group.number,
                            .epoch = runtime.roster().epoch,
                            .rank = group.self,
                            .host = self->host,
                            .pid = ::getpid(),
                            .process_started = process ? process->started : 0,
                            .wall_start = clocks.wall,
                            .monotonic_start = clocks.monotonic,
                            .links = {}};
  for (const auto peer : group.members) {
    const auto* member = member_of(runtime, peer);
    const auto link = peer == self_peer ? std::string("self") : runtime.engine().describe_link(peer);
    identity.links.push_back(
        {.transport = link.substr(0, link.find(' ')), .place = member == nullptr ? std::string() : place_of(*member)});
  }
  auto made = record::Recorder::make(identity, {.operations = options.record_operations, .folder = options.record_folder});
  if (made) group.record = std::move(*made);
}

}  // namespace unisono
