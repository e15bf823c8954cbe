// Trains a model in an elastic run (unisono/elastic.h). Each peer takes its own optimizer steps. After every few steps, an
// averaging step averages the parameters of the peers (Moshpit SGD, a form of local SGD).
//
//   auto options = *unisono::MoshpitSgdOptions::parse("local_steps=8");
//   auto sgd = unisono::MoshpitSgd::make(*run, parameters, options);   // replaces parameters by the run's, if the run has some
//   for (;;) {
//     optimizer_step(parameters);                                      // a local step on this peer's samples
//     if (!sgd->after_step(parameters, samples).ok()) break;           // begins an averaging step, or applies a finished one
//   }
//   auto last = sgd->finish(parameters);
//   auto left = run->leave();
//
// With the option overlap, after_step() does not wait for the network. Local steps that are taken during an averaging step are
// kept. If a peer misses an averaging step, it continues with its present values.
//
// Sources: M. Ryabinin et al., Moshpit SGD, arXiv:2103.03239. Douillard et al., DiLoCo, arXiv:2311.08105, for outer optimizers,
// which take averaged changes of the parameters (pseudo-gradients) as gradients. docs/guides/elastic.md says what happens to
// outer optimizers in averaging steps that are not exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unisono/elastic.h"
#include "unisono/export.h"
#include "unisono/status.h"

namespace unisono {

namespace internal {
class MoshpitStepper;
}

struct MoshpitSgdOptions {
  // - parameters: every peer continues from the weighted mean of the parameters.
  // - pseudo_gradients: peers keep a reference copy of the parameters. mean(reference - parameters) serves as a gradient, with
  //   which an outer optimizer updates the reference. Every peer continues from the reference.
  // With Outer::sgd and rate 1, both give the same result.
  enum class Average : uint8_t { parameters = 0, pseudo_gradients = 1 };
  // Outer optimizers for a gradient g, as in PyTorch's SGD. sgd steps along g. nesterov sets m = momentum · m + g, then steps
  // along g + momentum · m.
  enum class Outer : uint8_t { sgd = 0, nesterov = 1 };

  uint32_t local_steps = 8;  // number of local steps between the end of one averaging step and the start of the next
  // If this is not 0, it replaces local_steps: the next averaging step begins after all peers together have used this many
  // samples. Each peer estimates their number: (own samples since the last averaging step) * (number of peers).
  uint64_t target_samples = 0;
  Average average = Average::parameters;
  Outer outer = Outer::nesterov;  // used with pseudo_gradients only
  double outer_rate = -1;         // learning rate of the outer optimizer; -1: 1 for sgd, 0.7 for nesterov
  double outer_momentum = -1;     // momentum of nesterov, in [0, 1); -1: 0.9
  bool overlap = true;            // true: local steps go on during an averaging step. false: after_step() waits for its end.

  // Parses "local_steps=8,samples=0,average=pseudo_gradients,outer=nesterov,rate=0.7,momentum=0.9,overlap=on". Returns invalid
  // (bad_option) for any other text. The message names the wrong part.
  UNISONO_EXPORT static Result<MoshpitSgdOptions> parse(std::string_view text);
  // Returns text that parse() reads. Options that have default values are left out.
  UNISONO_EXPORT std::string to_string() const;
  // Returns ok, or invalid (bad_option). The message of the error names the field that is out of range.
  UNISONO_EXPORT Status check() const;
  friend bool operator==(const MoshpitSgdOptions&, const MoshpitSgdOptions&) = default;
};

// The result of one call of after_step(), drain() or finish().
struct MoshpitStep {
  bool began = false;  // true: an averaging step began with the present values
  // The averaging step that ended during this call; null: none ended. Unless it failed, its result was applied to the
  // parameters.
  std::shared_ptr<const AveragingReport> averaging;
  double waited_s = 0;
};

// Counts what happened since make().
struct MoshpitSgdReport {
  uint64_t steps = 0, samples = 0;  // local steps of this peer, and the samples that it used in them
  uint64_t averaging_steps = 0;     // number of averaging steps that ended; the next fields count some of these
  uint64_t exact = 0;               // those whose result includes the values of all peers
  uint64_t alone = 0;               // those that got no values from other peers, so that nothing changed
  // Those in which this peer had weight 0. This happens in the first step of a joiner, and if values are not finite.
  uint64_t without_weight = 0;
  uint64_t not_finite = 0;        // those that had weight 0 because values were not finite
  uint64_t overlapped_steps = 0;  // number of local steps that were taken during an averaging step
  uint32_t peers = 0;             // number of peers in the last averaging step
  // How far the replicas in this peer's first group differed before the last averaging step: sqrt(mean over elements of the
  // variance between replicas).
  double spread = 0;
  double total_s = 0;      // seconds since make()
  double waited_s = 0;     // the part of total_s in which this peer waited for averaging steps
  double handled_s = 0;    // the part of total_s in which values were copied and results were applied
  double averaging_s = 0;  // the part of total_s in which an averaging step ran
  // Returns the share of total_s that the training loop could use. Before the first step, it is 1.
  double useful_share() const { return total_s > 0 ? 1 - (waited_s + handled_s) / total_s : 1; }
  // Returns one line of text for logs.
  UNISONO_EXPORT std::string to_string() const;
};

class UNISONO_EXPORT MoshpitSgd {
 public:
  using Blobs = std::vector<std::pair<std::string, std::vector<std::byte>>>;
  // It is called right before each averaging step. It returns what joiners need in addition to the values, such as the state of
  // the local optimizer and of random generators. At most 63 blobs.
  using GiveState = std::function<Blobs()>;

  // If the run already has values, another peer sends them, and make() writes them into `parameters`. steps() then continues
  // from the step count of that peer, and the first averaging step of this peer has weight 0. Otherwise this peer begins with
  // the parameters that it was given.
  //
  // run: make() keeps a reference to it, so it must outlive this object and must not be moved. parameters: their sizes must
  // match ElasticOptions::tensor_elements. Error invalid (bad_option): options contradict each other, or sizes are wrong.
  static Result<MoshpitSgd> make(Elastic& run, std::span<const std::span<float>> parameters,
                                 const MoshpitSgdOptions& options = {});
  static Result<MoshpitSgd> make(Elastic& run, std::span<float> parameters, const MoshpitSgdOptions& options = {});
  MoshpitSgd(MoshpitSgd&&) noexcept;
  MoshpitSgd& operator=(MoshpitSgd&&) noexcept;
  ~MoshpitSgd();

  // Call it after each step of the local optimizer. samples: the number of samples in that step, which may be 0. The weight of
  // this peer in the next average is the number of its samples since it last contributed. After an error, the parameters are
  // unchanged. Errors:
  // - invalid: the sizes differ from those in make().
  // - unavailable (SHUTTING_DOWN): Elastic::leave() was called.
  Result<MoshpitStep> after_step(std::span<const std::span<float>> parameters, uint64_t samples);
  Result<MoshpitStep> after_step(std::span<float> parameters, uint64_t samples);
  // If an averaging step is running, waits for it and applies its result. Call it before values are saved or evaluated. timeout
  // 0: there is no limit. Error late: the averaging step still runs.
  Result<MoshpitStep> drain(std::span<const std::span<float>> parameters, Milliseconds timeout = Milliseconds{0});
  Result<MoshpitStep> drain(std::span<float> parameters, Milliseconds timeout = Milliseconds{0});
  // Calls drain(), then runs one more averaging step for the last local steps. Up to two more averaging steps follow while
  // other peers still contribute changes. Peers that finish within one averaging step of each other end with the same
  // parameters.
  Result<MoshpitStep> finish(std::span<const std::span<float>> parameters);
  Result<MoshpitStep> finish(std::span<float> parameters);
  // Abandons the running averaging step, so that this process can stop at once. Only this peer loses the result.
  void abandon();

  void give_state(GiveState give);
  // Returns the number of steps of this peer, plus the number that its donor (the peer that sent it the values) had taken
  // before. Use it for learning-rate schedules.
  uint64_t steps() const;
  MoshpitSgdReport report() const;

  // Saves the outer optimizer and the counters. Call it after drain(), and store the bytes together with the parameters. They
  // serve to restart all peers.
  std::vector<std::byte> save() const;
  // Restores what save() returned. After an error, nothing has changed. Error corrupt: the bytes are truncated or changed.
  // Error invalid: they were saved with other sizes or another outer optimizer.
  Status load(std::span<const std::byte> bytes);

 private:
  explicit MoshpitSgd(std::unique_ptr<internal::MoshpitStepper> stepper);
  std::unique_ptr<internal::MoshpitStepper> stepper_;
};

}  // namespace unisono
