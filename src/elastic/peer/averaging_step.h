// The state of an averaging step that is under way at one peer.
#pragma once

#include <vector>

#include "base/clock.h"
#include "elastic/layout/layout.h"
#include "elastic/peer/moshpit_settings.h"
#include "elastic/round/moshpit_round.h"

namespace unisono {

struct MoshpitAveraging {
  enum class Phase : uint8_t { choosing, seeking, averaging };  // choosing: no layout in effect is known yet

  StepInput input;
  ChunkValues values;              // averaged by the rounds finished so far
  std::vector<ChunkState> states;  // by chunk
  uint64_t number = 0;
  uint32_t round = 0, rounds = 0;
  Layout layout;
  Phase phase = Phase::choosing;
  Nanos began = 0;
  Nanos phase_began = 0;
  double gather_s = 0;  // of the current round
  // This peer came too late for the averaging step that others are in; it waits until they open this one.
  bool awaits_others = false;
  uint64_t skipped_from = 0;  // first of the averaging steps before `number` whose slots this peer has not yet withdrawn from
  uint32_t stale = 0;         // times that a coordinator had a newer layout
  uint64_t members_expected = 0, members_absent = 0;  // over the groups so far
  bool cancelled = false;
  AveragingReport report;
  Nanos choosing_patience = 0;

  Nanos choosing_until() const { return phase == Phase::choosing ? phase_began + choosing_patience : never; }
};

}  // namespace unisono
