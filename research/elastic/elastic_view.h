// The display of an elastic training: a page for terminals, or a line for logs. The functions only return texts.
#pragma once

#include <string>

#include "research/elastic/event_log.h"

namespace language_model {

struct ElasticView {
  std::string run, name;
  unisono::ElasticStatus status;
  unisono::MoshpitSgdReport report;
  const unisono::AveragingReport* averaging = nullptr;  // the report of the last averaging step; null if there was none yet
  TrainingTally tally;
  double tokens_per_s = 0;
};

// Returns a page that shows the run, the training, the peers, and the last averaging step with its rounds. The page has at most
// `rows` lines. Each line has at most `width` characters and ends with '\n'.
std::string page_of(const ElasticView& view, size_t width, size_t rows);
std::string line_of(const ElasticView& view);

}  // namespace language_model
