// Options of processes that find each other by a seed on this host.
#pragma once

#include <string>

#include "unisono/elastic.h"

namespace unisono::test {

inline ElasticOptions options_of(const std::string& seed, bool found) {
  ElasticOptions options;
  options.run_id = "run";
  options.found = found;
  options.seeds = {seed};
  options.tensor_elements = {100};
  options.interface = "127.0.0.1";
  return options;
}

}  // namespace unisono::test
