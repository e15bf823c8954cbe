// Averaging among peers that come and go, without a master: Moshpit All-Reduce over an elastic run.
//
//   // One peer begins the run: .found = true. All others name a seed.
//   auto run = unisono::Elastic::join({.run_id = "demo", .seeds = {"10.0.0.1:4040"}, .tensor_elements = {model.size()}});
//   if (run->state().loaded) model = run->state().values;  // the other peers' state
//   for (;;) {
//     for (int step = 0; step < 8; ++step) train(model);
//     auto report = run->average(model, samples);  // the weighted mean over all peers that took part
//     if (!report.ok()) break;                     // shutting down; the report tells of all other faults
//   }
//   auto left = run->leave();  // optional: without it the other peers notice the silence
//
// Peers average in small groups, one round along each axis of a grid. A peer that vanishes disturbs one group's round and
// nothing else. Without absences an averaging step is exact for every number of peers, with equal bits on all of them. With
// absences no value is lost or counted twice, and later averaging steps even the difference out. No peer is special: a process
// can join through any live peer.
//
// Only crash faults are tolerated: a peer that lies can do harm. A run key keeps unauthenticated peers out.
//
// Source: M. Ryabinin et al., Moshpit SGD, arXiv:2103.03239. The grid that fits any number of peers, conserved mass,
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
  // peer: takes part fully. client: cannot be reached from outside; it opens all its connections itself and adds up no chunks
  // for others. reducer: has no values of its own and adds up chunks for others.
  enum class Role : uint8_t { peer = 0, client = 1, reducer = 2 };
  // fitted: exact for every number of peers. The other two exist for comparison; they are exact only for max_group^d peers or
  // for one group of all. published: the fixed grid of the authors' simulation. chunk_keys: the published rule, by which a
  // peer's next group follows from its position in the last one; there a group of fewer than max_group peers waits for
  // gather_timeout.
  enum class Grid : uint8_t { fitted = 0, published = 1, chunk_keys = 2 };
  // agreed: the members of a group apply a chunk all or none, by a majority's verdict. per_result: each member applies a result
  // on receipt, three message delays earlier; if the chunk's owner dies meanwhile, only some members may have applied it.
  enum class Commit : uint8_t { agreed = 0, per_result = 1 };

  std::string run_id;  // identifies the run; must not be empty
  // Begins the run at once. If the seeds turn out to be in a run of the same name, the two unite. A process never begins a run
  // unasked.
  bool found = false;
  // Addresses of peers of the run; one that answers is enough. "host:port", "tcp://10.0.0.1:4040" or "[::1]:4040"; a name with
  // several addresses stands for all of them. "file:PATH": one seed per line, read again at each attempt. "dht:host:port": a
  // node of an OpenDHT network, where processes of the run find each other (unsupported where the library was built without
  // OpenDHT).
  std::vector<std::string> seeds{};
  std::vector<uint64_t> tensor_elements{};  // fp32 elements of each tensor given to average(), in order; equal on all peers
  std::string name{};                       // shown to people; empty: host name and process number
  std::string interface {};                 // interface name or address to listen on; empty: all
  uint16_t port = 0;                        // 0: the kernel chooses
  Role role = Role::peer;
  std::string run_key{};           // a secret that all peers share; peers that do not know it are refused. Empty: none
  Profile profile = Profile::lan;  // lan: a silent peer is noticed within seconds. wan: within tens of seconds
  uint32_t max_group = 32;         // largest group; 4 … 128
  uint32_t rounds = 0;             // rounds per averaging step; 0: one along each axis
  uint32_t min_peers = 1;          // the first averaging step waits until this many peers are there
  uint32_t min_chunks = 0;         // a member whose share would be smaller than this owns no chunks
  uint32_t max_peers = 4096;
  Grid grid = Grid::fitted;
  Commit commit = Commit::agreed;
  StepCodec contribute{}, result{};  // plain by default. Results are encoded once per axis, so give them at least 8 bits
  Milliseconds join_timeout{60'000};
  Milliseconds gather_timeout{0};  // How long a group waits for members that do not come. 0: the profile's
  Milliseconds stall_timeout{0};   // How long a round waits for a member that says nothing. 0: the profile's
};

// One round of an averaging step, as this peer saw it.
struct RoundSummary {
  uint32_t round = 0;
  std::string outcome{};  // "averaged", "alone", "no coordinator", "closed", "full", "undecided", "void"
  uint32_t group = 0;     // number of members
  uint32_t contributors_min = 0, contributors_max = 0;  // per chunk
  double contributors_mean = 0;
  // Counts of chunks. committed: applied. kept_local: applied, but without this peer's values. voided: no member takes a step.
  // undecided: no verdict. lost: committed, but no result could be fetched.
  uint64_t committed = 0, kept_local = 0, voided = 0, undecided = 0, lost = 0;
  std::vector<std::string> absent{};                                   // for example "worker 3 (said nothing for 2.0 s)"
  double gather_s = 0, contribute_s = 0, result_s = 0, verdict_s = 0;  // seconds spent waiting in each phase
  // model_bytes: the least that a round with this many members must send.
  uint64_t sent_bytes = 0, received_bytes = 0, model_bytes = 0;
  double variance = 0;  // variance within the group before averaging, mean over the elements: an estimate of the spread
  double total_weight = 0;
};

// One averaging step, as this peer saw it. After any failure, each chunk of the tensors holds either its old values or an
// average.
struct AveragingReport {
  uint64_t step = 0;
  bool exact = false;   // the result lacks no peer's values
  uint64_t layout = 0;  // its version
  std::vector<uint32_t> dims;
  uint32_t peers = 0;  // alive, as far as this peer knows
  std::vector<RoundSummary> rounds;
  double seconds = 0;
  std::string note;  // unusual events; empty: none
  UNISONO_EXPORT std::string to_string() const;
};

struct ElasticPeer {
  std::string name;
  std::string status;  // "joining", "alive", "suspect", "left", "dead"
  std::string address;
  std::string role;
  double bytes_per_second = 0;  // measured; 0: not measured yet
  int64_t finished_step = -1;
  bool self = false;
};

struct ElasticStatus {
  std::string phase;  // "joining", "loading", "idle", "averaging", "leaving", "ended"
  std::vector<ElasticPeer> peers;
  uint64_t layout = 0;
  std::vector<uint32_t> dims;
  uint64_t averaging_steps = 0, exact_averaging_steps = 0;  // averaging steps that this process has finished
  uint64_t sent_bytes = 0, received_bytes = 0;
  uint64_t refused = 0;  // refused connections and messages: of unauthenticated peers, or damaged
  std::string last_refusal;
  uint32_t links = 0;
  uint32_t serving = 0;                // joiners that load the state from this peer now
  std::vector<std::string> endpoints;  // addresses where this process listens
};

// The state that a process received when it joined.
struct ElasticState {
  bool loaded = false;          // false: this process founded the run, or no peer had a state to give
  int64_t step = -1;            // the donors' last averaging step
  std::vector<float> values{};  // all tensors, one after the other
  std::vector<std::pair<std::string, std::vector<std::byte>>> blobs{};
  bool mixed = false;  // donors had different states; the values come from more than one of them
  uint32_t donors = 0;
  double seconds = 0;
  uint64_t bytes = 0;
  std::string note{};  // why nothing was loaded
};

// An averaging step that runs while the caller computes. Destroying the last copy of this handle does not end the averaging
// step.
class UNISONO_EXPORT ElasticWork {
 public:
  ElasticWork() = default;
  bool done() const;
  // Waits for the end, then brings the result into the tensors that were given to average_async. Each element gets (mean -
  // contributed value) added, so local steps taken meanwhile are kept. An element that did not change meanwhile, or had weight
  // 0, becomes the mean itself, bit for bit. Call it once. timeout 0: no limit (the averaging step ends by its own timeouts).
  // Error late: not done yet; call again.
  Result<AveragingReport> wait(Milliseconds timeout = Milliseconds{0});
  // Ends this peer's part in the averaging step early. wait() still brings in the averages of finished rounds.
  void cancel();

 private:
  friend class Elastic;
  explicit ElasticWork(std::shared_ptr<internal::ElasticCall> call);
  std::shared_ptr<internal::ElasticCall> call_;
};

class UNISONO_EXPORT Elastic {
 public:
  // Blocks until this process knows the run's peers (at most join_timeout) and has loaded their state. Loading goes on as long
  // as some donor gives a sign of life within 30 s; reducers and founders load nothing. Errors. invalid: bad options, or
  // RUN_ID_MISMATCH or SCHEMA_MISMATCH: a seed answered for another run or for other tensors. unavailable: NO_SEED (no seed
  // answered; the message names each), ROSTER_FULL, or the port is taken.
  static Result<Elastic> join(const ElasticOptions& options);
  Elastic(Elastic&&) noexcept;
  Elastic& operator=(Elastic&&) noexcept;
  ~Elastic();  // calls leave() if the caller has not

  const ElasticState& state() const;
  // True once min_peers are there and have a layout. Waits for at most `timeout`.
  bool ready(Milliseconds timeout);

  // One averaging step over the tensors (sizes as in tensor_elements), in place. weight: how much this peer's values count, for
  // example the number of samples behind them; 0: this peer takes the mean and gives nothing. Errors. invalid: wrong sizes, a
  // weight that is neither 0 nor from 1e-96 to 1e96, or another averaging step is running. unavailable (SHUTTING_DOWN): leave()
  // was called.
  Result<AveragingReport> average(std::span<const std::span<float>> tensors, double weight = 1);
  Result<AveragingReport> average(std::span<float> tensor, double weight = 1);
  // The same, over a copy of the tensors, while the caller computes on.
  Result<ElasticWork> average_async(std::vector<std::span<float>> tensors, double weight = 1);

  // Named bytes that joiners receive together with the values of the next averaging step (or of offer_values): optimizer state,
  // step numbers and the like. Replaces the earlier ones. At most 1 GiB in all and 64 blobs.
  Status set_state(std::vector<std::pair<std::string, std::vector<std::byte>>> blobs);
  // Gives joiners these values until the first averaging step. A founder calls it, since it has nothing else to give yet.
  Status offer_values(std::span<const std::span<float>> tensors);

  ElasticStatus status() const;
  // An ordinary group of the peers that the newest layout names, in its order, for exact collectives between averaging steps.
  // Like every group it re-forms when a peer is lost. All of these peers must call it after the same averaging step. options:
  // those of the group; rank, world size, rendezvous and job are filled in. Errors. unavailable: there is no layout, or it does
  // not name this process yet (try again after the next averaging step). late: some peers did not come; the message names them.
  Result<Group> group(Milliseconds timeout = Milliseconds{10'000}, const Options& options = {});
  // Says goodbye and ends. It first finishes the work that other peers wait for, within the profile's grace (5 or 15 s). Safe
  // to call twice.
  Status leave();

 private:
  explicit Elastic(std::shared_ptr<internal::ElasticRun> run);
  std::shared_ptr<internal::ElasticRun> run_;
};

}  // namespace unisono
