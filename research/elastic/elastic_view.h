// The display of an elastic training: a page for terminals, a line for logs. Pure functions.
#pragma once

#include <string>

#include "research/elastic/event_log.h"

namespace language_model {

struct ElasticView {
  std::string run, name;
  unisono::ElasticStatus status;
  unisono::MoshpitSgdReport report;
  const unisono::AveragingReport* averaging = nullptr;  // the last one; null before the first
  TrainingTally tally;
  double tokens_per_s = 0;
};

// A page with the run, the training, the last averaging step with its rounds, and the peers, in at most `rows` lines. Lines end
// with '\n', and none is longer than `width`.
std::string page_of(const ElasticView& view, size_t width, size_t rows);
std::string line_of(const ElasticView& view);

}  // namespace language_model
