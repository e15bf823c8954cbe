// The other way to live with processes that come and go, to compare with: exact data-parallel training that ends when one is
// lost, and is started again with those that are left, from the last checkpoint. Gradients of all processes are averaged in
// every step, so steps since the checkpoint are made again; who is told to go writes one before.
#pragma once

#include <cstdint>
#include <string>

#include "research/model/data_parallel.h"
#include "research/elastic/elastic_training.h"
#include "unisono/status.h"

namespace language_model {

struct RestartableOptions {
  ElasticLoopOptions loop;  // steps: of the job, restarts included
  std::string checkpoint;   // a file that all processes see; the first rank writes it
  uint64_t checkpoint_every = 50;
};

// unavailable, invalid: what keeps the checkpoint from being read or written. What happens to the group (peer_lost, …) is in
// the outcome's why, behind "refused: ".
unisono::Result<ElasticOutcome> train_restartable(LocalTrainer& trainer, GradientExchange& exchange,
                                                  const RestartableOptions& options, EventLog& log,
                                                  const OnElasticStep& on_step);

// Parameters, moments, and after how many steps.
unisono::Status write_checkpoint(const std::string& path, uint64_t steps, LocalTrainer& trainer);
// 0 if there is no such file. invalid: it is of another model, or cut.
unisono::Result<uint64_t> read_checkpoint(const std::string& path, LocalTrainer& trainer);

}  // namespace language_model
