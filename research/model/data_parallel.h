// How the processes of a training average their gradients. train_model calls Unisono only through this interface.
//
// GroupExchange cuts the gradients into buckets, beginning at the end of the array. As soon as the backward pass has completed
// a bucket, an asynchronous all-reduce starts for it. The gradients of the ranks are added in rank order. Therefore a single
// process gets the same bits if it adds the same parts in the same order. LocalExchange is for a single process and moves
// nothing.
//
// With a codec, gradients are sent with fewer bits. The average is then inexact, but it is equal on all ranks and in every run.
// Error feedback (EF14) keeps the encoding error of every element, and adds it to the next gradient of that element. Over many
// steps, no gradient is lost. The errors need as much memory as the gradients.
//
// With compression (compressed_exchange.h), the gradients of whole parameters are put into buckets. Each step sends only a part
// of every bucket.
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

// These numbers are sums over all steps so far. They count only the exchange of gradients.
struct ExchangeStatistics {
  uint64_t operations = 0;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  // seconds in which this process did not compute: after the backward pass, and while it started operations
  double waited_s = 0;
  double overlapped_s = 0;  // seconds of the backward pass during which at least one bucket was in flight
};

// Totals of the compression reports of all steps so far.
struct CompressionNotes {
  std::string method = {};  // text of GradientCompression::to_string; empty: no compression
  // number of values in all gradients, and number of 4-byte values that were passed to collectives instead
  uint64_t elements = 0, payload = 0;
  uint64_t skipped_steps = 0;              // steps that were skipped because the gradients of some rank were not finite
  uint64_t off_steps = 0;                  // steps in which compression was off for some gradients
  std::string off = {};                    // the last reason why compression was off
  std::vector<std::string> warnings = {};  // all warnings; equal ones are listed once
};

class GradientExchange {
 public:
  virtual ~GradientExchange() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t world_size() const = 0;

  // A step calls begin() with all gradients, then ready() several times, and then finish(). The argument `first` gets smaller
  // from call to call, down to 0. If finish() returns ok, every element has been replaced by its average over the ranks. If
  // finish() fails, the exchange cannot be used any more.
  virtual void begin(std::span<float> gradients) = 0;
  virtual void ready(size_t first) = 0;  // Elements from `first` on are final. Do not use them until finish() has returned.
  virtual unisono::Status finish() = 0;
  // Returns false if the gradients of some rank were not finite. Then all ranks must skip the step. Call it after finish() has
  // returned ok.
  virtual bool applied() const = 0;

  virtual unisono::Status broadcast(std::span<float> values) = 0;  // Copies the values of rank 0 to all ranks.
  virtual unisono::Status average(std::span<float> values) = 0;
  // Gathers the words of all ranks in rank order. Every rank must pass the same number of words.
  virtual unisono::Status gather(std::span<const uint64_t> mine, std::span<uint64_t> all) = 0;

  // Makes a DropCompute for the processes of this exchange. All ranks must call it. Returns unsupported if there is no group.
  // Other errors are those of DropCompute::make.
  virtual unisono::Result<unisono::DropCompute> make_drop_compute(uint32_t micro_batches,
                                                                  const unisono::DropOptions& options) = 0;
  // Makes a sharded exchange for the processes of this exchange. It is used instead of begin(), ready() and finish(). All ranks
  // must call it. Returns unsupported if there is no group. Other errors are those of make_sharded_exchange.
  virtual unisono::Result<std::unique_ptr<ShardedExchange>> make_sharded(
      const ShardedPlan& plan, std::span<const float> parameters, std::unique_ptr<unisono::ShardOptimizer> optimizer) = 0;

  virtual const ExchangeStatistics& statistics() const = 0;
  virtual const CompressionNotes& compression() const = 0;
  // Returns the values that error feedback will add to this rank's next gradients. The result is empty without error feedback.
  // It is valid from finish() until the next ready().
  virtual std::span<const float> residuals() const = 0;
};

// A parameter of the model: a matrix or a vector. Its gradient is compressed as a whole.
struct ExchangedParameter {
  std::string name;
  size_t rows = 1, columns = 0;  // shape in memory; rows are stored one after another
  // Compression selects whole rows, and a row should consist of all weights of one output. If `by_columns` is true, these
  // weights are a column of the stored matrix, because the model computes output = input * matrix.
  bool by_columns = false;
  size_t count() const { return rows * columns; }
  friend bool operator==(const ExchangedParameter&, const ExchangedParameter&) = default;
};

struct ExchangeOptions {
  // Bytes in one all-reduce. Smaller buckets can start earlier; larger buckets need fewer operations.
  size_t bucket_bytes = 1u << 20;
  // The default is the group that the environment describes (unisono launch, torchrun, Slurm, Open MPI).
  unisono::Options join = {};
  // The codec for gradients. A codec that is not plain is used for every bucket, even if the links are fast.
  unisono::Codec codec = {};
  bool error_feedback = false;  // Residuals are kept from step to step as long as the number of gradients stays the same.
  // The codec is not used for the last `exact_tail` elements, because their values are very different from gradients.
  size_t exact_tail = 0;
  GradientCompression compression = {};  // used instead of a codec
  // The parameters, in the order of the gradients. They are needed for compression. Values that follow the parameters'
  // gradients are averaged exactly.
  std::vector<ExchangedParameter> parameters = {};
};

// All ranks must call it. If the compression differs between ranks, the result is invalid, with the texts of both compressions.
unisono::Result<std::unique_ptr<GradientExchange>> make_group_exchange(const ExchangeOptions& options);
std::unique_ptr<GradientExchange> make_local_exchange();

}  // namespace language_model
