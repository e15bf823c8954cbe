// The settings of one peer of an elastic run, and the input and result of an averaging step. Values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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
  std::vector<std::string> addresses{};  // of this process
  std::vector<std::string> seeds{};
  bool found = false;
  ElasticRole role = ElasticRole::peer;
  ElasticTimes times;
  uint64_t elements = 0;  // of the vector that is averaged
  uint64_t schema = 0;
  uint32_t max_group = 32;
  uint32_t rounds = 0;  // per averaging step; 0: one per axis
  uint32_t min_peers = 1;
  uint32_t min_chunks = 0;
  uint32_t max_peers = 4096;
  GridKind grid = GridKind::fitted;
  std::vector<uint32_t> dims{};  // set by tests only
  CommitRule commit = CommitRule::agreed;
  StepCodec contribute{}, result{};
  uint64_t seed = 0;            // of all random choices; no two processes may share it
  RoundWatch* watch = nullptr;  // must outlive the peer
};

// Bounds of a weight above 0. The sum over the largest run stays below contribution_weight_max. A product with any fp32 value
// neither overflows nor loses bits, however often a weight is divided.
inline constexpr double step_weight_min = 1e-96, step_weight_max = 1e96;
static_assert(step_weight_max * roster_peers_max < contribution_weight_max);
constexpr bool is_step_weight(double weight) { return weight == 0 || (weight >= step_weight_min && weight <= step_weight_max); }
inline Status check_step_weight(double weight) {
  if (is_step_weight(weight)) return {};
  return {Code::invalid, "a weight of " + std::to_string(weight) + ": it must be 0, or from 1e-96 to 1e96"};
}

struct StepInput {
  SharedBuffer values{};  // fp32, all tensors one after the other; empty for a reducer. The memory must not change any more
  double weight = 1;      // must satisfy is_step_weight
  bool keep_contributed = false;  // return the input values beside the result
};

struct FinishedStep {
  ChunkValues values{};
  SharedBuffer contributed{};    // the input values; empty unless keep_contributed
  std::vector<bool> replaced{};  // by chunk: this peer's values had weight 0, and the mean has replaced them
  AveragingReport report;
};

using NamedBlob = std::pair<std::string, std::vector<std::byte>>;

}  // namespace unisono
