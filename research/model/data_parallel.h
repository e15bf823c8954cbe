// How the processes of a training average their gradients. All calls of Unisono that train_model makes are behind this
// interface.
//
// GroupExchange cuts the gradients into buckets and starts an asynchronous all-reduce for each as soon as the backward pass
// has completed it, the end of the array first. The average is taken in rank order, so that a single process that adds the
// same parts in the same order gets the same bits. LocalExchange is for one process and moves nothing.
//
// With a codec gradients travel in fewer bits. The average is then only near the exact one, but equal on all ranks and in every
// run. Error feedback (EF14) keeps what encoding loses of every element and adds it to that element's next gradient. So nothing
// is lost over the steps. It takes as much memory as the gradients.
//
// With a compression (compressed_exchange.h) gradients travel in buckets of whole parameters, of which only a part is sent in
// each step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "research/compression/gradient_compression.h"
#include "research/packet_loss/sharded_exchange.h"
#include "unisono/codec.h"
#include "unisono/drop_compute.h"
#include "unisono/options.h"
#include "unisono/status.h"

namespace language_model {

// Sums over all steps so far. They count the gradients only.
struct ExchangeStatistics {
  uint64_t operations = 0;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  double waited_s = 0;      // time without computing: after the backward pass, and while operations were started
  double overlapped_s = 0;  // time in which at least one bucket was on its way while the backward pass went on
};

// Totals of a compression's reports over all steps so far.
struct CompressionNotes {
  std::string method = {};                 // as GradientCompression::to_string says it; empty: there is none
  uint64_t elements = 0, payload = 0;      // values in all, and those (of four bytes) that collectives were given instead
  uint64_t skipped_steps = 0;              // because some rank's gradients were not finite
  uint64_t off_steps = 0;                  // steps that were not fully compressed, although that was asked for
  std::string off = {};                    // why, the last time
  std::vector<std::string> warnings = {};  // each once
};

class GradientExchange {
 public:
  virtual ~GradientExchange() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t world_size() const = 0;

  // One step: begin(all gradients), then ready(first) any number of times with falling `first`, down to 0, then finish(). After
  // an ok finish() every element is the average over the ranks. After a failed finish() the exchange cannot be used any more.
  virtual void begin(std::span<float> gradients) = 0;
  virtual void ready(size_t first) = 0;  // the elements from first on are final and may not be touched until finish()
  virtual unisono::Status finish() = 0;
  // Valid after an ok finish(). false: some rank's gradients were not finite, and all ranks skip the step.
  virtual bool applied() const = 0;

  virtual unisono::Status broadcast(std::span<float> values) = 0;  // rank 0's
  virtual unisono::Status average(std::span<float> values) = 0;
  // Every rank gives equally many words and gets those of all, in rank order.
  virtual unisono::Status gather(std::span<const uint64_t> mine, std::span<uint64_t> all) = 0;

  // A DropCompute for the same processes. All of them call it. unsupported: there is no group. Other errors: those of
  // DropCompute::make.
  virtual unisono::Result<unisono::DropCompute> make_drop_compute(uint32_t micro_batches,
                                                                  const unisono::DropOptions& options) = 0;
  // A sharded exchange for the same processes, which replaces begin(), ready() and finish(). All of them call it. Other errors:
  // those of make_sharded_exchange.
  virtual unisono::Result<std::unique_ptr<ShardedExchange>> make_sharded(
      const ShardedPlan& plan, std::span<const float> parameters, std::unique_ptr<unisono::ShardOptimizer> optimizer) = 0;

  virtual const ExchangeStatistics& statistics() const = 0;
  virtual const CompressionNotes& compression() const = 0;
  // The values that a codec's error feedback will add to this rank's next gradients; empty without error feedback. Valid
  // between finish() and ready().
  virtual std::span<const float> residuals() const = 0;
};

// A parameter whose gradient is compressed as a whole: a matrix or a vector.
struct ExchangedParameter {
  std::string name;
  size_t rows = 1, columns = 0;  // as its values lie
  // Compression chooses whole rows, and a row should hold all weights of one output. Where inputs are multiplied with the
  // matrix from the left, those weights are a column.
  bool by_columns = false;
  size_t count() const { return rows * columns; }
  friend bool operator==(const ExchangedParameter&, const ExchangedParameter&) = default;
};

struct ExchangeOptions {
  size_t bucket_bytes = 1u << 20;  // all-reduced at once; less overlaps earlier, more costs fewer operations
  unisono::Options join = {};      // as it is: the group that the environment names (unisono launch, torchrun, Slurm, Open MPI)
  unisono::Codec codec =
      {};  // for the gradients; a codec that is not plain is used for every bucket, however fast the links are
  bool error_feedback = false;           // residuals are kept from step to step, as long as the number of gradients stays
  size_t exact_tail = 0;                 // elements at the end that no codec touches: among gradients they would be outliers
  GradientCompression compression = {};  // instead of a codec
  std::vector<ExchangedParameter> parameters =
      {};  // for it: what the gradients are of, one after the other; what lies behind them stays exact
};

// All ranks call it. invalid: compression differs between ranks; the message has both.
unisono::Result<std::unique_ptr<GradientExchange>> make_group_exchange(const ExchangeOptions& options);
std::unique_ptr<GradientExchange> make_local_exchange();

}  // namespace language_model
