#include "group/lifecycle/recording.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "base/concat.h"
#include "base/random.h"
#include "group/lifecycle/reporting.h"
#include "record/process.h"

namespace unisono {
namespace {

// At most this many groups get a record. Each record keeps a file open, and subgroups exist until the group is re-formed, so
// there could be too many open files.
constexpr size_t recorded_groups_max = 64;

// Returns an id of the run. It is a hash of the key, so that the record file does not reveal the key.
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

// The times of both clocks at almost the same moment. clocks_now() reads them five times, and uses the reading that took the
// shortest time.
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

void report_no_record(GuardedState& guarded) {
  report_event(guarded, EventKind::record_unavailable, self_peer,
               concat("groups that are made from now on have no record, because this process has ", recorded_groups_max,
                      " already; unisono top and explain do not show them"));
}

void report_missing(GuardedState& guarded, const GroupCore& group, const Status& why) {
  const auto& folder = guarded.options.record_folder;
  const auto cause = group.record == nullptr ? std::string("this group has no record")
                     : folder.empty()        ? std::string("other processes cannot read the record of this group")
                                             : concat("the record of this group is not in UNISONO_RECORD_DIR (", folder,
                                                      "), so it is lost when this process ends");
  report_event(guarded, EventKind::record_unavailable, self_peer, concat(cause, ": ", why.message()));
}

}  // namespace

void keep_record(GuardedState& guarded, GroupCore& group) {
  const auto& options = guarded.options;
  if (options.record_operations == 0) return;
  if (guarded.engine.group_count() > recorded_groups_max) {
    if (guarded.engine.group_count() == recorded_groups_max + 1) report_no_record(guarded);
    return;
  }
  const auto* self = guarded.members.record_of(self_peer);
  if (self == nullptr) return;  // This process was removed from the group.
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
        {.transport = link.substr(0, link.find(' ')), .place = member == nullptr ? std::string() : host_label(*member)});
  }
  auto made = record::Recorder::make(identity, {.operations = options.record_operations, .folder = options.record_folder});
  const auto why = made ? (*made)->status() : made.status();
  if (made) group.record = std::move(*made);
  if (!why.ok()) report_missing(guarded, group, why);
}

}  // namespace unisono
