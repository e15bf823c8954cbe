// The state that one process has while links are surveyed (group/lifecycle/link_survey). The runtime's mutex guards it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "group/lifecycle/link_probe.h"
#include "wire/peer_id.h"

namespace unisono {

struct ProbedLink {
  PeerIndex peer = 0;
  uint32_t request = 0;  // the number that rank 0 has given to this measurement
  LinkProbe probe;
  std::shared_ptr<Bytes> sent{};  // the message of the last request
};

struct Survey {
  std::optional<ProbedLink> probe;  // the probe of the link that this process is measuring
  uint32_t probes = 0;              // number of probes that have begun so far
  // Used on rank 0. This round's measurements have the numbers first_request to first_request + request_count - 1.
  uint32_t first_request = 0, request_count = 0;
  // Used on rank 0. The results of this round so far; the key is the number of the measurement.
  std::map<uint32_t, LinkMeasurement> results;
};

}  // namespace unisono
