// What one peer of an elastic run is made from, and what goes into and comes out of an averaging step. Values.
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
  uint32_t rounds = 0;  // of an averaging step; 0: one per axis
  uint32_t min_peers = 1;
  uint32_t min_chunks = 0;
  uint32_t max_peers = 4096;
  GridKind grid = GridKind::fitted;
  std::vector<uint32_t> dims{};  // tests may fix them
  CommitRule commit = CommitRule::agreed;
  StepCodec contribute{}, result{};
  uint64_t seed = 0;            // of all random choices; never the same in two processes
  RoundWatch* watch = nullptr;  // outlives the peer
};

// As many as a run may have add up to what a contribution may weigh, and a product with any fp32 is neither infinite nor so
// small that it loses bits, however often a weight is shared out.
inline constexpr double step_weight_min = 1e-96, step_weight_max = 1e96;
static_assert(step_weight_max * roster_peers_max < contribution_weight_max);
constexpr bool is_step_weight(double weight) { return weight == 0 || (weight >= step_weight_min && weight <= step_weight_max); }
inline Status check_step_weight(double weight) {
  if (is_step_weight(weight)) return {};
  return {Code::invalid, "a weight of " + std::to_string(weight) + ": it must be 0, or from 1e-96 to 1e96"};
}

struct StepInput {
  SharedBuffer values{};          // fp32, of all tensors; none for a reducer. Nobody changes them any more
  double weight = 1;              // as is_step_weight says
  bool keep_contributed = false;  // give them back beside the result
};

struct FinishedStep {
  ChunkValues values{};
  SharedBuffer contributed{};    // as they were given; empty unless asked for
  std::vector<bool> replaced{};  // by chunk: this peer's own values had weight 0, and a mean stands in their place
  AveragingReport report;
};

using NamedBlob = std::pair<std::string, std::vector<std::byte>>;

}  // namespace unisono
