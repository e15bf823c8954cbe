// Checks what rounds did in an elastic run, by doing it again: every chunk that a group decided is averaged from what its
// contributors gave, and compared with what each member has afterwards. Found wrong is
//   - a chunk that some members applied and others, who decided, too, did not; or applied with other contributors or other bits
//   - a mean or a weight that is not that of its contributors; weight that came into being, or got lost among those that live
//   - a value or weight that changed at somebody who was not among the contributors, or who did not decide
// Source of what is right: docs/design/methods/moshpit.md, "The fitted grid" and "The round inside a group". Plain values only,
// without codecs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "elastic/peer/round_watch.h"

namespace unisono::sim {

struct ReplayCounts {
  uint64_t groups = 0;      // of which at least one member came to the end
  uint64_t rounds = 0;      // of members, that came to the end
  uint64_t chunks = 0;      // of groups, that were applied
  uint64_t voided = 0;      // of groups, that were nobody's step
  uint64_t absences = 0;    // members of a group that were not among the contributors, by chunks
  uint64_t undecided = 0;   // rounds of members without a verdict
  double weight_error = 0;  // largest, of a sum of weights, relative
  double value_error = 0;   // largest, of a mean, relative to the largest contribution
  uint64_t wrong = 0;
  std::vector<std::string> examples;  // of what was wrong, a few
};

class ElasticReplay final : public RoundWatch {
 public:
  void began(const RoundSight& sight) override;
  void ended(const RoundSight& sight, const MoshpitRound& round) override;
  // The peer was killed: it will not come to an end.
  void gone(const PeerId& peer);

  const ReplayCounts& counts() const { return counts_; }

 private:
  struct Given {
    bool began = false, over = false;  // over: it came to the end, or is gone
    ChunkValues values;
    std::vector<ChunkState> states;
  };
  struct Outcome {  // of a chunk, as the first who decided has it
    bool decided = false;
    std::optional<ChunkResult> result;  // nothing: nobody's step
    double mean_weight = 0;
    SharedBuffer mean;
    uint32_t positions = 0;
  };
  struct Group {
    GroupDescriptor descriptor;
    std::vector<Given> given;  // by rank
    std::vector<Outcome> outcomes;
    bool counted = false;
  };

  Group& open(const GroupDescriptor& descriptor);
  void check_member(Group& group, uint32_t rank, const RoundSight& sight, const MoshpitRound& round);
  void settle(Group& group, uint32_t chunk, const RoundSight& sight, const ChunkResult* result);
  void replay(Group& group, uint32_t chunk, const ChunkResult& result, const SharedBuffer& mean);
  void over(Group& group, uint32_t rank);
  void wrong(const Group& group, uint32_t rank, const std::string& what);

  std::map<GroupId, Group> groups_;
  std::map<PeerId, GroupId> last_;  // in which a peer is, or was last
  uint64_t newest_ = 0;             // averaging step
  ReplayCounts counts_;
};

}  // namespace unisono::sim
