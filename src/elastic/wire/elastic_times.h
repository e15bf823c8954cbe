// How long the peers of an elastic run wait for each other. All values are durations on the local monotonic clock; peers never
// compare clocks. There are two profiles, lan and wan, and each value can also be set by itself. check() refuses a value that
// is out of range or contradicts another value.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "base/concat.h"
#include "unisono/status.h"

namespace unisono {

struct ElasticTimes {
  Nanos probe_period = 1 * second;  // a peer probes one random peer per period
  // If a peer does not answer a probe within this time, three other peers are asked to probe it.
  Nanos probe_timeout = 500 * millisecond;
  Nanos suspect_time = 3 * second;  // a peer that stays suspect for this long counts as dead
  Nanos gossip_period = 500 * millisecond;
  // A peer heals once per period: it compares its roster with that of another process, for example of a seed, or of the process
  // that listens at a dead peer's address.
  Nanos heal_period = 10 * second;
  Nanos forget_dead = 3600 * second;
  Nanos coordinator_timeout = 1 * second;  // does not run while the link to the coordinator is out
  Nanos gather_timeout = 2 * second;       // how long a coordinator waits for members that have not registered
  Nanos stall_timeout = 2 * second;        // how long a round waits for a silent member
  Nanos contribute_timeout = 5 * second;   // a lower limit; see contribute_timeout_for
  Nanos result_timeout = 4 * second;       // must be longer than stall_timeout
  Nanos ballot_timeout = 1 * second;
  Nanos round_timeout = 30 * second;  // a lower limit; see round_timeout_for
  Nanos relayout_period = 10 * second;
  Nanos leave_grace = 5 * second;

  static ElasticTimes lan() { return {}; }
  static ElasticTimes wan() {
    return {.probe_period = 2 * second,
            .probe_timeout = 1500 * millisecond,
            .suspect_time = 10 * second,
            .gossip_period = 1 * second,
            .heal_period = 30 * second,
            .forget_dead = 3600 * second,
            .coordinator_timeout = 3 * second,
            .gather_timeout = 10 * second,
            .stall_timeout = 6 * second,
            .contribute_timeout = 5 * second,
            .result_timeout = 12 * second,
            .ballot_timeout = 3 * second,
            .round_timeout = 120 * second,
            .relayout_period = 30 * second,
            .leave_grace = 15 * second};
  }

  // Returns contribute_timeout, or 4·vector_bytes/bytes_per_second if that is longer. The second value is limited to one day,
  // because a peer may claim a tiny bandwidth. bytes_per_second is the smallest bandwidth that was measured in the group; if it
  // is 0 or less, no bandwidth is known, and the result is contribute_timeout.
  Nanos contribute_timeout_for(double vector_bytes, double bytes_per_second) const {
    if (bytes_per_second <= 0) return contribute_timeout;
    return std::max(contribute_timeout,
                    static_cast<Nanos>(std::min(4e9 * vector_bytes / bytes_per_second, 24.0 * 3600 * second)));
  }
  // Returns round_timeout, or contribute + result_timeout + 10·ballot_timeout if that is longer. `contribute` is a result of
  // contribute_timeout_for().
  Nanos round_timeout_for(Nanos contribute) const {
    return std::max(round_timeout, contribute + result_timeout + 10 * ballot_timeout);
  }

  // Returns ok, or the error invalid with the name of the faulty value. Each value must be from 1 ms to timeout_max, and
  // result_timeout must be longer than stall_timeout.
  Status check() const {
    const struct {
      const char* name;
      Nanos value;
    } all[] = {{"probe_period", probe_period},
               {"probe_timeout", probe_timeout},
               {"suspect_time", suspect_time},
               {"gossip_period", gossip_period},
               {"heal_period", heal_period},
               {"forget_dead", forget_dead},
               {"coordinator_timeout", coordinator_timeout},
               {"gather_timeout", gather_timeout},
               {"stall_timeout", stall_timeout},
               {"contribute_timeout", contribute_timeout},
               {"result_timeout", result_timeout},
               {"ballot_timeout", ballot_timeout},
               {"round_timeout", round_timeout},
               {"relayout_period", relayout_period},
               {"leave_grace", leave_grace}};
    for (const auto& one : all) {
      if (one.value < millisecond || one.value > timeout_max)
        return {Code::invalid, concat(one.name, " is ", one.value / 1000, " us: 1 ms to 30 days are possible")};
    }
    if (result_timeout <= stall_timeout) return {Code::invalid, "result_timeout must be longer than stall_timeout"};
    return {};
  }
};

}  // namespace unisono
