// Averaging among peers that join and leave at any time, without a master. An elastic run is the set of these peers. It uses
// Moshpit All-Reduce.
//
// One peer begins the run: .found = true. All others pass a seed (the address of a peer).
//   auto run = unisono::Elastic::join({.run_id = "demo", .seeds = {"10.0.0.1:4040"}, .tensor_elements = {model.size()}});
//   if (run->state().loaded) model = run->state().values;   // the other peers' state
//   for (;;) {
//     for (int step = 0; step < 8; ++step) train(model);
//     auto report = run->average(model, samples);           // the weighted mean over all peers that took part
//     if (!report.ok()) break;                              // shutting down; other faults are in the report, not an error
//   }
//   auto left = run->leave();                               // optional: without it, peers detect the loss by a timeout
//
// Peers are arranged in a grid. In each round of an averaging step, they average in small groups along one axis of the grid. A
// lost peer therefore disturbs the round of one group only. Without losses, an averaging step is exact for every number of
// peers, and all peers get the same bits. With losses, the values of the other peers are neither dropped nor counted twice.
// Later averaging steps remove the remaining difference. No peer is special: a process can join through any live peer.
//
// Only crashes of peers are tolerated; a malicious peer can corrupt results. With a key, all connections are encrypted, and
// processes without the key are kept out (docs/guides/security.md).
//
// Source: M. Ryabinin et al., Moshpit SGD, arXiv:2103.03239. Unisono adds grids for any number of peers, conserved sums,
// coordinators and verdicts. See docs/guides/elastic.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "unisono/codec.h"
#include "unisono/elastic_report.h"
#include "unisono/event.h"
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
  // - peer: takes part fully.
  // - client: opens connections, but accepts none. It reduces no chunks for other peers.
  // - reducer: has no values of its own, but reduces chunks for other peers.
  enum class Role : uint8_t { peer = 0, client = 1, reducer = 2 };
  // - fitted: exact for every number of peers.
  // - published: the fixed grid that the authors of Moshpit SGD simulated.
  // - chunk_keys: the published rule. A peer's position in its last group determines its next group. If a group has fewer than
  //   max_group peers, it waits for gather_timeout.
  // published and chunk_keys are for comparison. They are exact only if all peers form one group, or if there are max_group^d
  // peers.
  enum class Grid : uint8_t { fitted = 0, published = 1, chunk_keys = 2 };
  // - agreed: a majority of the group decides about each chunk. Either all members apply the result, or none does.
  // - per_result: each member applies a result as soon as it arrives, which is three message delays earlier. If the peer that
  //   reduces the chunk dies before all members have the result, only some have applied it.
  enum class Commit : uint8_t { agreed = 0, per_result = 1 };

  std::string run_id;  // name of the run; must not be empty
  // true: begins a new run at once; if a seed is already in a run with the same run_id, the two runs merge. false: only joins a
  // run.
  bool found = false;
  // Addresses of peers of the run. It is enough if one of these peers can be reached.
  // - "host:port", "tcp://10.0.0.1:4040" or "[::1]:4040". All addresses of a host name are tried.
  // - "file:PATH": a file with one seed per line. It is read again at each attempt.
  // - "dht:host:port": a node of an OpenDHT network, where processes of the run find each other (unsupported in builds without
  //   OpenDHT).
  std::vector<std::string> seeds{};
  std::vector<uint64_t> tensor_elements{};  // number of fp32 elements of each tensor of average(), in order; equal on all peers
  std::string name{};                       // name in logs and reports; empty: host name and process number
  std::string interface {};                 // interface name or address to listen on; empty: all interfaces
  uint16_t port = 0;                        // 0: the kernel chooses
  Role role = Role::peer;
  // The secret key of the run: 64 hexadecimal digits, as `unisono key` prints them. Equal on all peers. Empty: the key comes
  // from UNISONO_KEY, UNISONO_KEY_FILE, UNISONO_KEY_FD or the systemd credential `unisono_key`.
  std::string key{};
  // required: joining fails without a key. off: no encryption, and no warning. automatic: UNISONO_SECURITY says it.
  Security security = Security::automatic;
  Profile profile = Profile::lan;  // lan: a silent peer is noticed within seconds. wan: it is noticed within tens of seconds.
  uint32_t max_group = 32;         // a group has at most this many peers; 4 … 128
  uint32_t rounds = 0;             // number of rounds per averaging step; 0: one round for each axis of the grid
  uint32_t min_peers = 1;          // the first averaging step waits until this many peers have joined
  uint32_t min_chunks = 0;         // a member gets no chunks to reduce if its share would be less than this
  uint32_t max_peers = 4096;
  Grid grid = Grid::fitted;
  Commit commit = Commit::agreed;
  // Codecs of contributions and of results. Use at least 8 bits for results, because they are encoded again for each axis.
  StepCodec contribute{}, result{};
  Milliseconds join_timeout{60'000};
  Milliseconds gather_timeout{0};  // how long a group waits for absent members; 0: as long as the profile says
  Milliseconds stall_timeout{0};   // how long a round waits for a silent member; 0: as long as the profile says
  EventHandler on_event{};         // gets what no call returns: see event.h
};

// A handle of an averaging step that runs while the caller computes. The step continues even if all its handles are destroyed.
class UNISONO_EXPORT ElasticWork {
 public:
  ElasticWork() = default;
  bool done() const;
  // Waits for the end of the step, then applies the result to the tensors of average_async(). Call it once. To each element it
  // adds (mean - contributed value), so that local steps taken meanwhile are kept. If an element did not change meanwhile or
  // had weight 0, it becomes exactly the mean, bit for bit.
  //
  // timeout 0: there is no limit (the averaging step ends by its own timeouts). Error late: the step still runs; call wait()
  // again.
  Result<AveragingReport> wait(Milliseconds timeout = Milliseconds{0});
  // Ends this peer's part in the averaging step early. wait() still applies the averages of the rounds that have finished.
  void cancel();

 private:
  friend class Elastic;
  explicit ElasticWork(std::shared_ptr<internal::ElasticCall> call);
  std::shared_ptr<internal::ElasticCall> call_;
};

class UNISONO_EXPORT Elastic {
 public:
  // Blocks until this process knows the run's peers (at most join_timeout) and has loaded their state. Loading may take longer
  // than join_timeout, as long as a donor sends something at least every 30 s. Reducers and founders load nothing. Errors:
  // - invalid: bad options, or there is no key although security is required.
  // - invalid (RUN_ID_MISMATCH, SCHEMA_MISMATCH): a seed belongs to another run, has another key or none, or has other tensors.
  // - unavailable: NO_SEED (no seed was in the run; the message lists all, and says which are themselves still looking for it),
  //   ROSTER_FULL, or the port is taken.
  static Result<Elastic> join(const ElasticOptions& options);
  Elastic(Elastic&&) noexcept;
  Elastic& operator=(Elastic&&) noexcept;
  ~Elastic();  // calls leave() if the caller did not

  const ElasticState& state() const;
  // Waits at most `timeout`. Returns true as soon as min_peers peers have joined and have got a layout.
  bool ready(Milliseconds timeout);

  // Runs one averaging step over the tensors, in place. Their sizes must match tensor_elements. weight: the weight of this peer
  // in the mean, for example its number of samples. With weight 0, it receives the mean and contributes nothing. If a chunk of
  // the tensors has a NaN or an infinite value, this peer keeps the chunk, and the others average it without this peer; the
  // reports of all say so. Errors:
  // - invalid: the sizes are wrong, or another averaging step is running.
  // - invalid: the weight is neither 0 nor within 1e-96 … 1e96.
  // - unavailable (SHUTTING_DOWN): leave() was called.
  Result<AveragingReport> average(std::span<const std::span<float>> tensors, double weight = 1);
  Result<AveragingReport> average(std::span<float> tensor, double weight = 1);
  // Like average(), but it works on a copy of the tensors while the caller continues to compute.
  Result<ElasticWork> average_async(std::vector<std::span<float>> tensors, double weight = 1);

  // Sets named blobs for joiners, such as the optimizer's state and step numbers. Joiners receive them together with the values
  // that the next averaging step or offer_values() gives. New blobs replace all earlier ones. Limits: 64 blobs, 1 GiB in all.
  Status set_state(std::vector<std::pair<std::string, std::vector<std::byte>>> blobs);
  // Offers these values to joiners until the first averaging step has ended. Founders need this because they have no averages
  // yet.
  Status offer_values(std::span<const std::span<float>> tensors);

  ElasticStatus status() const;
  // Makes an ordinary group of the peers in the newest layout, in the layout's order. It serves for exact collectives between
  // averaging steps. All of these peers must call it after the same averaging step. Like every group, it can be re-formed when
  // a peer is lost. The library sets rank, world size, rendezvous, job, key and security of `options`: the group has the key of
  // the run, or none. Errors:
  // - unavailable: there is no layout yet, or it does not include this process (try again after the next averaging step).
  // - late: some peers did not join; the message lists them.
  Result<Group> group(Milliseconds timeout = Milliseconds{10'000}, const Options& options = {});
  // Leaves the run, and tells the other peers. Before that, it finishes the work for which other peers wait, but takes no
  // longer than the profile's grace period (5 or 15 s). A second call is harmless.
  Status leave();

 private:
  explicit Elastic(std::shared_ptr<internal::ElasticRun> run);
  std::shared_ptr<internal::ElasticRun> run_;
};

}  // namespace unisono
