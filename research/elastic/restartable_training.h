// The alternative to compare elastic runs with: exact data-parallel training that ends when a process is lost. It is then
// started again with the remaining processes, from the last checkpoint, so steps since that checkpoint are repeated. A process
// that is told to stop writes a checkpoint first.
#pragma once

#include <cstdint>
#include <string>

#include "research/elastic/elastic_training.h"
#include "research/model/data_parallel.h"
#include "unisono/status.h"

namespace language_model {

struct RestartableOptions {
  ElasticLoopOptions loop;  // steps: of the job, restarts included
  std::string checkpoint;   // a file that all processes see; the first rank writes it
  uint64_t checkpoint_every = 50;
};

// unavailable, invalid: the checkpoint cannot be read or written. Failures of the group (peer_lost, …) are in the outcome's
// `why`, after "refused: ".
unisono::Result<ElasticOutcome> train_restartable(LocalTrainer& trainer, GradientExchange& exchange,
                                                  const RestartableOptions& options, EventLog& log,
                                                  const OnElasticStep& on_step);

// Writes the parameters, the moments and the number of steps.
unisono::Status write_checkpoint(const std::string& path, uint64_t steps, LocalTrainer& trainer);
// Reads them, and returns the number of steps; 0 if there is no such file. invalid: the file is for another model, or
// truncated.
unisono::Result<uint64_t> read_checkpoint(const std::string& path, LocalTrainer& trainer);

}  // namespace language_model
