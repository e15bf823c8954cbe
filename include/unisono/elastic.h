// Averaging that survives peers coming and going, without a master: Moshpit All-Reduce over an elastic run.
//
//   auto run = unisono::Elastic::join({.run_id = "demo", .seeds = {"10.0.0.1:4040"}, .tensor_elements = {model.size()}});   //
//   one peer: .found = true if (run->state().loaded) model = run->state().values;    // what the others had when this process
//   came for (;;) {
//     for (int step = 0; step < 8; ++step) train(model);
//     auto report = run->average(model, samples);              // the weighted mean over all peers that took part
//     if (!report.ok()) break;                                 // shutting down; anything else that goes wrong is in the report
//   }
//   if (!run->leave().ok()) …                                 // or do not say goodbye: the others notice
//
// Peers meet in small groups, one after the other along each axis of a grid, so that a peer that vanishes spoils a part of one
// group's round and nothing else. Without absences an averaging step is exact for every number of peers, and equal to the bit
// on all of them. With absences nothing is lost or counted twice: later averaging steps even it out. No peer is special; any
// live one is enough to join by.
//
// Crash faults only: a peer that lies can do harm. A run key keeps unauthenticated peers out.
//
// Source: M. Ryabinin et al., Moshpit SGD, arXiv:2103.03239; the grid that fits any number of peers, conserved mass,
// coordinators and verdicts are Unisono's. See docs/guides/elastic.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "unisono/codec.h"
#include "unisono/export.h"
#include "unisono/group.h"
#include "unisono/options.h"
#include "unisono/status.h"

namespace unisono {

namespace internal {
class ElasticRun;
struct ElasticCall;
}  // namespace internal

struct ElasticOptions {
  enum class Profile : uint8_t { lan = 0, wan = 1 };
  // peer: takes part. client: cannot be reached from outside; opens all connections itself, adds up nothing for others.
  // reducer: has no values of its own, adds up for others.
  enum class Role : uint8_t { peer = 0, client = 1, reducer = 2 };
  // fitted: exact for every number of peers. For comparison, and exact only for max_group^d peers or one group of all:
  // published, the fixed grid of the authors' simulation; chunk_keys, the published rule by which a peer's next group follows
  // from its place in the last one. A group of fewer than max_group waits for gather_timeout there.
  enum class Grid : uint8_t { fitted = 0, published = 1, chunk_keys = 2 };
  // agreed: a group's members apply a chunk all or none, by a majority's verdict. per_result: on receipt, three message delays
  // earlier; a peer that dies meanwhile may leave a chunk applied by some only.
  enum class Commit : uint8_t { agreed = 0, per_result = 1 };

  std::string run_id;  // runs are told apart by it; not empty
  bool found =
      false;  // begin the run, at once; where seeds turn out to be in one of the same name, the two unite. Never done unasked
  // Where peers of the run can be found; any one is enough. "host:port", "tcp://10.0.0.1:4040", "[::1]:4040"; a name that has
  // several addresses stands for all of them; "file:PATH": one per line, read again at each attempt. "dht:host:port": a node of
  // an OpenDHT network, in which processes of the run find each other (unsupported where the library was built without it).
  std::vector<std::string> seeds{};
  std::vector<uint64_t> tensor_elements{};  // of what average() is given, in order; equal on all peers (fp32)
  std::string name{};                       // for people; empty: host and process number
  std::string interface {};                 // name or address to listen at; empty: all
  uint16_t port = 0;                        // 0: the kernel chooses
  Role role = Role::peer;
  std::string run_key{};           // a secret that all peers know: who does not show it is refused. Empty: none
  Profile profile = Profile::lan;  // lan: silence is noticed within seconds. wan: within tens of seconds
  uint32_t max_group = 32;         // 4 … 128
  uint32_t rounds = 0;             // of an averaging step; 0: one along each axis
  uint32_t min_peers = 1;          // the first averaging step waits for so many
  uint32_t min_chunks = 0;         // who would own fewer owns none
  uint32_t max_peers = 4096;
  Grid grid = Grid::fitted;
  Commit commit = Commit::agreed;
  StepCodec contribute{}, result{};  // plain unless said otherwise; an averaging step encodes results once per axis, so results
                                     // want at least 8 bits
  Milliseconds join_timeout{60'000};
  Milliseconds gather_timeout{0};  // 0: the profile's. How long a group waits for members that do not come
  Milliseconds stall_timeout{0};   // 0: the profile's. How long one that says nothing is waited for inside a round
};

// One round of one averaging step, at this peer.
struct RoundSummary {
  uint32_t round = 0;
  std::string outcome{};  // "averaged", "alone", "no coordinator", "closed", "full", "undecided", "void"
  uint32_t group = 0;     // members
  uint32_t contributors_min = 0, contributors_max = 0;  // over chunks
  double contributors_mean = 0;
  uint64_t committed = 0, kept_local = 0, voided = 0, undecided = 0,
           lost = 0;  // chunks: applied; applied, but without this peer's values; nobody's step; no verdict; committed but not
                      // to be had
  std::vector<std::string> absent{};                                   // "worker 3 (said nothing for 2.0 s)"
  double gather_s = 0, contribute_s = 0, result_s = 0, verdict_s = 0;  // seconds waited in each phase
  uint64_t sent_bytes = 0, received_bytes = 0,
           model_bytes = 0;  // model_bytes: what a round of so many members must send at least
  double variance = 0;       // within the group, before averaging, mean over elements: an estimate of the spread
  double total_weight = 0;
};

// One averaging step, at this peer. Whatever went wrong, the tensors hold either what they held, or averages, chunk by chunk.
struct AveragingReport {
  uint64_t step = 0;
  bool exact = false;   // the result lacks no peer's values
  uint64_t layout = 0;  // version
  std::vector<uint32_t> dims;
  uint32_t peers = 0;  // alive, as far as known
  std::vector<RoundSummary> rounds;
  double seconds = 0;
  std::string note;  // what was not as usual; empty: nothing
  UNISONO_EXPORT std::string to_string() const;
};

struct ElasticPeer {
  std::string name;
  std::string status;  // "joining", "alive", "suspect", "left", "dead"
  std::string address;
  std::string role;
  double bytes_per_second = 0;  // measured; 0: not yet
  int64_t finished_step = -1;
  bool self = false;
};

struct ElasticStatus {
  std::string phase;  // "joining", "loading", "idle", "averaging", "leaving", "ended"
  std::vector<ElasticPeer> peers;
  uint64_t layout = 0;
  std::vector<uint32_t> dims;
  uint64_t averaging_steps = 0, exact_averaging_steps = 0;  // finished here
  uint64_t sent_bytes = 0, received_bytes = 0;
  uint64_t refused = 0;  // connections and messages of unauthenticated peers, and what was damaged
  std::string last_refusal;
  uint32_t links = 0;
  uint32_t serving = 0;                // joiners that load from this peer now
  std::vector<std::string> endpoints;  // of this process
};

// What a process found when it joined.
struct ElasticState {
  bool loaded = false;          // false: it founded the run, or nobody had anything to give
  int64_t step = -1;            // the donors' last one
  std::vector<float> values{};  // of all tensors, in order
  std::vector<std::pair<std::string, std::vector<std::byte>>> blobs{};
  bool mixed = false;  // donors differed: one of them was taken
  uint32_t donors = 0;
  double seconds = 0;
  uint64_t bytes = 0;
  std::string note{};  // why nothing was loaded
};

// An averaging step that goes on while this process computes. The last copy to go does not end the averaging step.
class UNISONO_EXPORT ElasticWork {
 public:
  ElasticWork() = default;
  bool done() const;
  // Waits, then brings the result into the tensors that were given to average_async: added as (mean - what was contributed), so
  // that local steps taken meanwhile are kept; an element that nobody changed meanwhile, or that was given with weight 0,
  // becomes the mean itself, to the bit. Once; 0: for as long as it takes (every averaging step ends by its own time-outs).
  // late: not done yet, call again.
  Result<AveragingReport> wait(Milliseconds timeout = Milliseconds{0});
  // Takes part no longer; what rounds had brought so far is in the result all the same.
  void cancel();

 private:
  friend class Elastic;
  explicit ElasticWork(std::shared_ptr<internal::ElasticCall> call);
  std::shared_ptr<internal::ElasticCall> call_;
};

class UNISONO_EXPORT Elastic {
 public:
  // Blocks until this process knows the run's peers (join_timeout) and has the state that they give (reducers and founders:
  // nothing; it goes on while a donor gives any sign within 30 s). Errors: invalid (options; RUN_ID_MISMATCH, SCHEMA_MISMATCH:
  // a seed answered for another run or other tensors), unavailable (NO_SEED: none answered, each is named; ROSTER_FULL; a port
  // that is taken).
  static Result<Elastic> join(const ElasticOptions& options);
  Elastic(Elastic&&) noexcept;
  Elastic& operator=(Elastic&&) noexcept;
  ~Elastic();  // leaves, if leave() was not called

  const ElasticState& state() const;
  // True once min_peers are there and have a layout.
  bool ready(Milliseconds timeout);

  // One averaging step over the tensors (sizes as in tensor_elements), in place. weight: how much this peer's values count,
  // such as samples behind them; 0: takes the mean and gives nothing. invalid: wrong sizes, a weight that is neither 0 nor from
  // 1e-96 to 1e96, or another averaging step is running. unavailable (SHUTTING_DOWN): leave() was called.
  Result<AveragingReport> average(std::span<const std::span<float>> tensors, double weight = 1);
  Result<AveragingReport> average(std::span<float> tensor, double weight = 1);
  // The same while this process computes on: a copy is averaged.
  Result<ElasticWork> average_async(std::vector<std::span<float>> tensors, double weight = 1);

  // What joiners are given together with the values of the next averaging step (or of offer_values): optimizer state, step
  // numbers, … Replaces what was set before. At most 1 GiB in all and 64 blobs.
  Status set_state(std::vector<std::pair<std::string, std::vector<std::byte>>> blobs);
  // For a process that joined as `joining` and has no values yet gave: until the first averaging step, joiners are given these
  // values.
  Status offer_values(std::span<const std::span<float>> tensors);

  ElasticStatus status() const;
  // An ordinary group of the peers that the newest layout names, in its order, for exact collectives between averaging steps:
  // it has all that a group has, and re-forms like one when somebody is lost. All of them call it after the same averaging
  // step. options: of the group; rank, world size, rendezvous and job are filled in. unavailable: there is no layout, or it
  // does not name this process (yet: try again after the next averaging step); late: somebody did not come, who is named.
  Result<Group> group(Milliseconds timeout = Milliseconds{10'000}, const Options& options = {});
  // Says goodbye: finishes what others wait for, as far as it fits into the profile's grace (5 or 15 s), and ends. Safe to call
  // twice.
  Status leave();

 private:
  explicit Elastic(std::shared_ptr<internal::ElasticRun> run);
  std::shared_ptr<internal::ElasticRun> run_;
};

}  // namespace unisono
