// The state of the averaging step that a peer is running.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "elastic/layout/layout.h"
#include "elastic/peer/moshpit_settings.h"
#include "elastic/round/moshpit_round.h"

namespace unisono {

// A peer whose values a round lacks, or that was lost during the round.
struct AbsentPeer {
  PeerId id;
  std::string reason;
};

struct MoshpitAveraging {
  enum class Phase : uint8_t { choosing, seeking, averaging };  // choosing: the step waits for a layout

  StepInput input;
  ChunkValues values;              // this peer's values after the rounds that are finished
  std::vector<ChunkState> states;  // the state of each chunk
  uint64_t number = 0;
  uint32_t round = 0, rounds = 0;
  Layout layout;
  Phase phase = Phase::choosing;
  Nanos began = 0;
  Nanos phase_began = 0;
  double gather_s = 0;  // so many seconds of the current round were spent on finding a group
  // True: this peer came too late for the averaging step of the other peers. It now waits until another peer opens averaging
  // step `number`.
  bool awaits_others = false;
  // skip_steps() must still withdraw from the averaging steps skipped_from … number - 1.
  uint64_t skipped_from = 0;
  uint32_t stale = 0;   // how often a coordinator has sent a newer layout
  bool relaid = false;  // true: the layout has changed between two rounds
  // All peers that were absent from the rounds so far, each once, with the first reason.
  std::vector<AbsentPeer> absent;
  // For all groups so far: how many members they had, and how many of these were absent.
  uint64_t members_expected = 0, members_absent = 0;
  bool cancelled = false;
  AveragingReport report;
  Nanos choosing_timeout = 0;

  Nanos choosing_until() const { return phase == Phase::choosing ? phase_began + choosing_timeout : never; }
};

// Adds the text to a note, unless the note has it already.
inline void add_note(std::string& note, const std::string& text) {
  if (note.find(text) == std::string::npos) note += (note.empty() ? "" : "; ") + text;
}

}  // namespace unisono
