// Reports of an elastic run: what an averaging step did, who takes part in the run, and the state that a process received when
// it joined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "unisono/export.h"

namespace unisono {

// Describes one round of an averaging step, as this peer saw it.
struct RoundSummary {
  uint32_t round = 0;
  std::string outcome{};  // "averaged", "alone", "no coordinator", "closed", "full", "undecided", "void"
  uint32_t group = 0;     // number of members
  uint32_t contributors_min = 0, contributors_max = 0;  // smallest and largest number of contributors to a chunk
  double contributors_mean = 0;
  // The numbers of chunks with each outcome at this peer.
  // - committed: the result was applied.
  // - kept_local: the result was applied, but it does not include this peer's values.
  // - voided: no member applied the result.
  // - undecided: no verdict (decision of the group) was reached.
  // - lost: the group committed the chunk, but this peer could not fetch the result.
  uint64_t committed = 0, kept_local = 0, voided = 0, undecided = 0, lost = 0;
  // How many contributions were refused, because a value in them is NaN or infinite; a contribution is one member's values of
  // one chunk. The member keeps these values, and the others average without them.
  uint64_t refused = 0;
  // The absent peers with the reasons, for example "worker 3 (sent nothing for 2.0 s)". They are members of the group, and
  // peers that should be in it but are not. This process is among them if its own contributions were refused.
  std::vector<std::string> absent{};
  double gather_s = 0, contribute_s = 0, result_s = 0, verdict_s = 0;  // seconds that this peer waited in each phase
  // model_bytes: the bytes that this peer must send in this round at least, for its own values and for the results of its
  // chunks.
  uint64_t sent_bytes = 0, received_bytes = 0, model_bytes = 0;
  // How far replicas differed within the group before averaging: the variance between members, averaged over the elements.
  double variance = 0;
  double total_weight = 0;
};

// Describes one averaging step, as this peer saw it. After a failure, each chunk holds either its old values or an average.
struct AveragingReport {
  uint64_t step = 0;
  bool exact = false;   // true: the result includes the values of all peers
  uint64_t layout = 0;  // version of the layout, which assigns peers to the grid
  std::vector<uint32_t> dims;
  uint32_t peers = 0;  // number of live peers that this peer knows
  std::vector<RoundSummary> rounds;
  double seconds = 0;
  // Describes unusual events; empty: there were none. If the step is not exact, this names the absent peers.
  std::string note;
  UNISONO_EXPORT std::string to_string() const;
};

struct ElasticPeer {
  std::string name;
  std::string status;  // "joining", "alive", "suspect", "left", "dead"
  std::string address;
  std::string role;
  double bytes_per_second = 0;  // measured bandwidth; 0: not measured yet
  int64_t finished_step = -1;
  bool self = false;
};

struct ElasticStatus {
  std::string phase;  // "joining", "loading", "idle", "averaging", "leaving", "ended"
  std::vector<ElasticPeer> peers;
  uint64_t layout = 0;
  std::vector<uint32_t> dims;
  // Numbers of averaging steps that this process has finished: all of them, and the exact ones.
  uint64_t averaging_steps = 0, exact_averaging_steps = 0;
  uint64_t sent_bytes = 0, received_bytes = 0;
  uint64_t refused = 0;  // number of connections and messages that were refused because they were unauthenticated or damaged
  std::string last_refusal;
  uint32_t links = 0;
  uint32_t serving = 0;                // number of joiners that are loading the state from this peer now
  std::vector<std::string> endpoints;  // the addresses where this process listens
};

// The state that a process received from other peers (its donors) when it joined.
struct ElasticState {
  bool loaded = false;          // false: this process founded the run, or no peer had a state to give
  int64_t step = -1;            // the last averaging step that the donors had finished
  std::vector<float> values{};  // the values of all tensors, one tensor after the other
  std::vector<std::pair<std::string, std::vector<std::byte>>> blobs{};
  bool mixed = false;  // true: the values come from several donors whose states differed
  uint32_t donors = 0;
  double seconds = 0;
  uint64_t bytes = 0;
  std::string note{};  // says why nothing was loaded; otherwise empty
};

}  // namespace unisono
