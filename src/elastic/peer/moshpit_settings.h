// The settings of one peer of an elastic run, and the input and the result of an averaging step. Values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "elastic/layout/layout.h"
#include "elastic/peer/round_watch.h"
#include "elastic/round/moshpit_round.h"
#include "elastic/wire/elastic_message.h"
#include "elastic/wire/elastic_times.h"
#include "unisono/codec.h"
#include "unisono/elastic.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

struct MoshpitSettings {
  PeerId self;
  std::string run_id;
  std::string name;
  std::vector<std::string> addresses{};  // this process listens at these addresses
  std::vector<std::string> seeds{};
  bool found = false;
  Nanos join_timeout = 0;  // as in KeeperOptions
  ElasticRole role = ElasticRole::peer;
  ElasticTimes times;
  uint64_t elements = 0;  // number of elements of the averaged vector
  uint64_t schema = 0;
  uint32_t max_group = 32;
  uint32_t rounds = 0;  // per averaging step; 0: one round for each axis of the grid
  uint32_t min_peers = 1;
  uint32_t min_chunks = 0;
  uint32_t max_peers = 4096;
  GridKind grid = GridKind::fitted;
  std::vector<uint32_t> dims{};  // only tests set it
  CommitRule commit = CommitRule::agreed;
  StepCodec contribute{}, result{};
  uint64_t seed = 0;               // determines all random choices; each process needs its own seed
  RoundObserver* watch = nullptr;  // must outlive the peer
};

// A weight above 0 must be within these bounds. Then a weight times any fp32 value neither overflows nor loses bits, even after
// many rounds have divided the weight. Even in the largest run, the sum of all weights stays below contribution_weight_max.
inline constexpr double step_weight_min = 1e-96, step_weight_max = 1e96;
static_assert(step_weight_max * roster_peers_max < contribution_weight_max);
constexpr bool is_step_weight(double weight) { return weight == 0 || (weight >= step_weight_min && weight <= step_weight_max); }
inline Status check_step_weight(double weight) {
  if (is_step_weight(weight)) return {};
  return {Code::invalid, concat("a weight of ", weight, ": it must be 0, or from 1e-96 to 1e96")};
}

struct StepInput {
  // The values of all tensors as fp32, one tensor after the other. A reducer has none. The memory must not change after
  // begin_step().
  SharedBuffer values{};
  double weight = 1;              // must satisfy is_step_weight()
  bool keep_contributed = false;  // true: FinishedStep::contributed is to hold the input values
};

struct FinishedStep {
  ChunkValues values{};
  SharedBuffer contributed{};  // the input values, if keep_contributed was set; otherwise empty
  // For each chunk: true if this peer's values had weight 0, so that the mean has replaced them.
  std::vector<bool> replaced{};
  AveragingReport report;
};

using NamedBlob = std::pair<std::string, std::vector<std::byte>>;

}  // namespace unisono
