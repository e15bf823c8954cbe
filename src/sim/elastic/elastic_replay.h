// Checks the rounds of an elastic run by repeating them: every chunk that a group decided is averaged again from its
// contributors' values, and compared with each member's result. It reports
//   - a chunk that some members applied and other members, who decided too, did not; or with other contributors or other bits
//   - a mean or a weight that does not follow from its contributors; weight that appeared, or disappeared among the living
//   - a value or weight that changed at a member that was no contributor, or did not decide
// Source of the rules: docs/design/methods/moshpit.md, "The fitted grid" and "The round inside a group". Plain values only,
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
  uint64_t groups = 0;      // groups of which at least one member finished
  uint64_t rounds = 0;      // rounds that members finished
  uint64_t chunks = 0;      // chunks that groups applied
  uint64_t voided = 0;      // chunks that groups discarded
  uint64_t absences = 0;    // members of a group that were not among the contributors, per chunk
  uint64_t undecided = 0;   // rounds that members ended without a decision
  double weight_error = 0;  // largest relative error of a sum of weights
  double value_error = 0;   // largest error of a mean, relative to the largest contribution
  uint64_t wrong = 0;
  std::vector<std::string> examples;  // a few of the errors found
};

class ElasticReplay final : public RoundWatch {
 public:
  void began(const RoundView& sight) override;
  void ended(const RoundView& sight, const MoshpitRound& round) override;
  // The peer was killed and will not finish.
  void gone(const PeerId& peer);

  const ReplayCounts& counts() const { return counts_; }

 private:
  struct Given {
    bool began = false, over = false;  // over: it finished, or is gone
    ChunkValues values;
    std::vector<ChunkState> states;
  };
  struct Outcome {  // of a chunk, from the first member that decided
    bool decided = false;
    std::optional<ChunkResult> result;  // empty: discarded
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
  void check_member(Group& group, uint32_t rank, const RoundView& sight, const MoshpitRound& round);
  void settle(Group& group, uint32_t chunk, const RoundView& sight, const ChunkResult* result);
  void replay(Group& group, uint32_t chunk, const ChunkResult& result, const SharedBuffer& mean);
  void over(Group& group, uint32_t rank);
  void wrong(const Group& group, uint32_t rank, const std::string& what);

  std::map<GroupId, Group> groups_;
  std::map<PeerId, GroupId> last_;  // a peer's current or last group
  uint64_t newest_ = 0;             // number of the newest averaging step
  ReplayCounts counts_;
};

}  // namespace unisono::sim
