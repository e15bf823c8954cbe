// Checks the rounds of an elastic run by repeating them. When a group has decided about a chunk (a part of the values), this
// class computes the mean again from the values of the contributors, and compares it with each member's result.
//
// These are errors:
// - Some members applied a chunk, and other members decided but did not apply it.
// - Members applied a chunk with different contributors or different bits.
// - A mean or a weight does not follow from its contributors.
// - Weight appeared, or disappeared among living members.
// - A value or weight changed at a member that did not contribute or did not decide.
//
// The rules are in docs/design/methods/moshpit.md, "The fitted grid" and "The round inside a group". Codecs are not supported.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "elastic/peer/round_watch.h"

namespace unisono::sim {

struct ReplayCounts {
  uint64_t groups = 0;      // groups in which at least one member finished
  uint64_t rounds = 0;      // rounds that members finished
  uint64_t chunks = 0;      // chunks whose mean a group applied
  uint64_t voided = 0;      // chunks that a group discarded
  uint64_t absences = 0;    // number of members that did not contribute, added over all applied chunks
  uint64_t undecided = 0;   // rounds that members ended without a decision
  double weight_error = 0;  // largest relative error of a sum of weights
  double value_error = 0;   // largest error of a mean, relative to the largest contribution
  uint64_t wrong = 0;
  std::vector<std::string> examples;  // some of the errors found
};

class ElasticReplay final : public RoundObserver {
 public:
  void began(const RoundView& view) override;
  void ended(const RoundView& view, const MoshpitRound& round) override;
  // Call this when the peer was killed and will not finish its round.
  void gone(const PeerId& peer);

  const ReplayCounts& counts() const { return counts_; }

 private:
  struct MemberInput {
    bool began = false, over = false;  // `over`: the member has finished the round, or is gone
    ChunkValues values;
    std::vector<ChunkState> states;
  };
  struct Outcome {  // what the group decided about a chunk, according to the first member that decided
    bool decided = false;
    std::optional<ChunkResult> result;  // empty: the chunk was discarded
    double mean_weight = 0;
    SharedBuffer mean;
    uint32_t positions = 0;
  };
  struct Group {
    GroupDescriptor descriptor;
    std::vector<MemberInput> input;  // indexed by rank
    std::vector<Outcome> outcomes;
    bool counted = false;
  };

  Group& open(const GroupDescriptor& descriptor);
  void check_member(Group& group, uint32_t rank, const RoundView& view, const MoshpitRound& round);
  void settle(Group& group, uint32_t chunk, const RoundView& view, const ChunkResult* result);
  void replay(Group& group, uint32_t chunk, const ChunkResult& result, const SharedBuffer& mean);
  void over(Group& group, uint32_t rank);
  void wrong(const Group& group, uint32_t rank, const std::string& what);

  std::map<GroupId, Group> groups_;
  std::map<PeerId, GroupId> last_;  // current or last group of each peer
  uint64_t newest_ = 0;             // number of the newest averaging step
  ReplayCounts counts_;
};

}  // namespace unisono::sim
