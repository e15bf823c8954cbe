// Exact data-parallel training, with which elastic runs are compared. It ends when a process is lost. The remaining processes
// then start it again from the last checkpoint, and repeat the steps that were made since. If the job is told to stop, rank 0
// first writes a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "research/elastic/elastic_training.h"
#include "research/model/data_parallel.h"
#include "unisono/status.h"

namespace language_model {

struct RestartableOptions {
  ElasticLoopOptions loop;  // loop.steps counts all steps of the job, including those that were made before restarts.
  std::string checkpoint;   // path of a file that all processes can read and that rank 0 writes
  uint64_t checkpoint_every = 50;
};

// Returns unavailable or invalid if the checkpoint cannot be read or written. If the group fails (peer_lost, …), the function
// returns an outcome whose `why` is "refused: " followed by the error.
unisono::Result<ElasticOutcome> train_restartable(LocalTrainer& trainer, GradientExchange& exchange,
                                                  const RestartableOptions& options, EventLog& log,
                                                  const OnElasticStep& on_step);

// Writes the parameters, the optimizer's moments and the number of steps to the file.
unisono::Status write_checkpoint(const std::string& path, uint64_t steps, LocalTrainer& trainer);
// Reads the parameters and the moments from a checkpoint into the trainer. Returns the number of steps in the checkpoint, or 0
// if the file does not exist. Returns invalid if the file is truncated or belongs to another model.
unisono::Result<uint64_t> read_checkpoint(const std::string& path, LocalTrainer& trainer);

}  // namespace language_model
